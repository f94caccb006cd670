"""Samples answers to prompts, and has them judged and rewarded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from kernel_coder.policy.model import Policy
from kernel_coder.rewards import RewardSet
from kernel_coder.rollout import Conversation, FollowUp, Rollout, RolloutEngine, Sampling, completion_seed, converse
from kernel_coder.rollout.engine import ManagedEngine
from kernel_coder.rollout.engines import EngineKind, make_engine
from kernel_coder.rollout.vllm.config import VllmConfig
from kernel_coder.run import distributed
from kernel_coder.run.steps import Poll
from kernel_coder.run.stopwatch import Stopwatch
from kernel_coder.train.config import RolloutConfig
from kernel_coder.train.groups import Answers
from kernel_coder.train.prompts import Prompt
from kernel_coder.train.scoring import reward
from kernel_coder.train.verdicts import AnswerJudge

Seed = tuple[int | str, ...]
"""The values from which random numbers are derived, such as ``(run.seed, step)``."""


def never_stop() -> None:
    """Does nothing: a :data:`~kernel_coder.run.steps.Poll` that never asks to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """A request for a group of rollouts for each of the prompts.

    Attributes:
        prompts: the tasks.
        group: number of rollouts for each prompt.
        sampling: temperature, length limit and so on.
        seed: every random number depends on it, on the prompt's index and id, and on the indices of rollout and turn.
        step: for rewards whose weights change with the step.
        factors: factors of the rewards' weights in the present stage; None: there are no stages.
        version: number of updates that the policy's weights have had; equal numbers mean equal weights.
    """

    prompts: Sequence[Prompt]
    group: int
    sampling: Sampling
    seed: Seed
    step: int
    factors: Mapping[str, float] | None = None
    version: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class RolloutWorker:
    """Samples answers, has them judged, and rewards them.

    Attributes:
        engine: generates text with the policy.
        judge: gives verdicts. Its context must have been entered.
        rewards: the reward functions.
        config: batch sizes of the generation.
        follow_up: writes the next prompt of a conversation; None: conversations have one turn.
        overlap: sample while answers are judged. On a shared GPU this would disturb the judge's timing.
        refresh: brings the engine's weights up to date, if they are a copy of the policy's.
    """

    engine: RolloutEngine
    judge: AnswerJudge
    rewards: RewardSet
    config: RolloutConfig
    follow_up: FollowUp | None
    overlap: bool
    refresh: Callable[[], None] = never_stop

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Closes the engine at the end of the block, if it holds something outside of this process."""
        try:
            yield
        finally:
            if hasattr(self.engine, "close"):
                self.engine.close()

    def answer(self, request: RolloutRequest, poll: Poll = never_stop, watch: Stopwatch | None = None) -> Answers:
        """Answers all prompts. Rollouts of the same prompt are next to each other.

        The prompts are divided between the ranks; each rank samples and judges whole groups. Rank 0 rewards the answers
        of all ranks, as a single process would. Every rank gets all answers.

        Args:
            request: what to answer.
            poll: called often; may raise to abandon the work. With several ranks it is called only at points that all
                ranks reach together.
            watch: its phases ``load``, ``rollout``, ``judge`` and ``reward`` measure the work. If there are several
                ranks, also ``gather`` (of weights) and ``wait`` (for the other ranks' answers).
        """
        watch = watch or Stopwatch()
        managed: ManagedEngine | None = self.engine if hasattr(self.engine, "prepare") else None  # type: ignore[assignment]
        if managed is not None:
            with watch.phase("load"):
                managed.prepare(request.version)
        rollouts = self.sample(self.engine, request, poll, watch)
        if managed is not None:
            managed.rest()
        answers = self.rewarded(request, rollouts, watch)
        poll()
        return answers

    def sample(
        self,
        engine: RolloutEngine,
        request: RolloutRequest,
        poll: Poll,
        watch: Stopwatch,
        *,
        keeps_rng: bool = True,
    ) -> list[Rollout]:
        """Samples and judges the rollouts of all prompts. See :meth:`answer`, and for ``keeps_rng``
        :meth:`kernel_coder.train.verdicts.AnswerJudge.asking`."""
        watch.seconds.setdefault("judge", 0.0)
        alone = distributed.world().is_alone
        if not alone:
            with watch.phase("gather"):
                self.refresh()
        own = own_conversations(conversations(request.prompts, request.group, request.seed), request.group)
        with self.judge.asking(keeps_rng=keeps_rng) as ask:
            rollouts = converse(
                engine,
                own,
                request.sampling,
                ask=ask,
                follow_up=self.follow_up,
                batch_size=self.config.batch_size_of(len(own)),
                tasks_at_once=self.judge.tasks_at_once,
                fixed_batches=self.config.fixed_batches,
                overlap=self.overlap,
                poll=poll if alone else never_stop,
                watch=lambda name: self._phase(watch, name),
            )
        if not alone:
            with watch.phase("wait"):
                rollouts = of_all_ranks(rollouts, request.prompts, request.group)
        return rollouts

    def rewarded(self, request: RolloutRequest, rollouts: Sequence[Rollout], watch: Stopwatch) -> Answers:
        """Return the rollouts with their rewards."""
        with watch.phase("reward"):
            table = distributed.from_first(lambda: reward(self.rewards, rollouts, request.step, request.factors))
        return Answers(tuple(request.prompts), tuple(rollouts), table)

    @contextmanager
    def _phase(self, watch: Stopwatch, name: str) -> Iterator[None]:
        if name != "rollout":
            with watch.phase(name):
                yield
            return
        with watch.phase("judge"):  # a wait for the judge, if the host's GPUs still judge other ranks' answers
            turn = self.judge.sampling()
            turn.__enter__()
        try:
            with watch.phase(name):
                yield
        finally:
            turn.__exit__(None, None, None)


def own_conversations(everything: Sequence[Conversation], group: int) -> list[Conversation]:
    """Return the conversations of this rank: whole groups, every ``world size``-th one."""
    world = distributed.world()
    return [one for i, one in enumerate(everything) if i // group % world.size == world.rank]


def of_all_ranks(rollouts: Sequence[Rollout], prompts: Sequence[Prompt], group: int) -> list[Rollout]:
    """Return the rollouts of all ranks in the order of the prompts. All ranks must call this together."""
    parts = distributed.gathered([(one.turns, one.shown, one.verdicts) for one in rollouts])
    ranks = [iter(part) for part in parts]
    return [
        Rollout(prompt.task, *next(ranks[place % len(ranks)]))
        for place, prompt in enumerate(prompts)
        for _ in range(group)
    ]


def conversations(prompts: Sequence[Prompt], group: int, seed: Seed) -> list[Conversation]:
    """Return ``group`` new conversations for every prompt.

    A random number depends only on the seed, the prompt's index, the task's id, the conversation's index in the group
    and the turn.
    """

    def seeds(*name: int | str) -> Callable[[int], int]:
        return lambda turn: completion_seed(*seed, *name, *(("turn", turn) if turn else ()))

    return [Conversation(p, seeds(i, p.task.id, k)) for i, p in enumerate(prompts) for k in range(group)]


def engine_for(
    policy: Policy,
    kind: EngineKind = "auto",
    batch_size: int | None = None,
    *,
    vllm: VllmConfig | None = None,
    log: Path | None = None,
) -> RolloutEngine:
    """Return an engine that samples from the policy, in the dtype in which the policy computes."""
    dtype = torch.bfloat16 if policy.bf16 else None
    return make_engine(policy.model, policy.tokenizer, kind, batch_size=batch_size, dtype=dtype, vllm=vllm, log=log)


def share_gpu(judge: str, model: torch.device) -> bool:
    """Return whether the model and the judge use the same GPU, so that sampling would disturb the judge's timing.

    >>> share_gpu("cuda", torch.device("cuda:0")), share_gpu("cuda:1,cuda:2", torch.device("cuda:0"))
    (True, False)
    >>> share_gpu("cpu", torch.device("cpu")), share_gpu("cpu", torch.device("cuda"))
    (False, False)
    """
    places = [name.partition(":") for name in judge.split(",")]
    return any(kind == model.type == "cuda" and int(index or 0) == (model.index or 0) for kind, _, index in places)


def may_overlap(judge: AnswerJudge, model: torch.device) -> bool:
    """Return whether answers may be sampled while others are judged: not if the judge measures time on the model's GPU.

    It is the same on all ranks: each samples on the GPU with its own number.
    """
    if judge.config is None or not judge.config.timing:
        return True
    local = range(distributed.world().local_size)
    models = [model] if distributed.world().is_alone else [torch.device(model.type, i) for i in local]
    return not any(share_gpu(judge.device, one) for one in models)
