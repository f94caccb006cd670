"""The stage between answers and advantages: what the rewards say, and how a person reads it."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from torch import Tensor

from kernel_coder.judge import Verdict
from kernel_coder.prompts import Message
from kernel_coder.rewards import RewardSet, RewardTable
from kernel_coder.rollout import Rollout, Turn, completion_seed
from kernel_coder.run.errors import UsageError
from kernel_coder.train.batch import finite_or_nan
from kernel_coder.train.config import ShareRejectionConfig, TrainConfig
from kernel_coder.train.setup import Session


def reward(
    rewards: RewardSet, rollouts: Sequence[Rollout], step: int, factors: Mapping[str, float] | None = None
) -> RewardTable:
    """Scores every answer of every turn; the columns are TRL's."""
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    tasks = [rollout.task for rollout in rollouts for _ in rollout.turns]
    said = [answer for rollout in rollouts for answer in rollout.answers]
    verdicts = verdicts_of(rollouts)
    columns = {} if verdicts is None else {"verdict": verdicts}
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


def verdicts_of(rollouts: Sequence[Rollout]) -> list[Verdict] | None:
    """On the answers of all turns, one rollout after another; None if nothing judges."""
    found = [verdict for rollout in rollouts for verdict in rollout.verdicts]
    return None if not found or any(verdict is None for verdict in found) else found


def rejected_by_share(
    config: TrainConfig, rollouts: Sequence[Rollout], seed: tuple[int | str, ...]
) -> list[bool] | None:
    """Which turns are left out of the loss because their own kernels do little of the work; None: that is not asked."""
    rule = config.share_rejection
    if rule.threshold is None:
        return None
    found = []
    for i, rollout in enumerate(rollouts):
        for k, verdict in enumerate(rollout.verdicts):
            number = completion_seed(*seed, "share", i, rollout.task.id, k) / 2**63
            found.append(verdict.correct and number >= keep_probability(verdict, rule))
    return found


def keep_probability(verdict: Verdict, rule: ShareRejectionConfig) -> float:
    """Of a correct answer: (share - threshold) / width, cut to 0 and 1; 1 if it is fast enough anyway.

    >>> from kernel_coder.judge import example_verdict
    >>> shares = [0.2, 0.3, 0.35, 0.5]
    >>> rule = ShareRejectionConfig(threshold=0.3)
    >>> [round(keep_probability(example_verdict(kernel_share=s), rule), 9) for s in shares]
    [0.0, 0.0, 0.5, 1.0]
    """
    if verdict.kernel_share is None:
        raise UsageError(
            "share_rejection goes by the judge's profile of a GPU, and a correct answer has none: "
            f"it ran on {verdict.device}"
        )
    if rule.keep_from_speedup is not None and (verdict.speedup or 0.0) >= rule.keep_from_speedup:
        return 1.0
    assert rule.threshold is not None
    return min(max((verdict.kernel_share - rule.threshold) / rule.width, 0.0), 1.0)


def thinking_and_answer(
    config: TrainConfig, session: Session, rollouts: Sequence[Rollout], table: RewardTable
) -> tuple[list[float | None], tuple[Tensor, list[int]] | None]:
    """The totals for the tokens of each turn's answer, and for those of its reasoning; None: they are the same."""
    weights, others = config.advantages.thinking_weights, config.advantages.answer_weights
    if not weights:
        return table.total, None
    decode = session.policy.tokenizer.decode
    lengths = [
        thinking_length(turn, answer[: len(answer) - len(turn.text)], decode)
        for rollout in rollouts
        for turn, answer in zip(rollout.turns, rollout.answers, strict=True)
    ]
    return session.rewards.totals(table, others), (finite_or_nan(session.rewards.totals(table, weights)), lengths)


def thinking_length(turn: Turn, begun: str, decode: Callable[..., Any]) -> int:
    """How many of an answer's tokens, from its first one, are of its reasoning, the closing tag included.

    All of an answer that never ends its reasoning; none of one that has not begun any, or had ended it already.
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


def bounds_of(rollouts: Sequence[Rollout]) -> list[int]:
    """Where the turns of each rollout begin, among the turns of all."""
    return [0, *itertools.accumulate(len(rollout.turns) for rollout in rollouts)]


def describe(
    step: int, group: int, rollouts: Sequence[Rollout], table: RewardTable, advantages: Tensor | None = None
) -> Iterator[dict[str, Any]]:
    """A line of ``samples.jsonl`` for every rollout: its last answer, and every turn if there may be several.

    Without advantages it is an evaluation, and its id says so.
    """
    bounds = bounds_of(rollouts)
    for i, rollout in enumerate(rollouts):
        turns = [_turn(rollout, k, bounds[i] + k, table, advantages) for k in range(len(rollout.turns))]
        line = {
            "step": step,
            "id": f"{'eval/' if advantages is None else ''}{step}/{i // group}/{rollout.task.id}/{i % group}",
            "task": rollout.task.id,
            "prompt": rollout.shown[0],
            **turns[-1],
        }
        if len(turns) > 1:
            replies = [reply_in(messages) for messages in rollout.shown]
            line["turns"] = [{"reply": reply, **turn} for reply, turn in zip(replies, turns, strict=True)]
        yield line


def _turn(rollout: Rollout, k: int, place: int, table: RewardTable, advantages: Tensor | None) -> dict[str, Any]:
    turn = rollout.turns[k]
    found: dict[str, Any] = {
        "completion": rollout.answers[k],
        "finish_reason": turn.finish_reason,
        "tokens": len(turn.completion_ids),
        "logprob": sum(turn.logprobs),
        "reward": table.total[place],
        "rewards": {name: values[place] for name, values in table.parts.items()},
    }
    if advantages is not None:
        found["advantage"] = float(advantages[place])
    if rollout.verdicts and rollout.verdicts[k] is not None:
        # As it is: a seed can have more than 64 bits.
        found["verdict"] = orjson.Fragment(rollout.verdicts[k].to_json())
    return found


def reply_in(messages: Sequence[Message]) -> list[Message]:
    """What was said to the answer before: the messages behind it; nothing in a first prompt.

    >>> told = [{"role": "user", "content": "Wrong."}]
    >>> reply_in([{"role": "user", "content": "?"}, {"role": "assistant", "content": "x"}, *told]) == told
    True
    >>> reply_in([{"role": "user", "content": "?"}])
    []
    """
    places = [i for i, message in enumerate(messages[:-1]) if message["role"] == "assistant"]
    return list(messages[places[-1] + 1 :]) if places else []
