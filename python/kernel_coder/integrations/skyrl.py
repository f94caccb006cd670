"""SkyRL-gym: a text environment whose steps are answers and whose observations are the judge's feedback.

Register it, and name the address of the service (``kernel-coder serve``) in ``env_config``::

    from skyrl_gym.envs import register
    register(id="kernel_coder", entry_point="kernel_coder.integrations.skyrl:KernelEnv")

A row of the data set holds ``reward_spec.ground_truth`` (the reference's source) and the same ``extra_info`` as
:func:`kernel_coder.integrations.verl.rows`, so one exporter serves both libraries. Written for skyrl-gym 0.4.0.

An answer that the judge could not score ends the episode with the reward of the turn before (0.0 in the first) and
``metadata["unscored"]`` True: SkyRL-gym needs a number as reward; a filter on the metadata can drop such episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from kernel_coder.integrations.scoring import Episode, reward_set, task_of
from kernel_coder.judge.supervisor.client import Client


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
        names = ("task_id", "backend", "precision", "entry_point", "solution")
        task = task_of(row["reward_spec"]["ground_truth"], **{name: about.get(name) for name in names})
        self.max_turns = int(settings.get("max_turns", 1))
        self.episode = Episode(
            _client(settings.get("url", "http://127.0.0.1:8400")),
            task,
            reward_set(settings.get("rewards", "kevin")),
            max_turns=self.max_turns,
            feedback_template=settings.get("feedback_template", "feedback"),
        )
        self.last = 0.0

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Judges one answer."""
        step = self.episode.answer(action)
        self.turns = self.episode.turns
        self.last = self.last if step.reward is None else step.reward
        metadata = {
            "outcome": step.verdict.outcome.value,
            "unscored": step.reward is None,
            "speedup": step.verdict.speedup,
        }
        return BaseTextEnvStepOutput(
            observations=[dict(message) for message in step.feedback],
            reward=self.last,
            done=step.done,
            metadata=metadata,
        )
