"""Computes rewards, decides which answers are left out of the loss, and computes separate rewards for the reasoning."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from kernel_coder.judge import Verdict
from kernel_coder.rewards import RewardError, RewardSet, RewardTable
from kernel_coder.rollout import Rollout, Turn, completion_seed
from kernel_coder.run.errors import UsageError
from kernel_coder.train.batch import finite_or_nan
from kernel_coder.train.config import AdvantagesConfig, ShareRejectionConfig
from kernel_coder.train.groups import Answers, verdicts_of


def reward(
    rewards: RewardSet, rollouts: Sequence[Rollout], step: int, factors: Mapping[str, float] | None = None
) -> RewardTable:
    """Computes the rewards of the answers of all turns. The reward functions get TRL's columns.

    Args:
        rewards: the reward functions and their weights.
        rollouts: the answers.
        step: for weights that change with the step.
        factors: factors of the weights in the present stage, by label; None: there are no stages.
    """
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    tasks = [rollout.task for rollout in rollouts for _ in rollout.turns]
    said = [answer for rollout in rollouts for answer in rollout.answers]
    verdicts = verdicts_of(rollouts)
    columns = {} if verdicts is None else {"verdict": verdicts}
    try:
        return rewards(
            [list(messages) for rollout in rollouts for messages in rollout.shown],
            [[{"role": "assistant", "content": answer}] for answer in said],
            step=step,
            factors=factors,
            task=tasks,
            solution=[task.solution for task in tasks],
            reference=[task.reference for task in tasks],
            completion_ids=[list(turn.completion_ids) for turn in turns],
            finish_reason=[turn.finish_reason for turn in turns],
            **columns,
        )
    except RewardError as error:
        raise UsageError(str(error)) from error


def rejected_by_share(
    rule: ShareRejectionConfig, rollouts: Sequence[Rollout], seed: tuple[int | str, ...]
) -> list[bool] | None:
    """Return for each turn whether it is left out of the loss because its own kernels take little of the device time.

    None if the rule is off. The seed makes the choice reproducible.
    """
    if rule.threshold is None:
        return None
    found = []
    for i, rollout in enumerate(rollouts):
        for k, verdict in enumerate(rollout.verdicts):
            number = completion_seed(*seed, "share", i, rollout.task.id, k) / 2**63
            found.append(verdict.correct and number >= keep_probability(verdict, rule))
    return found


def keep_probability(verdict: Verdict, rule: ShareRejectionConfig) -> float:
    """Return the probability that a correct answer stays in the loss: (share - threshold) / width, limited to [0, 1].

    It is 1 for an answer with a speedup of at least ``keep_from_speedup``.

    >>> from kernel_coder.judge import example_verdict
    >>> shares = [0.2, 0.3, 0.35, 0.5]
    >>> rule = ShareRejectionConfig(threshold=0.3)
    >>> [round(keep_probability(example_verdict(kernel_share=s), rule), 9) for s in shares]
    [0.0, 0.0, 0.5, 1.0]
    """
    if verdict.kernel_share is None:
        raise UsageError(
            "share_rejection needs the judge's profile of a GPU, and a correct answer has none: "
            f"it ran on {verdict.device}"
        )
    if rule.keep_from_speedup is not None and (verdict.speedup or 0.0) >= rule.keep_from_speedup:
        return 1.0
    assert rule.threshold is not None
    return min(max((verdict.kernel_share - rule.threshold) / rule.width, 0.0), 1.0)


def token_rewards(
    answers: Answers, rewards: RewardSet, config: AdvantagesConfig, decode: Callable[..., Any]
) -> tuple[Tensor, tuple[Tensor, list[int]] | None]:
    """Return the total reward of each turn, separately for its reasoning if ``thinking_weights`` are set.

    Args:
        answers: the answers and their rewards.
        rewards: compute totals with other weights.
        config: the weights of reasoning and answer.
        decode: the tokenizer's.

    Returns:
        The total rewards of the turns (float64 [turns], NaN: not scored). If reasoning has other weights, these hold
        for the tokens after the reasoning; the second value then has the totals for the reasoning and the number of
        its tokens in each turn. Otherwise the second value is None.
    """
    if not config.thinking_weights:
        return finite_or_nan(answers.table.total), None
    lengths = [
        thinking_length(turn, answer[: len(answer) - len(turn.text)], decode)
        for rollout in answers.rollouts
        for turn, answer in zip(rollout.turns, rollout.answers, strict=True)
    ]
    thinking = finite_or_nan(rewards.totals(answers.table, config.thinking_weights))
    return finite_or_nan(rewards.totals(answers.table, config.answer_weights)), (thinking, lengths)


def thinking_length(turn: Turn, begun: str, decode: Callable[..., Any]) -> int:
    """Return the number of tokens at the start of an answer that belong to its reasoning, the closing tag included.

    It is all tokens if the reasoning never ends, and 0 if there is no reasoning or the prompt already closed it.

    Args:
        turn: the answer.
        begun: the beginning of the answer that the prompt gave.
        decode: the tokenizer's.
    """
    ids = turn.completion_ids

    def text(count: int) -> str:
        return begun + str(decode(list(ids[:count]), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    whole = text(len(ids))
    if "<thinking>" not in whole or "</thinking>" in begun:
        return 0
    if "</thinking>" not in whole:
        return len(ids)
    return bisect.bisect_left(range(len(ids) + 1), True, key=lambda count: "</thinking>" in text(count))
