"""The interface of a rollout engine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kernel_coder.rollout.types import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn.

    A token is drawn from softmax(logits / temperature) cut to ``top_k`` and ``top_p`` (nucleus). The log-prob that is
    kept is that of the *uncut* distribution at that temperature, which is what the trainer computes, so the two can be
    compared; where nothing is cut it is exactly the probability of the draw. Temperature 0 takes the most likely token
    and keeps its log-prob at temperature 1.
    """

    max_completion_length: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


class RolloutEngine(Protocol):
    """Anything that answers prompts with the current weights."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        *,
        poll: Callable[[], None] | None = None,
    ) -> list[Turn]:
        """One turn for each prompt, in order.

        ``seeds[i]`` alone decides the random numbers of answer ``i``, whatever else is in the batch. ``poll`` is called
        often and may raise to abandon the work.
        """
        ...


def completion_seed(*parts: int | str) -> int:
    """A 63-bit seed from whatever names a completion, for example (run seed, step, task id, sample).

    >>> completion_seed(42, 0, "task", 1) == completion_seed(42, 0, "task", 1) != completion_seed(42, 0, "task", 2)
    True
    """
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
