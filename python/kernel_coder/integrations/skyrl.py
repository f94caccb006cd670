"""SkyRL-gym: a text environment whose steps are answers and whose observations are the judge's feedback.

Register it, and name the address of the service (``kernel-coder serve``) in ``env_config``::

    from skyrl_gym.envs import register
    register(id="kernel_coder", entry_point="kernel_coder.integrations.skyrl:KernelEnv")

A row of the data set holds ``reward_spec.ground_truth`` (the reference's source) and in ``extra_info`` what
:func:`kernel_coder.integrations.verl.rows` writes there, so one exporter serves both. Written for skyrl-gym 0.4.0.

An answer that the judge could not score ends the episode with the reward of the turn before (0.0 in the first) and
``metadata["unscored"]`` True: SkyRL-gym takes numbers only, and a filter on the metadata can drop such episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from kernel_coder import ops
from kernel_coder.integrations.scoring import format_error, reward_set, task_of
from kernel_coder.judge.supervisor.client import Client
from kernel_coder.prompts import build_feedback


@lru_cache(maxsize=8)
def _client(url: str) -> Client:
    return Client(url)


class KernelEnv(BaseTextEnv):
    """One task: the model answers, is told the verdict, and answers again, up to ``max_turns`` times.

    Args:
        env_config: ``url``, ``rewards`` (a preset or a section), ``max_turns`` (1), ``feedback_template``.
        extras: the row.
    """

    def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        settings, row = dict(env_config or {}), dict(extras or {})
        about = dict(row.get("extra_info") or {})
        self.task = task_of(
            row["reward_spec"]["ground_truth"],
            task_id=about.get("task_id"),
            backend=about.get("backend"),
            precision=about.get("precision"),
            entry_point=about.get("entry_point"),
        )
        self.solution = about.get("solution")
        self.client = _client(settings.get("url", "http://127.0.0.1:8400"))
        self.rewards = reward_set(settings.get("rewards", "kevin"))
        self.max_turns = int(settings.get("max_turns", 1))
        self.template = settings.get("feedback_template", "feedback")
        self.turns = 0
        self.last = 0.0

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Judges one answer."""
        self.turns += 1
        verdict = format_error(self.task, action, self.client.device)
        if verdict is None:
            code = ops.parse_response(action).code
            assert code is not None
            verdict = self.client.evaluate(self.task, code, self.task.backend)
        table = self.rewards(
            [""], [action], verdict=[verdict], reference=[self.task.reference], solution=[self.solution]
        )
        total = table.total[0]
        self.last = self.last if total is None else total
        done = total is None or verdict.correct or self.turns >= self.max_turns
        observations = []
        if not done:
            told = build_feedback(self.task, verdict, self.template, turn=self.turns, max_turns=self.max_turns)
            observations = [dict(message) for message in told]
        metadata = {"outcome": verdict.outcome.value, "unscored": total is None, "speedup": verdict.speedup}
        return BaseTextEnvStepOutput(observations=observations, reward=self.last, done=done, metadata=metadata)
