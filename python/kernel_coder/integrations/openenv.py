"""OpenEnv: an environment whose steps are judged answers, and its server. Written for openenv 0.10.

    kernel-coder serve --device cuda:0 --port 8400                                    # the judge
    python -m kernel_coder.integrations.openenv --tasks packaged --url http://127.0.0.1:8400 --port 8000

An episode is one task. ``reset`` gives the prompt, ``step`` judges an answer and gives feedback. An answer that the
judge could not score has the reward None and ends the episode. Any OpenEnv client can use the server::

    with GenericEnvClient(base_url="http://127.0.0.1:8000").sync() as env:
        prompt = env.reset(seed=0).observation["messages"]
        result = env.step({"answer": model(prompt)})
"""

from __future__ import annotations

import argparse
import random
import sys
import uuid
from collections.abc import Sequence
from typing import Any

from openenv.core.env_server import Action, Environment, Observation, State, create_app
from pydantic import Field

from kernel_coder.integrations.scoring import Episode, reward_set
from kernel_coder.judge.supervisor.batching import AnyJudge, parallel
from kernel_coder.judge.supervisor.open import open_judge
from kernel_coder.prompts import build_messages
from kernel_coder.tasks import load_tasks
from kernel_coder.tasks.task import Task


class Answer(Action):
    """The model's whole answer; the code is in its last fenced block."""

    answer: str = Field(max_length=400_000)


class Told(Observation):
    """The next messages for the model, and the judge's findings."""

    messages: list[dict[str, str]] = Field(default_factory=list)
    task_id: str = ""
    outcome: str | None = None
    reason: str | None = None
    speedup: float | None = None


class KernelState(State):
    """The state of the episode."""

    task_id: str = ""
    max_turns: int = 1


class KernelEnvironment(Environment[Answer, Told, KernelState]):
    """One task after another: the model answers, is told the verdict, and answers again.

    Args:
        judge: an open judge, which all environments of the server share.
        tasks: ``reset(seed=n)`` draws one at random, ``reset(task_id=...)`` takes the named one.
        rewards: a preset's name, or the value of a recipe's section ``rewards``.
        max_turns: highest number of answers.
        prompt_template, feedback_template: see :mod:`kernel_coder.prompts`.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self,
        judge: AnyJudge,
        tasks: Sequence[Task],
        rewards: Any = "kevin",
        *,
        max_turns: int = 1,
        prompt_template: str = "kernel_coder",
        feedback_template: str = "feedback",
    ) -> None:
        super().__init__()
        self._judge, self._tasks, self._rewards = judge, tasks, reward_set(rewards)
        self._by_id = {task.id: task for task in tasks}
        self._max_turns = max_turns
        self._prompt_template, self._feedback_template = prompt_template, feedback_template
        self._episode: Episode | None = None
        self._state = KernelState(max_turns=max_turns)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, task_id: str | None = None, **_: Any
    ) -> Told:
        """Begin with a task and return its prompt."""
        if task_id is not None and task_id not in self._by_id:
            raise ValueError(f"task_id must be one of the server's {len(self._tasks)} tasks; got {task_id!r}")
        task = self._by_id[task_id] if task_id is not None else random.Random(seed).choice(self._tasks)
        self._episode = Episode(
            self._judge, task, self._rewards, max_turns=self._max_turns, feedback_template=self._feedback_template
        )
        self._state = KernelState(episode_id=episode_id or uuid.uuid4().hex, task_id=task.id, max_turns=self._max_turns)
        messages = [dict(message) for message in build_messages(task, self._prompt_template)]
        return Told(messages=messages, task_id=task.id)

    def step(self, action: Answer, timeout_s: float | None = None, **_: Any) -> Told:
        """Judge an answer. The judge has its own time limits; `timeout_s` is not used."""
        if self._episode is None:
            raise ValueError("step needs an episode: call reset first")
        step = self._episode.answer(action.answer)
        self._state.step_count += 1
        verdict = step.verdict
        return Told(
            messages=[dict(message) for message in step.feedback],
            task_id=self._episode.task.id,
            outcome=verdict.outcome.value,
            reason=verdict.reason,
            speedup=verdict.speedup,
            reward=step.reward,
            done=step.done,
        )

    @property
    def state(self) -> KernelState:
        """Episode, task and number of answers."""
        return self._state


def make_app(judge: AnyJudge, tasks: Sequence[Task], rewards: Any = "kevin", **options: Any) -> Any:
    """Return the FastAPI application of the server; `options` are those of :class:`KernelEnvironment`."""
    return create_app(
        lambda: KernelEnvironment(judge, tasks, rewards, **options),
        Answer,
        Told,
        env_name="kernel_coder",
        max_concurrent_envs=4 * parallel(judge.device, judge.config),
        state_cls=KernelState,
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs the server until it is interrupted."""
    import uvicorn

    parser = argparse.ArgumentParser(prog="python -m kernel_coder.integrations.openenv", description=main.__doc__)
    parser.add_argument("--tasks", default="packaged", help="as data.path of a recipe (default packaged)")
    parser.add_argument("--url", default="http://127.0.0.1:8400", help="the judge: an address, or cpu, cuda:0")
    parser.add_argument("--rewards", default="kevin", help="a preset of rewards (default kevin)")
    parser.add_argument("--max-turns", type=int, default=1, help="answers in an episode (default 1)")
    parser.add_argument("--prompt-template", default="kernel_coder")
    parser.add_argument("--feedback-template", default="feedback")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args(arguments)
    with open_judge(options.url) as judge:
        app = make_app(
            judge,
            list(load_tasks(options.tasks)),
            options.rewards,
            max_turns=options.max_turns,
            prompt_template=options.prompt_template,
            feedback_template=options.feedback_template,
        )
        uvicorn.run(app, host=options.host, port=options.port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
