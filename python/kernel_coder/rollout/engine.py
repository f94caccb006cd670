"""The interface of a rollout engine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kernel_coder.rollout.types import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters.

    A token is drawn from softmax(logits / temperature), restricted to ``top_k`` and ``top_p`` (nucleus). Its log-prob
    is that of the *unrestricted* distribution at the same temperature, so that it can be compared with the trainer's.
    Without a restriction it is exactly the log-prob of the draw. With temperature 0 the most likely token is taken,
    with its log-prob at temperature 1.
    """

    max_completion_length: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


class ManagedEngine(Protocol):
    """Further methods of an engine whose weights are a copy, such as those of a server."""

    def prepare(self, version: int) -> None:
        """Gives the engine the model's present weights unless it has this version (number of updates) of them."""

    def rest(self) -> None:
        """Called when no answers are needed until the next :meth:`prepare`."""

    def close(self) -> None:
        """Frees what the engine holds outside of this process."""


class RolloutEngine(Protocol):
    """Generates answers to prompts with the current weights."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        *,
        poll: Callable[[], None] | None = None,
    ) -> list[Turn]:
        """Return one turn for each prompt, in order.

        The random numbers of answer ``i`` depend only on ``seeds[i]``, not on the rest of the batch. ``poll`` is called
        often and may raise to stop.
        """
        ...


def completion_seed(*parts: int | str) -> int:
    """Return a 63-bit seed from values that identify a completion, such as (run seed, step, task id, sample).

    >>> completion_seed(42, 0, "task", 1) == completion_seed(42, 0, "task", 1) != completion_seed(42, 0, "task", 2)
    True
    """
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
