"""Requests to a model, its answers, and the code in an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from kernel_coder.ops import parse_response
from kernel_coder.prompts import Message
from kernel_coder.tasks import Task


@dataclass(frozen=True, slots=True)
class Request:
    """Asks for one answer. ``messages`` is a conversation, which may hold earlier turns."""

    task: Task
    sample: int  # index of the sample among those of the task, from 0
    messages: tuple[Message, ...]
    seed: int

    @property
    def key(self) -> Key:
        return self.task.id, self.sample


Key = tuple[str, int]
"""Identifies a sample: the task's id and the sample's index."""


class Asked(Protocol):
    """The attributes of a request that a model uses."""

    @property
    def messages(self) -> tuple[Message, ...]: ...

    @property
    def seed(self) -> int: ...


AskedT = TypeVar("AskedT", bound=Asked)


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's answer. ``text`` includes the beginning of the answer if the prompt template wrote one."""

    text: str
    finish_reason: str  # "stop"; "length": the token limit; "refused": the prompt does not fit, see problem
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    problem: str | None = None
    reasoning: str | None = None  # reasoning that a server returns in a separate field
    seconds: float | None = field(default=None, compare=False)  # time taken; a batch's time is divided by its size


Poll = Callable[[], None]


class Model(Protocol):
    """The interface of a model that answers requests."""

    def answer(self, requests: Sequence[AskedT], poll: Poll) -> Iterator[tuple[AskedT, Answer]]:
        """Yields each answer as soon as it is complete, in any order.

        Calls ``poll`` often. ``poll`` may raise to stop the work, or append to ``requests``.
        """
        ...

    def close(self) -> None:
        """Frees memory and closes connections."""
        ...


def candidate(text: str) -> tuple[str | None, str | None]:
    """Return the code of an answer, or the reason why it holds none: (code, None) or (None, reason).

    The code is the first code block. The tags that :func:`kernel_coder.ops.parse_response` describes are optional, so
    that models that were not trained on them can be evaluated. Text before ``</think>`` is skipped.

    >>> candidate("<think>Maybe ```x```?</think> Here: \\n```python\\nclass ModelNew: ...\\n```")
    ('class ModelNew: ...', None)
    >>> candidate("I cannot do that.")
    (None, 'the answer holds no code block')
    """
    visible, unclosed, _ = text.rpartition("</think>")[2].partition("<think>")
    response = parse_response(visible)
    code = response.code
    if code is not None and code.strip():
        return code, None
    if not visible.strip() and not unclosed:
        return None, "the answer is empty"
    if unclosed or "```" in (response.thinking or ""):
        return None, "the answer holds no code block after its thinking"
    if "```" in visible:
        return None, "the answer's code block is empty"
    return None, "the answer holds no code block"
