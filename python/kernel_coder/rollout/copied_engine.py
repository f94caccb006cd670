"""An engine that samples from a copy of the policy, so that the policy can be updated at the same time."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kernel_coder.judge.gpu.turns import SharedGpu
from kernel_coder.rollout.engine import RolloutEngine, Sampling
from kernel_coder.rollout.types import Turn

Snapshot = Mapping[str, Tensor]
"""The weights that training changes, as they were at one time, by name."""


class CopiedEngine:
    """An engine over a copy of a model. The copy gets the model's weights only by :meth:`load` and :meth:`prepare`.

    Args:
        model: the model that is trained.
        make: makes the engine for a model.
        gpu: the model's GPU, if a judge times kernels on it; sampling and timing then take turns. None: no judge does.
    """

    def __init__(
        self, model: nn.Module, make: Callable[[nn.Module], RolloutEngine], gpu: SharedGpu | None = None
    ) -> None:
        self.model, self.gpu = model, gpu
        self.copy = copy.deepcopy(model).eval()
        self._trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        self.copy.requires_grad_(False)
        self.inner: Any = make(self.copy)
        self.version: int | None = None
        self.tells_of_ends: bool = getattr(self.inner, "tells_of_ends", False)

    def snapshot(self) -> Snapshot:
        """Return a copy of the model's present weights. No update may be in progress."""
        own = dict(self.model.named_parameters())
        return {name: own[name].detach().clone() for name in self._trained}

    def load(self, snapshot: Snapshot, version: int) -> None:
        """Uses these weights for later answers. ``version`` is the number of updates that they have had."""
        own = dict(self.copy.named_parameters())
        with torch.no_grad():
            for name, weight in snapshot.items():
                own[name].copy_(weight)
        if torch.cuda.is_available() and next(iter(own.values())).is_cuda:
            torch.cuda.current_stream().synchronize()  # another stream frees the snapshot's memory
        self.version = version
        if hasattr(self.inner, "prepare"):
            self.inner.prepare(version)

    def prepare(self, version: int) -> None:
        """Uses the model's present weights for later answers."""
        self.load(self.snapshot(), version)

    def rest(self) -> None:
        """See :class:`kernel_coder.rollout.engine.ManagedEngine`."""
        if hasattr(self.inner, "rest"):
            self.inner.rest()

    def close(self) -> None:
        """See :class:`kernel_coder.rollout.engine.ManagedEngine`."""
        if hasattr(self.inner, "close"):
            self.inner.close()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        *,
        poll: Callable[[], None] | None = None,
        **given: Any,
    ) -> list[Turn]:
        """See :class:`kernel_coder.rollout.engine.RolloutEngine`."""
        found: list[Turn]
        if self.gpu is None:
            found = self.inner.generate(prompts, sampling, seeds, poll=poll, **given)
            return found
        with self.gpu.use() as pause:

            def poll_and_pause() -> None:
                if poll is not None:
                    poll()
                pause()

            found = self.inner.generate(prompts, sampling, seeds, poll=poll_and_pause, **given)
        return found


class LastUse:
    """An engine that records when the first answer is written, and reports when a known number of answers are written.

    Args:
        engine: the engine.
        answers: number of answers that are needed.
        told: called once, when all of them are written.
    """

    def __init__(self, engine: RolloutEngine, answers: int, told: Callable[[], None]) -> None:
        self._engine: Any = engine
        self._left, self._told = answers, told
        self.first_end: float | None = None  # when the first answer was written, by time.perf_counter()
        self.tells_of_ends: bool = getattr(engine, "tells_of_ends", False)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        *,
        poll: Callable[[], None] | None = None,
        ended: Callable[[int, Turn], None] | None = None,
        **given: Any,
    ) -> list[Turn]:
        """See :class:`kernel_coder.rollout.engine.RolloutEngine`."""
        if ended is not None:
            given["ended"] = self._noting(ended)
        found: list[Turn] = self._engine.generate(prompts, sampling, seeds, poll=poll, **given)
        self._note_end()
        self._left -= len(found)
        if self._left == 0:
            self._told()
        return found

    def _noting(self, ended: Callable[[int, Turn], None]) -> Callable[[int, Turn], None]:
        def note(place: int, turn: Turn) -> None:
            self._note_end()
            ended(place, turn)

        return note

    def _note_end(self) -> None:
        if self.first_end is None:
            self.first_end = time.perf_counter()
