"""The reward for an answer in the requested form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from kernel_coder.rewards.completions import Completion, completion_text
from kernel_coder.rewards.errors import RewardError
from kernel_coder.rewards.registry import register_reward


def _check(partial: float) -> None:
    if not 0.0 <= partial < 1.0:
        raise RewardError(f"partial must be at least 0 and less than 1; got {partial}")


@register_reward("format", check=_check)
def format_reward(
    prompts: Sequence[Any],
    completions: Sequence[Completion],
    *,
    partial: Annotated[float, Field(description="reward for all three pieces without the right arrangement")] = 0.0,
    **columns: Any,
) -> list[float | None]:
    """Return 1 for ``<thinking>...</thinking><answer>...</answer>`` with one fenced block of code in the answer.

    Args:
        prompts: not used.
        completions: texts or conversations.
        partial: reward for an answer with thinking, answer and code in a wrong arrangement. Each of these three pieces
            that is present earns a third of it. 0 makes the reward either 0 or 1.
        columns: not used.

    Returns:
        1.0 where :func:`kernel_coder.ops.parse_response` reports ok, else ``partial * pieces / 3``. Never None.

    Raises:
        RewardError: ``partial`` is not in ``[0, 1)``; a broken answer must be worth less than a good one.

    >>> good = "<thinking>why</thinking><answer>```python\\nx = 1\\n```</answer>"
    >>> format_reward(["?", "?"], [good, "x = 1"])
    [1.0, 0.0]
    """
    from kernel_coder import ops

    _check(partial)
    rewards: list[float | None] = []
    for completion in completions:
        response = ops.parse_response(completion_text(completion))
        pieces = sum(piece is not None for piece in (response.thinking, response.answer, response.code))
        rewards.append(1.0 if response.ok else partial * pieces / 3)
    return rewards
