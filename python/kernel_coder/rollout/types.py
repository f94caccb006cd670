"""What a rollout engine returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernel_coder.tasks import Task

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and its answer. ``logprobs[i]`` is that of ``completion_ids[i]``, as sampled (see ``Sampling``)."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]  # the end-of-sequence token included, if it was sampled
    logprobs: tuple[float, ...]
    text: str  # without special tokens
    finish_reason: FinishReason  # "length": cut by max_completion_length

    def __post_init__(self) -> None:
        if len(self.logprobs) != len(self.completion_ids):
            raise ValueError(
                "a turn has one log-prob for each completion token; "
                f"got {len(self.logprobs)} for {len(self.completion_ids)}"
            )


@dataclass(frozen=True, slots=True)
class Rollout:
    """A task and the turns spent on it."""

    task: Task
    turns: tuple[Turn, ...]
