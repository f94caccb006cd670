"""What every adapter does: an answer becomes a verdict, and verdicts become rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernel_coder import ops
from kernel_coder.judge import Outcome, Verdict
from kernel_coder.judge.feedback import unjudged
from kernel_coder.judge.supervisor.batching import AnyJudge
from kernel_coder.judge.supervisor.client import AsyncClient
from kernel_coder.rewards import RewardSet, reward_preset
from kernel_coder.tasks.task import Task


def task_of(reference: str, *, task_id: str | None = None, backend: str | None = None, **others: Any) -> Task:
    """The task of a data set's row.

    >>> task_of("class Model: ...", backend="cuda").backend
    'cuda'
    """
    from kernel_coder.run.hashes import sha256_text

    known = {name: value for name, value in others.items() if value is not None}
    return Task(
        id=task_id or sha256_text(reference)[:12],
        source="integration",
        reference=reference,
        backend=backend or "triton",
        **known,
    )


def format_error(task: Task, answer: str, device: str) -> Verdict | None:
    """The verdict on an answer without code; None if it has some."""
    response = ops.parse_response(answer)
    if response.code is not None:
        return None
    reason = response.error or "the answer holds no code"
    return unjudged(task, answer, Outcome.FORMAT_ERROR, reason, backend=task.backend, device=device)


def verdicts_on(judge: AnyJudge, tasks: Sequence[Task], answers: Sequence[str]) -> list[Verdict]:
    """A verdict for each answer, in order. Equal code for one task is judged once.

    >>> from types import SimpleNamespace
    >>> verdicts_on(SimpleNamespace(device="cpu"), [task_of("class Model: ...")], ["no code"])[0].outcome.value
    'format_error'
    """
    found: dict[int, Verdict] = {}
    wanted: dict[tuple[str, str], list[int]] = {}
    for index, (task, answer) in enumerate(zip(tasks, answers, strict=True)):
        if (verdict := format_error(task, answer, judge.device)) is not None:
            found[index] = verdict
            continue
        code = ops.parse_response(answer).code
        assert code is not None
        wanted.setdefault((task.reference, code), []).append(index)
    pairs = [(tasks[places[0]], code, tasks[places[0]].backend) for (_, code), places in wanted.items()]
    if pairs:
        for places, verdict in zip(wanted.values(), judge.evaluate_many(pairs), strict=True):
            found.update(dict.fromkeys(places, verdict))
    return [found[index] for index in range(len(answers))]


async def verdict_on(client: AsyncClient, task: Task, answer: str) -> Verdict:
    """The verdict on one answer, from the HTTP service."""
    if (verdict := format_error(task, answer, "none")) is not None:
        return verdict
    code = ops.parse_response(answer).code
    assert code is not None
    return await client.evaluate(task, code, task.backend)


def reward_set(rewards: RewardSet | str | Sequence[Any] | Mapping[str, Any]) -> RewardSet:
    """A set of rewards from a preset's name, or from what a recipe's section ``rewards`` holds.

    >>> reward_set("kevin").labels
    ('correct', 'speedup')
    """
    if isinstance(rewards, RewardSet):
        return rewards
    if isinstance(rewards, str):
        return RewardSet(reward_preset(rewards))
    return RewardSet([rewards] if isinstance(rewards, Mapping) else rewards)
