"""The results of a rollout engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from kernel_coder.prompts import Message
from kernel_coder.tasks import Task

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt and its answer. ``logprobs[i]`` belongs to ``completion_ids[i]``; see :class:`Sampling`."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]  # including the end-of-sequence token if it was sampled
    logprobs: tuple[float, ...]
    text: str  # without special tokens
    finish_reason: FinishReason  # "length": reached max_completion_length
    version: int | None = None  # number of updates of the weights that wrote all its tokens; None: unknown

    def __post_init__(self) -> None:
        if len(self.logprobs) != len(self.completion_ids):
            raise ValueError(
                "a turn has one log-prob for each completion token; "
                f"got {len(self.logprobs)} for {len(self.completion_ids)}"
            )

    def continues(self, earlier: Turn) -> bool:
        """Return whether the prompt begins with all ids of the earlier turn, so that one forward pass can compute
        both."""
        before = (*earlier.prompt_ids, *earlier.completion_ids)
        return len(self.prompt_ids) > len(before) and self.prompt_ids[: len(before)] == before


@dataclass(frozen=True, slots=True)
class Rollout:
    """A task and its turns.

    ``shown`` holds the messages of each turn's prompt, ``verdicts`` the judge's verdict on each turn (None: not
    judged). Both are empty if an engine only sampled.
    """

    task: Task
    turns: tuple[Turn, ...]
    shown: tuple[tuple[Message, ...], ...] = ()
    verdicts: tuple[Any, ...] = ()

    @property
    def answers(self) -> list[str]:
        """The text of each turn's answer, including a beginning in the prompt."""
        return [answer_to(messages, turn) for messages, turn in zip(self.shown, self.turns, strict=True)]


def answer_to(messages: tuple[Message, ...] | list[Message], turn: Turn) -> str:
    """Return the text of an answer, including a beginning in the prompt."""
    last = messages[-1]
    return (last["content"] if last["role"] == "assistant" else "") + turn.text
