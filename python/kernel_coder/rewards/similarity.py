"""The reward for code that is similar to the known solution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernel_coder.rewards.completions import Completion, completion_text
from kernel_coder.rewards.errors import RewardError
from kernel_coder.rewards.registry import register_reward
from kernel_coder.tasks import Task


def _check(low: float, high: float, **others: object) -> None:
    if not 0.0 <= low < high <= 1.0:
        raise RewardError(f"low and high must satisfy 0 <= low < high <= 1; got low = {low} and high = {high}")


@register_reward("similarity", check=_check)
def similarity_reward(
    prompts: Sequence[Any],
    completions: Sequence[Completion],
    *,
    solution: Sequence[str | None] | None = None,
    task: Sequence[Task] | None = None,
    autojunk: bool = False,
    scale: float = 1.0,
    low: float = 0.0,
    high: float = 1.0,
    **columns: Any,
) -> list[float | None]:
    """Return the similarity of an answer's code to the known solution: ``scale * clip((r - low) / (high - low), 0,
    1)``.

    ``r`` is ``difflib.SequenceMatcher(None, code, solution, autojunk).ratio()``, between 0 and 1. Wei et al. 2025
    (SWE-RL) reward patches in this way. The reward teaches a model the form of kernels, not their speed. So limit it
    with ``high``, let its weight decay, and combine it with rewards that run the code.

    Args:
        prompts: not used.
        completions: texts or conversations.
        solution: the known solutions; default: those of ``task``.
        task: the tasks.
        autojunk: difflib's rule to ignore frequent characters in long texts. Off by default, because it makes the
            reward depend on the length of the text.
        scale: the highest reward.
        low: similarity at which the reward begins. Any two Python files have some similarity.
        high: similarity at which the reward is highest.
        columns: not used.

    Returns:
        A number for each completion: 0.0 if it holds no code, None if the task has no known solution.

    Raises:
        RewardError: neither ``solution`` nor ``task`` is given, or not ``0 <= low < high <= 1``.

    >>> answer = "<thinking>why</thinking><answer>```python\\nx = 1\\n```</answer>"
    >>> similarity_reward(["?"] * 3, [answer, answer, "no code"], solution=["x = 1", None, "x = 1"])
    [1.0, None, 0.0]
    """
    from kernel_coder import ops

    _check(low, high)
    if solution is None:
        if task is None:
            raise RewardError("reward similarity needs the column solution or the column task; got neither")
        solution = [one.solution for one in task]
    rewards: list[float | None] = [None if known is None else 0.0 for known in solution]
    codes, knowns, places = [], [], []
    for index, (completion, known) in enumerate(zip(completions, solution, strict=True)):
        if known is None:
            continue
        code = ops.parse_response(completion_text(completion)).code
        if code is not None:
            codes.append(code.strip())
            knowns.append(known.strip())
            places.append(index)
    if places:
        ratios = ops.sequence_similarities(codes, knowns, autojunk=autojunk).tolist()
        for index, ratio in zip(places, ratios, strict=True):
            rewards[index] = scale * min(max((ratio - low) / (high - low), 0.0), 1.0)
    return rewards
