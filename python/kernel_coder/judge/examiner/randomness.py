"""Random numbers that a candidate cannot predict."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Seeds:
    """A sequence of secret seeds. All derive from one key, which is recorded in the verdict.

    >>> Seeds(7).next() == Seeds(7).next() != Seeds(None).next()
    True
    """

    def __init__(self, key: int | None, use: str = "candidate") -> None:
        """
        Args:
            key: the key; None draws a secret one.
            use: what the seeds are for. The same key gives different seeds for different uses.
        """
        self.key = secrets.randbits(62) if key is None else key
        self._use, self._drawn = use, 0

    def next(self) -> int:
        """Return the next seed, a number of 62 bits."""
        self._drawn += 1
        digest = hashlib.sha256(f"kernel_coder.judge {self._use} {self.key} {self._drawn}".encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 2


class Draws:
    """The source of all random numbers of one task."""

    def __init__(self, seeds: Seeds, device: torch.device) -> None:
        self.device, self.seeds = device, seeds
        self.rng = torch.Generator(device=device).manual_seed(seeds.next())
        """Generates inputs and parameters."""

        self.poison = torch.Generator(device=device).manual_seed(secrets.randbits(63))
        """Generates the content of output memory before a call. Candidates see these numbers, and from enough numbers
        of a generator all later ones can be computed. So this generator is used for nothing else."""

    def restart(self, seeds: Seeds) -> None:
        """Draw from these seeds from now on."""
        self.seeds = seeds
        self.rng.manual_seed(seeds.next())

    def seed_torch(self) -> None:
        """Seed torch's own generators, which the task's ``get_inputs`` draws from."""
        seed_all(self.seeds.next(), self.device)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Draw from other seeds in this block. So a candidate gets the same numbers with and without the block."""
        seeds, rng = self.seeds, self.rng
        self.seeds = Seeds(None)
        self.rng = torch.Generator(device=self.device).manual_seed(self.seeds.next())
        try:
            yield
        finally:
            self.seeds, self.rng = seeds, rng


def seed_all(seed: int, device: torch.device) -> None:
    """Seed torch's generators of the CPU and of one device. ``torch.manual_seed`` does this for every kind of device,
    which takes 0.7 ms.

    >>> seed_all(5, torch.device("cpu")); x = torch.rand(2); _ = torch.manual_seed(5); torch.equal(x, torch.rand(2))
    True
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


def fill_random(memory: Tensor, rng: torch.Generator) -> None:
    """Overwrite memory, given as a tensor of bytes, with random bits."""
    words = memory.view(torch.int32) if memory.numel() % 4 == 0 else memory
    words.random_(generator=rng)
