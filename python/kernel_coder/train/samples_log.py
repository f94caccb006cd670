"""The lines of ``samples.jsonl``: every rollout of a step as readable text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from torch import Tensor

from kernel_coder.prompts import Message
from kernel_coder.rewards import RewardTable
from kernel_coder.rollout import Rollout
from kernel_coder.train.groups import Answers


def sample_lines(step: int, answers: Answers, advantages: Tensor | None = None) -> Iterator[dict[str, Any]]:
    """Yield a line for every rollout: its last answer, and, if it has several turns, all of them.

    Args:
        step: the step that the answers belong to.
        answers: the rollouts and their rewards.
        advantages: of each turn; None for an evaluation, whose ids then begin with ``eval/``.
    """
    bounds, group = answers.bounds, answers.group
    for i, rollout in enumerate(answers.rollouts):
        turns = [_turn(rollout, k, bounds[i] + k, answers.table, advantages) for k in range(len(rollout.turns))]
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
    if turn.version is not None:
        found["version"] = turn.version
    if advantages is not None:
        found["advantage"] = float(advantages[place])
    if rollout.verdicts and rollout.verdicts[k] is not None:
        # Inserted as text, because orjson cannot write seeds of more than 64 bits.
        found["verdict"] = orjson.Fragment(rollout.verdicts[k].to_json())
    return found


def reply_in(messages: Sequence[Message]) -> list[Message]:
    """Return the messages of a prompt after its last answer, which reply to that answer; empty for a first prompt.

    >>> told = [{"role": "user", "content": "Wrong."}]
    >>> reply_in([{"role": "user", "content": "?"}, {"role": "assistant", "content": "x"}, *told]) == told
    True
    >>> reply_in([{"role": "user", "content": "?"}])
    []
    """
    answers = [i for i, message in enumerate(messages[:-1]) if message["role"] == "assistant"]
    return list(messages[answers[-1] + 1 :]) if answers else []
