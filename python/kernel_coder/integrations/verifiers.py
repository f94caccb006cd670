"""verifiers: a taskset with rewards, for one turn and for several. Written for verifiers 0.4 (``verifiers.v1``).

verifiers finds a taskset by the name of a top-level module, so it needs a file of two lines on the path::

    # kernel_tasks.py
    from kernel_coder.integrations.verifiers import KernelEnv, KernelTaskset
    __all__ = ["KernelEnv", "KernelTaskset"]

    kernel-coder serve --device cuda:0 --port 8400
    PYTHONPATH=. vf-eval kernel_tasks --env.turns 3 --env.taskset.tasks packaged --no-push \\
        --model MODEL --client.base-url http://127.0.0.1:8000/v1

The judge is the service at ``--env.taskset.task.url``. An answer that it could not score makes the trace an error
without a reward, which verifiers leaves out and can run again (``--resume``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import verifiers.v1 as vf

from kernel_coder.integrations.scoring import client_of_loop, reward_set, rows, task_of, verdict_on
from kernel_coder.judge import Verdict
from kernel_coder.prompts import build_feedback

__all__ = ["KernelEnv", "KernelTaskset"]


class KernelTaskConfig(vf.TaskConfig):
    """How answers are judged and rewarded."""

    url: str = "http://127.0.0.1:8400"
    """Of the service."""
    preset: str = "kevin"
    """The preset of rewards."""
    feedback_template: str = "feedback"
    """Of the message after an answer; see :func:`kernel_coder.prompts.build_feedback`."""


class KernelTasksetConfig(vf.TasksetConfig):
    """Which tasks there are."""

    task: KernelTaskConfig = KernelTaskConfig()
    tasks: str = "packaged"
    """What ``data.path`` of a recipe takes."""
    prompt_template: str = "kernel_coder"


class KernelData(vf.TaskData):
    """One row."""

    reference: str
    backend: str
    precision: str
    entry_point: str
    solution: str | None = None


class KernelTask(vf.Task[KernelData, vf.State, KernelTaskConfig]):
    """A module to rewrite."""

    async def verdict(self, answer: str) -> Verdict:
        """Return the verdict on an answer. The service judges equal code for one task once.

        Raises:
            RuntimeError: the judge could not score it.
        """
        data = self.data
        task = task_of(
            data.reference,
            task_id=data.id,
            backend=data.backend,
            precision=data.precision,
            entry_point=data.entry_point,
        )
        verdict = await verdict_on(client_of_loop(self.config.url), task, answer)
        if not verdict.is_scored:
            raise RuntimeError(f"the judge could not score the answer: {verdict.reason}")
        return verdict

    @vf.reward(weight=1.0)
    async def kernel(self, trace: vf.Trace) -> float:
        """Return the weighted sum of the preset's rewards, of the last answer."""
        answer = trace.last_reply
        verdict = await self.verdict(answer)
        columns: dict[str, Any] = {
            "reference": [self.data.reference],
            "solution": [self.data.solution],
            "verdict": [verdict],
        }
        table = await asyncio.to_thread(reward_set(self.config.preset), [""], [answer], **columns)
        if table.total[0] is None:
            raise RuntimeError("none of the rewards applies to the answer")
        return table.total[0]

    @vf.metric
    async def found(self, trace: vf.Trace) -> Mapping[str, float]:
        """Whether the last answer is correct, compiled, and how fast it is."""
        verdict = await self.verdict(trace.last_reply)
        return {
            "correct": float(verdict.correct),
            "compiled": float(verdict.compiled),
            "speedup": verdict.speedup_low or 0.0,
        }


class KernelTaskset(vf.Taskset[KernelTask, KernelTasksetConfig]):
    """The tasks of a data set."""

    def load(self) -> Iterable[KernelTask]:
        """Yield one task for each row."""
        for row in rows(self.config.tasks, self.config.prompt_template):
            system = "\n".join(one["content"] for one in row["prompt"] if one["role"] == "system")
            asked = "\n".join(one["content"] for one in row["prompt"] if one["role"] == "user")
            known = {name: row[name] for name in ("reference", "backend", "precision", "entry_point", "solution")}
            data = KernelData(id=row["task_id"], prompt=asked, system_prompt=system or None, **known)
            yield KernelTask(data, self.config.task)


class KernelEnvConfig(vf.EnvConfig):
    """The model, and how often it may answer."""

    agent: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime=vf.SubprocessConfig())
    turns: int = 1
    """Highest number of answers to a task."""


class KernelEnv(vf.Env[KernelEnvConfig]):
    """The model answers, is told the verdict, and answers again until it is correct or the turns are used up."""

    async def run(self, task: KernelTask, agents: vf.Agents) -> None:
        """One conversation."""
        if self.config.turns == 1:
            await agents.agent.run(task)
            return
        asked = task.data.prompt_text
        async with agents.agent.interaction(task.with_data(prompt=None)) as chat:
            reply = await chat.turn(asked)
            for turn in range(1, self.config.turns):
                if reply.terminated:
                    return
                verdict = await task.verdict(reply.last_reply)
                if verdict.correct:
                    return
                reply = await chat.turn(self._feedback(task, verdict, turn))

    def _feedback(self, task: KernelTask, verdict: Verdict, turn: int) -> str:
        about: Any = task_of(task.data.reference, task_id=task.data.id, backend=task.data.backend)
        template, turns = task.config.feedback_template, self.config.turns
        told = build_feedback(about, verdict, template, turn=turn, max_turns=turns)
        return "\n".join(message["content"] for message in told if message["role"] == "user")
