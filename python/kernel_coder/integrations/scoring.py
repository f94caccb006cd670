"""The steps that all adapters share: judging answers, and computing rewards from verdicts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from kernel_coder import ops
from kernel_coder.judge import Outcome, Verdict
from kernel_coder.judge.feedback import unjudged
from kernel_coder.judge.supervisor.batching import AnyJudge
from kernel_coder.judge.supervisor.client import AsyncClient
from kernel_coder.prompts import Message, build_feedback
from kernel_coder.rewards import RewardSet, RewardTable, reward_preset
from kernel_coder.tasks.task import Task


def task_of(reference: str, *, task_id: str | None = None, backend: str | None = None, **others: Any) -> Task:
    """Return the task of a data set's row.

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
    """Return the verdict on an answer without code; None if it has some."""
    response = ops.parse_response(answer)
    if response.code is not None:
        return None
    reason = response.error or "the answer holds no code"
    return unjudged(task, answer, Outcome.FORMAT_ERROR, reason, backend=task.backend, device=device)


def verdicts_on(judge: AnyJudge, tasks: Sequence[Task], answers: Sequence[str]) -> list[Verdict]:
    """Return a verdict for each answer, in order. Equal code for one task is judged once.

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


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, AsyncClient]] = WeakKeyDictionary()


def client_of_loop(url: str) -> AsyncClient:
    """Return the client of a service on the running event loop, whose connections belong to that loop."""
    clients = _clients.setdefault(asyncio.get_running_loop(), {})
    if url not in clients:
        clients[url] = AsyncClient(url)
    return clients[url]


async def verdict_on(client: AsyncClient, task: Task, answer: str) -> Verdict:
    """Return the verdict on one answer, from the HTTP service."""
    if (verdict := format_error(task, answer, "none")) is not None:
        return verdict
    code = ops.parse_response(answer).code
    assert code is not None
    return await client.evaluate(task, code, task.backend)


def reward_set(rewards: RewardSet | str | Sequence[Any] | Mapping[str, Any]) -> RewardSet:
    """Return a set of rewards from a preset's name, or from the value of a recipe's section ``rewards``.

    >>> reward_set("kevin").labels
    ('correct', 'speedup')
    """
    if isinstance(rewards, RewardSet):
        return rewards
    if isinstance(rewards, str):
        return RewardSet(reward_preset(rewards))
    return RewardSet([rewards] if isinstance(rewards, Mapping) else rewards)


def rows(path: str, template: str = "kernel_coder") -> list[dict[str, Any]]:
    """Return the tasks of a data set as rows for other libraries.

    Args:
        path: a data set as in ``data.path`` of a recipe: ``packaged``, a hub data set, a file, a folder.
        template: the prompt template.

    Returns:
        For each task ``prompt`` (messages), ``reference``, ``solution``, ``task_id``, ``backend``, ``precision`` and
        ``entry_point``.

    >>> sorted(rows("packaged:pointwise", "nano")[0])
    ['backend', 'entry_point', 'precision', 'prompt', 'reference', 'solution', 'task_id']
    """
    from kernel_coder.prompts import build_messages
    from kernel_coder.tasks import load_tasks

    return [
        {
            "prompt": [dict(message) for message in build_messages(task, template)],
            "reference": task.reference,
            "solution": task.solution,
            "task_id": task.id,
            "backend": task.backend,
            "precision": task.precision,
            "entry_point": task.entry_point,
        }
        for task in load_tasks(path)
    ]


def totals(table: RewardTable, verdicts: Sequence[Verdict]) -> list[float | None]:
    """Return the total rewards of answers; None where the judge itself failed, even if other rewards have a value.

    >>> from kernel_coder.judge import example_verdict
    >>> totals(reward_set("kernel_coder")(["?"], ["!"], solution=[None]), [example_verdict("harness_failed")])
    [None]
    """
    return [total if verdict.is_scored else None for total, verdict in zip(table.total, verdicts, strict=True)]


@dataclass(frozen=True)
class Step:
    """The result of an answer in an episode.

    Attributes:
        verdict: the verdict on the answer.
        reward: the weighted sum; None if the judge could not score it.
        done: whether the conversation ends, because the answer is correct, could not be scored, or was the last one.
        feedback: messages for the model; empty if the conversation ends.
    """

    verdict: Verdict
    reward: float | None
    done: bool
    feedback: tuple[Message, ...]


class Episode:
    """A conversation about one task: the model answers, is told the verdict, and answers again.

    Args:
        judge: an open judge.
        task: the task.
        rewards: see :func:`reward_set`.
        max_turns: highest number of answers.
        feedback_template: see :func:`kernel_coder.prompts.build_feedback`.
    """

    def __init__(
        self,
        judge: AnyJudge,
        task: Task,
        rewards: RewardSet,
        *,
        max_turns: int = 1,
        feedback_template: str = "feedback",
    ) -> None:
        self.judge, self.task, self.rewards = judge, task, rewards
        self.max_turns, self.feedback_template, self.turns = max_turns, feedback_template, 0

    def answer(self, text: str) -> Step:
        """Judge the next answer."""
        self.turns += 1
        (verdict,) = verdicts_on(self.judge, [self.task], [text])
        columns: dict[str, Any] = {
            "verdict": [verdict],
            "reference": [self.task.reference],
            "solution": [self.task.solution],
        }
        (reward,) = totals(self.rewards([""], [text], task=[self.task], **columns), [verdict])
        done = reward is None or verdict.correct or self.turns >= self.max_turns
        feedback: tuple[Message, ...] = ()
        if not done:
            told = build_feedback(self.task, verdict, self.feedback_template, turn=self.turns, max_turns=self.max_turns)
            feedback = tuple(told)
        return Step(verdict, reward, done, feedback)
