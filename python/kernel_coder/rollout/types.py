"""What a rollout engine returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from kernel_coder.prompts import Message
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

    def continues(self, earlier: Turn) -> bool:
        """Whether the prompt begins with all ids of the earlier turn, so that one forward pass computes both."""
        said = len(earlier.prompt_ids)
        end = said + len(earlier.completion_ids)
        return (
            len(self.prompt_ids) > end
            and self.prompt_ids[said:end] == earlier.completion_ids
            and self.prompt_ids[:said] == earlier.prompt_ids
        )


@dataclass(frozen=True, slots=True)
class Rollout:
    """A task and the turns spent on it.

    ``shown`` are the messages that each turn's prompt encodes, ``verdicts`` what was said about each turn (the judge's;
    None where it was not judged). Engines that only sample leave both empty.
    """

    task: Task
    turns: tuple[Turn, ...]
    shown: tuple[tuple[Message, ...], ...] = ()
    verdicts: tuple[Any, ...] = ()

    @property
    def answers(self) -> list[str]:
        """What was said in each turn, with the beginning that the prompt put into the model's mouth."""
        return [answer_to(messages, turn) for messages, turn in zip(self.shown, self.turns, strict=True)]


def answer_to(messages: tuple[Message, ...] | list[Message], turn: Turn) -> str:
    """The text of an answer, from its beginning in the prompt on."""
    last = messages[-1]
    return (last["content"] if last["role"] == "assistant" else "") + turn.text
