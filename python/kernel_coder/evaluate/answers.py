"""What is asked of a model, what comes back, and the code in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from kernel_coder.ops import parse_response
from kernel_coder.prompts import Message
from kernel_coder.tasks import Task


@dataclass(frozen=True, slots=True)
class Request:
    """One answer that is wanted. ``messages`` is a conversation: it can hold earlier turns."""

    task: Task
    sample: int  # counted from 0
    messages: tuple[Message, ...]
    seed: int


class Asked(Protocol):
    """What a model needs to know of a request."""

    @property
    def messages(self) -> tuple[Message, ...]: ...

    @property
    def seed(self) -> int: ...


AskedT = TypeVar("AskedT", bound=Asked)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said, with the beginning that the template put into its mouth."""

    text: str
    finish_reason: str  # stop; length: cut short; refused: the model was not asked, and problem says why
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    problem: str | None = None
    reasoning: str | None = None  # what a server gives apart from the text
    seconds: float | None = field(default=None, compare=False)  # taken; of several written together, each one's share


Poll = Callable[[], None]


class Model(Protocol):
    """Anything that answers requests: in any order, each as soon as it is there."""

    def answer(self, requests: Sequence[AskedT], poll: Poll) -> Iterator[tuple[AskedT, Answer]]:
        """``poll`` is called often. It may raise to abandon the work, and add requests, which may then be answered."""
        ...

    def close(self) -> None:
        """Gives memory and connections back."""
        ...


def candidate(text: str) -> tuple[str | None, str | None]:
    """The code that is judged, and why there is none; one of them is None.

    The form that :func:`kernel_coder.ops.parse_response` describes is read as leniently as it can be, so that any model
    can be asked: the first code block of the answer. What a reasoning model thinks before ``</think>`` is passed over.

    >>> candidate("<think>Maybe ```x```?</think> Here: \\n```python\\nclass ModelNew: ...\\n```")
    ('class ModelNew: ...', None)
    >>> candidate("I cannot do that.")
    (None, 'the answer holds no code block')
    """
    said, begun, _ = text.rpartition("</think>")[2].partition("<think>")
    response = parse_response(said)
    code = response.code
    if code is not None and code.strip():
        return code, None
    if not said.strip() and not begun:
        return None, "the answer is empty"
    if begun or "```" in (response.thinking or ""):
        return None, "the answer holds no code block after its thinking"
    if "```" in said:
        return None, "the answer's code block is empty"
    return None, "the answer holds no code block"
