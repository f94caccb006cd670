"""The random state of Python, NumPy and torch: custom rewards and dropout draw from it, so checkpoints save it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernel_coder.run import distributed


@dataclass(frozen=True, slots=True)
class RngState:
    """The states of all generators: torch's as tensors (CPU and every GPU), the other two as JSON values."""

    tensors: dict[str, Tensor]
    python: Any
    numpy: Any


def seed_rng(seed: int) -> None:
    """Seeds the global generators of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed % 2**63)


def capture_rng() -> RngState:
    """Return a copy of the present state."""
    tensors = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        tensors |= {f"cuda.{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return RngState(tensors, random.getstate(), [name, np.asarray(keys).tolist(), position, has_gauss, gauss])


def restore_rng(state: RngState) -> None:
    """Sets all generators to a captured state. The state of a GPU that this machine does not have is ignored."""
    torch.set_rng_state(state.tensors["cpu"])
    for index in range(torch.cuda.device_count()):
        if f"cuda.{index}" in state.tensors:
            torch.cuda.set_rng_state(state.tensors[f"cuda.{index}"], index)
    version, internal, gauss = state.python
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = state.numpy
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))


def own_randomness(seed: int, step: int) -> None:
    """Seeds each rank differently, for dropout. The seeds depend on the step, so a resumed run repeats them.

    Rank 0 keeps its random state, which rewards use and checkpoints save.
    """
    world = distributed.world()
    if not world.is_first:
        seed_rng((seed * 1_000_003 + step) * 1_000_003 + world.rank)


@contextmanager
def rng_unchanged() -> Iterator[None]:
    """Restores the random state on exit, so that the body does not influence later random numbers.

    >>> before = torch.get_rng_state()
    >>> with rng_unchanged():
    ...     _ = torch.rand(1)
    >>> torch.equal(before, torch.get_rng_state())
    True
    """
    state = capture_rng()
    try:
        yield
    finally:
        restore_rng(state)
