"""The stage between answers and advantages: what the judge says, what the rewards say, and how a person reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from torch import Tensor

from kernel_coder.judge import Verdict
from kernel_coder.rewards import RewardSet, RewardTable
from kernel_coder.rollout import Rollout, Turn
from kernel_coder.train.judging import AnswerJudge
from kernel_coder.train.setup import Prompt


def verdicts_on(
    judge: AnswerJudge, prompts: Sequence[Prompt], rollouts: Sequence[Rollout], poll: Callable[[], None] | None = None
) -> list[Verdict] | None:
    """What the judge says about every answer; None if the run has none."""
    return judge([rollout.task for rollout in rollouts], answers(prompts, rollouts), poll)


def reward(
    rewards: RewardSet,
    prompts: Sequence[Prompt],
    rollouts: Sequence[Rollout],
    verdicts: Sequence[Verdict] | None,
    step: int,
    factors: Mapping[str, float] | None = None,
) -> RewardTable:
    """Scores every answer; the columns are TRL's."""
    tasks = [rollout.task for rollout in rollouts]
    last: list[Turn] = [rollout.turns[-1] for rollout in rollouts]
    columns = {} if verdicts is None else {"verdict": verdicts}
    return rewards(
        [prompt.messages for prompt in repeated(prompts, rollouts)],
        [[{"role": "assistant", "content": said}] for said in answers(prompts, rollouts)],
        step=step,
        factors=factors,
        task=tasks,
        solution=[task.solution for task in tasks],
        reference=[task.reference for task in tasks],
        completion_ids=[list(turn.completion_ids) for turn in last],
        finish_reason=[turn.finish_reason for turn in last],
        **columns,
    )


def repeated(prompts: Sequence[Prompt], rollouts: Sequence[Rollout]) -> list[Prompt]:
    """The prompt of each answer: groups are neighbours."""
    return [prompt for prompt in prompts for _ in range(len(rollouts) // len(prompts))]


def answers(prompts: Sequence[Prompt], rollouts: Sequence[Rollout]) -> list[str]:
    """What was said last, with the beginning that the template put into the model's mouth."""
    asked = [prompt.messages[-1] for prompt in repeated(prompts, rollouts)]
    begun = [message["content"] if message["role"] == "assistant" else "" for message in asked]
    return [begin + rollout.turns[-1].text for begin, rollout in zip(begun, rollouts, strict=True)]


def describe(
    step: int,
    prompts: Sequence[Prompt],
    rollouts: Sequence[Rollout],
    verdicts: Sequence[Verdict] | None,
    table: RewardTable,
    advantages: Tensor | None = None,
) -> Iterator[dict[str, Any]]:
    """A line of ``samples.jsonl`` for every answer; without advantages it is an evaluation, and its id says so."""
    group = len(rollouts) // len(prompts)
    said = answers(prompts, rollouts)
    for i, rollout in enumerate(rollouts):
        turn = rollout.turns[-1]
        line = {
            "step": step,
            "id": f"{'eval/' if advantages is None else ''}{step}/{i // group}/{rollout.task.id}/{i % group}",
            "task": rollout.task.id,
            "prompt": prompts[i // group].messages,
            "completion": said[i],
            "finish_reason": turn.finish_reason,
            "tokens": len(turn.completion_ids),
            "logprob": sum(turn.logprobs),
            "reward": table.total[i],
            "rewards": {name: values[i] for name, values in table.parts.items()},
        }
        if advantages is not None:
            line["advantage"] = float(advantages[i])
        if verdicts is not None:
            line["verdict"] = orjson.Fragment(verdicts[i].to_json())  # as it is: a seed can have more than 64 bits
        yield line
