"""Stand-ins for CUDA graphs on the CPU. They spoil more memory than real graphs, or fail."""

from __future__ import annotations

from collections.abc import Callable

import torch
from kernel_coder.sft.graphs import Work, Written
from torch import Tensor


class Spoiling:
    """Repeats work as a CUDA graph does: into the same tensors. First fills the results of all later work with NaN."""

    def __init__(self) -> None:
        self.written: list[list[Tensor | None]] = []

    def warm_up(self, work: Callable[[], None]) -> None:
        work()

    def record(self, work: Work) -> tuple[Written, Callable[[], None]]:
        kept = [None if tensor is None else tensor.detach().clone() for tensor in work()]
        number = len(self.written)
        self.written.append(kept)

        def replay() -> None:
            for tensor in (each for later in self.written[number + 1 :] for each in later):
                if tensor is not None:
                    tensor.fill_(torch.nan)
            for mine, now in zip(kept, work(), strict=True):
                if mine is not None and now is not None:
                    mine.copy_(now.detach())

        return kept, replay


class Blind(Spoiling):
    """A replay keeps the results of the recording, as a graph does that reads other inputs than the new ones."""

    def record(self, work: Work) -> tuple[Written, Callable[[], None]]:
        kept, _ = super().record(work)
        return kept, lambda: None


class Broken(Spoiling):
    def record(self, work: Work) -> tuple[Written, Callable[[], None]]:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")
