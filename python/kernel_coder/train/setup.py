"""Prepares a training run: everything that it needs before its first step, and all checks that can fail before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernel_coder.judge.gpu.turns import SharedGpu
from kernel_coder.judge.verdict import rank
from kernel_coder.policy.defaults import defaults_of, task_path
from kernel_coder.policy.model import Policy, load_policy, load_reference, resolve_device
from kernel_coder.policy.packing import with_packing
from kernel_coder.prompts import check_feedback_template
from kernel_coder.rewards import RewardError, RewardSet
from kernel_coder.rollout import FollowUp, RolloutEngine, Sampling
from kernel_coder.rollout.copied_engine import CopiedEngine
from kernel_coder.run import distributed
from kernel_coder.run.checkpoint import start_or_resume
from kernel_coder.run.errors import UsageError
from kernel_coder.run.logs import find_trackers
from kernel_coder.run.optimizer import make_optimizer, make_schedule
from kernel_coder.run.rng import RngState
from kernel_coder.train.config import TrainConfig
from kernel_coder.train.curriculum import TrainState, first_progress
from kernel_coder.train.prompts import Prompt, load_task_set, make_prompts, split_prompts
from kernel_coder.train.rollouts import RolloutWorker, engine_for, may_overlap, never_stop, share_gpu
from kernel_coder.train.update import Learner
from kernel_coder.train.verdicts import AnswerJudge


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRun:
    """The objects of a training run. No attribute is replaced during a run; weights and optimiser change in place.

    Attributes:
        config: of the run.
        worker: samples, judges and rewards answers.
        learner: updates the policy.
        sampling: of answers to train on.
        train: the prompts to train on.
        held_out: the prompts to evaluate on.
        state: the progress of the run when it was prepared.
        rng: the random state with which it continues.
        notes: what the user should know before the first step.
    """

    config: TrainConfig
    worker: RolloutWorker
    learner: Learner
    sampling: Sampling
    train: tuple[Prompt, ...]
    held_out: tuple[Prompt, ...]
    state: TrainState
    rng: RngState
    notes: tuple[str, ...]

    @property
    def policy(self) -> Policy:
        """The model that is trained."""
        return self.learner.policy

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimiser of the policy."""
        return self.learner.optimizer

    @property
    def judge(self) -> AnswerJudge:
        """The judge of the answers."""
        return self.worker.judge

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.config.run.max_steps


def prepare(config: TrainConfig, checkpoint: Path | None) -> TrainingRun:
    """Loads tasks, rewards, model and optimiser, the last two from the checkpoint if there is one.

    Raises:
        UsageError: something in the config cannot be used.
    """
    spec = config.loss_spec()
    find_trackers(config.run.report_to)
    rewards = load_rewards(config)
    device = resolve_device(config.model.device)
    judge = AnswerJudge(config.judge, remember=config.rollout.lag > 0)
    overlap = may_overlap(judge, device)
    judge.alternate = not overlap
    if config.share_rejection.threshold is not None and judge.device == "cpu":
        raise UsageError(
            "share_rejection needs the share of device time that a candidate's own kernels take, which is measured "
            "only on a GPU; judge.device is cpu"
        )
    tasks, notes = load_task_set(config.data)
    divides = config.parallel.shard and not distributed.world().is_alone
    loaded_on = torch.device("cpu") if divides else device  # divided weights are moved to the GPU layer by layer
    policy = load_policy(config.model, resume_from=checkpoint, device=loaded_on)
    policy = replace(policy, parallel=config.parallel, defaults=model_defaults(config))
    if not distributed.world().is_alone and (config.rollout.lag or config.rollout.engine == "vllm"):
        raise UsageError("rollout.lag and engine vllm work with one training process; start it without --nproc")
    gpu = SharedGpu(device) if config.rollout.lag and not overlap else None
    prompts, dropped = make_prompts(tasks, policy, config)
    notes += dropped
    if config.judge is not None and not rewards.needing("verdict", or_taking=True):
        notes.append("no reward names the column verdict: answers are judged for the log only")
    train, held_out = split_prompts(prompts, policy, config)
    if not train:
        why = f"eval.num_tasks = {config.eval.num_tasks} holds them all out" if held_out else notes[-1]
        raise UsageError(f"no task of {config.data.path} is left to train on: {why}")
    reference = None
    if spec.beta != 0 and not config.model.use_peft:
        reference = load_reference(load_policy(config.model, device=loaded_on) if checkpoint else policy)
    sampler = policy
    if divides:
        sampler = policy.copied(device)
        policy = policy.divided(config.parallel, device)
        reference = None if reference is None else reference.divided(config.parallel, device)
    if config.optim.packing:
        policy, problem = with_packing(policy)
        notes += [problem] if problem else []
        if reference is not None:
            reference = replace(reference, can_pack=policy.can_pack, can_share=policy.can_share)

    optimizer = make_optimizer(policy.trainable().values(), config.optim)
    start = TrainState.start(config.hash(), tasks.fingerprint)
    try:
        start = replace(start, progress=first_progress([prompt.task for prompt in train], config.sampler))
    except ValueError as error:
        raise UsageError(str(error)) from None
    state, rng, resumed = start_or_resume(checkpoint, start, policy, optimizer, config.data.path)
    worker = RolloutWorker(
        engine=make_rollout_engine(config, sampler, gpu),
        judge=judge,
        rewards=rewards,
        config=config.rollout,
        follow_up=make_follow_up(config, policy),
        overlap=overlap or gpu is not None,
        refresh=partial(policy.refresh, sampler) if divides else never_stop,
    )
    learner = Learner(
        policy=policy,
        reference=reference,
        optimizer=optimizer,
        spec=spec,
        config=config.optim,
        temperature=config.rollout.temperature,
        minibatches=config.minibatches,
        learning_rate=make_schedule(config.optim, config.run.max_steps * config.updates_per_step),
        max_skipped=config.run.max_skipped_updates,
        frees_cache=share_gpu(judge.device, device),
    )
    sampling = Sampling(
        max_completion_length=config.rollout.max_completion_length,
        temperature=config.rollout.temperature,
        top_p=config.rollout.top_p,
        top_k=config.rollout.top_k,
    )
    return TrainingRun(config, worker, learner, sampling, tuple(train), tuple(held_out), state, rng, (*notes, *resumed))


def make_rollout_engine(config: TrainConfig, policy: Policy, gpu: SharedGpu | None = None) -> RolloutEngine:
    """Return the engine that samples from the policy, or with ``rollout.lag`` from a copy of it.

    Args:
        config: of the run.
        policy: the policy.
        gpu: the policy's GPU if a judge times kernels on it while answers of later steps are written.
    """

    def engine_of(model: nn.Module) -> RolloutEngine:
        return engine_for(
            replace(policy, model=model),
            config.rollout.engine,
            config.rollout.batch_size,
            vllm=config.vllm,
            log=Path(config.run.output_dir) / "vllm.log",
        )

    return CopiedEngine(policy.model, engine_of, gpu) if config.rollout.lag else engine_of(policy.model)


def model_defaults(config: TrainConfig) -> dict[str, Any]:
    """Return the trained model's default prompt settings: those of this run, otherwise those of its base model.

    See :mod:`kernel_coder.policy.defaults`.
    """
    rollout = config.rollout
    of_turns: dict[str, Any] = {"feedback_template": rollout.feedback_template}
    of_turns |= {"earlier_reasoning": rollout.earlier_reasoning}
    of_turns |= {} if rollout.context == "all" else {"context_turns": rollout.context_turns}
    return {
        **defaults_of(config.model.name_or_path),
        **(of_turns if rollout.max_turns > 1 else {}),
        "prompt_template": config.data.prompt_template,
        "max_new_tokens": rollout.max_completion_length,
        "tasks": task_path(config.eval.path or config.data.path),
        "backend": None if config.judge is None else config.judge.backend,
        "chat_template": config.model.plain,
        "one_shot": config.data.one_shot or None,
    }


def load_rewards(config: TrainConfig) -> RewardSet:
    """Return the rewards of the config.

    Raises:
        UsageError: a reward does not exist, needs a judge that is missing, or is named by a stage but not by the
        config.
    """
    try:
        rewards = RewardSet([reward.model_dump() for reward in config.rewards])
    except RewardError as error:
        raise UsageError(str(error)) from None
    named = {f"stages.{number}.weights": stage.weights for number, stage in enumerate(config.stages)}
    named["advantages.thinking_weights"] = config.advantages.thinking_weights
    named["advantages.answer_weights"] = config.advantages.answer_weights
    for field, weights in named.items():
        if unknown := sorted(set(weights) - set(rewards.labels)):
            raise UsageError(
                f"{field} names {unknown[0]}, which is no reward of this run; it has {', '.join(rewards.labels)}"
            )
    if config.judge is None and (needy := rewards.needing("verdict")):
        raise UsageError(
            f"reward {needy[0]} is about verdicts, and there is no judge: add the section judge "
            "(judge: {} in YAML, --judge.device cpu as a flag)"
        )
    return rewards


def make_follow_up(config: TrainConfig, policy: Policy) -> FollowUp | None:
    """Return the function that writes the next prompt of a conversation; None if conversations have one turn.

    Raises:
        UsageError: there is no such feedback template.
    """
    rollout = config.rollout
    if rollout.max_turns == 1:
        return None
    try:
        check_feedback_template(rollout.feedback_template)
    except ValueError as error:
        raise UsageError(str(error)) from None
    context = policy.context_length
    return FollowUp(
        tokenizer=policy.tokenizer,
        max_turns=rollout.max_turns,
        template=rollout.feedback_template,
        chat_template=config.model.plain,
        context=rollout.context,
        context_turns=rollout.context_turns,
        rank=rank,
        earlier_reasoning=rollout.earlier_reasoning,
        stop_when_correct=rollout.stop_when_correct,
        room=None if context is None else context - rollout.max_completion_length,
    )
