"""Everything that a run needs before its first step, and the checks that can fail before anything is computed."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import get_scheduler

from kernel_coder.judge.verdict import rank
from kernel_coder.ops import LossSpec
from kernel_coder.policy.model import PLAIN, Policy, load_policy, load_reference
from kernel_coder.policy.packing import tried
from kernel_coder.prompts import Message, build_messages, check_feedback_template, check_prompt_length, encode_prompt
from kernel_coder.rewards import RewardError, RewardSet
from kernel_coder.rollout import FollowUp, RolloutEngine, Sampling
from kernel_coder.rollout.engines import make_engine
from kernel_coder.run.checkpoint import (
    CheckpointError,
    RngState,
    TrainState,
    capture_rng,
    list_checkpoints,
    load_optimizer,
    load_state,
    newest_valid,
    verify,
)
from kernel_coder.run.errors import UsageError
from kernel_coder.run.logs import METRICS, find_trackers
from kernel_coder.tasks import Task, TaskSet, load_tasks
from kernel_coder.train.config import AdamConfig, RunnableConfig, TrainConfig
from kernel_coder.train.curriculum import first_progress
from kernel_coder.train.verdicts import AnswerJudge

SHOWN_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class Prompt:
    """A task as the model is asked it."""

    task: Task
    messages: list[Message]
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """What the loop works with. Nothing in it is replaced during a run; the weights and the optimiser change inside."""

    policy: Policy
    reference: Policy | None
    engine: RolloutEngine
    rewards: RewardSet
    judge: AnswerJudge
    follow_up: FollowUp | None  # None: one answer is all
    shares_gpu: bool  # the judge works on the model's GPU
    overlap: bool  # sample while answers are judged
    spec: LossSpec
    sampling: Sampling
    train: tuple[Prompt, ...]
    held_out: tuple[Prompt, ...]
    optimizer: torch.optim.Optimizer
    learning_rate: Callable[[int], float]  # of the n-th update
    state: TrainState
    rng: RngState
    notes: tuple[str, ...]  # what a person should know before the first step


def open_session(config: TrainConfig, checkpoint: Path | None) -> Session:
    """Loads tasks, rewards, model and optimiser, from the checkpoint if there is one."""
    spec = config.loss_spec()
    find_trackers(config.run.report_to)
    rewards = load_rewards(config)
    judge = AnswerJudge(config.judge)
    if config.share_rejection.threshold is not None and judge.device == "cpu":
        raise UsageError(
            "share_rejection goes by the share of the device's time that a candidate's own kernels take, which only "
            "a GPU can tell; judge.device is cpu"
        )
    try:
        tasks = load_tasks(config.data)
    except (ValueError, OSError, ImportError) as error:
        raise UsageError(str(error)) from None
    policy = load_policy(config.model, resume_from=checkpoint)
    prompts, notes = make_prompts(tasks, policy, config)
    if config.judge is not None and not rewards.needing("verdict", or_taking=True):
        notes = [*notes, "no reward names the column verdict: answers are judged for the log only"]
    notes = [tasks.summary(), *(f"dropped {problem}" for problem in tasks.problems[:SHOWN_PROBLEMS]), *notes]
    if config.eval.path is None:
        train, held_out = hold_out(prompts, config.eval.num_tasks if prompts else 0)
    else:
        train, held_out = prompts, load_held_out(config, policy)
    if not train:
        why = f"eval.num_tasks = {config.eval.num_tasks} holds them all out" if held_out else notes[-1]
        raise UsageError(f"no task of {config.data.path} is left to train on: {why}")

    if config.optim.packing:
        policy, problem = tried(policy)
        notes = [*notes, problem] if problem else notes
    optimizer = make_optimizer(policy, config.optim)
    state, rng = fresh_state(config, tasks.fingerprint), capture_rng()
    try:
        state = replace(state, progress=first_progress([prompt.task for prompt in train], config.sampler))
    except ValueError as error:
        raise UsageError(str(error)) from None
    reference = None
    if spec.beta != 0 and not config.model.use_peft:
        reference = load_reference(load_policy(config.model) if checkpoint else policy)
    if checkpoint is not None:
        saved, rng, groups = load_state(checkpoint)
        if saved.data_fingerprint != state.data_fingerprint:
            raise UsageError(
                f"{config.data.path} is not the data that {checkpoint.name} was trained on; resume needs the same rows"
            )
        if saved.config_hash != state.config_hash:
            notes = [*notes, f"the config differs from that of {checkpoint.name}; the run goes on with the new one"]
        state = saved
        load_optimizer(checkpoint, optimizer, policy, groups)
    shares_gpu = share_gpu(judge.device, policy.device)
    return Session(
        policy=policy,
        reference=reference,
        engine=make_engine(
            policy.model,
            policy.tokenizer,
            config.rollout.engine,
            batch_size=config.rollout.batch_size,
            dtype=torch.bfloat16 if config.model.bf16 else None,
        ),
        rewards=rewards,
        judge=judge,
        follow_up=make_follow_up(config, policy),
        shares_gpu=shares_gpu,
        overlap=not shares_gpu or config.judge is None or not config.judge.timing,
        spec=spec,
        sampling=Sampling(
            max_completion_length=config.rollout.max_completion_length,
            temperature=config.rollout.temperature,
            top_p=config.rollout.top_p,
            top_k=config.rollout.top_k,
        ),
        train=tuple(train),
        held_out=tuple(held_out),
        optimizer=optimizer,
        learning_rate=schedule(config.optim, config.run.max_steps * config.updates_per_step),
        state=state,
        rng=rng,
        notes=tuple(notes),
    )


def load_held_out(config: TrainConfig, policy: Policy) -> list[Prompt]:
    """The first ``eval.num_tasks`` tasks of ``eval.path`` that the model has room for."""
    source = config.data.model_copy(update={"path": config.eval.path, "revision": None, "limit": None})
    try:
        tasks = load_tasks(source)
    except (ValueError, OSError, ImportError) as error:
        raise UsageError(f"eval.path: {error}") from None
    return make_prompts(tasks, policy, config)[0][: config.eval.num_tasks]


def load_rewards(config: TrainConfig) -> RewardSet:
    """The rewards of the config; those on verdicts need a judge."""
    try:
        rewards = RewardSet([reward.model_dump() for reward in config.rewards])
    except RewardError as error:
        raise UsageError(str(error)) from None
    for number, stage in enumerate(config.stages):
        if unknown := sorted(set(stage.weights) - set(rewards.labels)):
            raise UsageError(
                f"stages.{number}.weights names {unknown[0]}, which is no reward of this run; "
                f"it has {', '.join(rewards.labels)}"
            )
    advantages = config.advantages
    for field in ("thinking_weights", "answer_weights"):
        if unknown := sorted(set(getattr(advantages, field)) - set(rewards.labels)):
            raise UsageError(
                f"advantages.{field} names {unknown[0]}, which is no reward of this run; "
                f"it has {', '.join(rewards.labels)}"
            )
    if config.judge is None and (needy := rewards.needing("verdict")):
        raise UsageError(
            f"reward {needy[0]} is about verdicts, and there is no judge: add the section judge "
            "(judge: {} in YAML, --judge.device cpu as a flag)"
        )
    return rewards


def share_gpu(judge: str, model: torch.device) -> bool:
    """Whether what the judge times would be disturbed by what the model samples; the judge may have several devices.

    >>> share_gpu("cuda", torch.device("cuda:0")), share_gpu("cuda:1,cuda:2", torch.device("cuda:0"))
    (True, False)
    >>> share_gpu("cpu", torch.device("cpu")), share_gpu("cpu", torch.device("cuda"))
    (False, False)
    """
    places = [name.partition(":") for name in judge.split(",")]
    return any(kind == model.type == "cuda" and int(index or 0) == (model.index or 0) for kind, _, index in places)


def make_follow_up(config: TrainConfig, policy: Policy) -> FollowUp | None:
    """How conversations go on; None where there are none."""
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
        chat_template=PLAIN if config.model.chat_template == PLAIN else None,
        context=rollout.context,
        context_turns=rollout.context_turns,
        rank=rank,
        earlier_reasoning=rollout.earlier_reasoning,
        stop_when_correct=rollout.stop_when_correct,
        room=None if context is None else context - rollout.max_completion_length,
    )


def make_prompts(tasks: Sequence[Task], policy: Policy, config: TrainConfig) -> tuple[list[Prompt], list[str]]:
    """Every task as messages and ids; one that the model has no room for is an error."""
    longest = config.data.max_prompt_length
    plain = PLAIN if config.model.chat_template == PLAIN else None
    answer = config.rollout.max_completion_length
    prompts: list[Prompt] = []
    dropped = 0
    for task in tasks:
        try:
            messages = build_messages(task, config.data.prompt_template, one_shot=config.data.one_shot)
            ids = tuple(encode_prompt(policy.tokenizer, messages, plain))
        except ValueError as error:
            raise UsageError(str(error)) from None
        if longest is not None and len(ids) > longest:
            dropped += 1
            continue
        if problem := check_prompt_length(
            len(ids), task.id, context_length=policy.context_length, max_completion_length=answer
        ):
            raise UsageError(f"{problem}: drop such tasks with data.max_prompt_length, or ask for shorter answers")
        prompts.append(Prompt(task, messages, ids))
    return prompts, [
        f"{dropped} tasks were dropped: their prompts exceed data.max_prompt_length = {longest}"
    ] if dropped else []


def hold_out(prompts: Sequence[Prompt], count: int) -> tuple[list[Prompt], list[Prompt]]:
    """Those to train on, and ``count`` to evaluate on."""
    try:
        _, chosen = TaskSet(prompt.task for prompt in prompts).hold_out(count)
    except ValueError as error:
        raise UsageError(f"eval.num_tasks: {error}") from None
    ids = {task.id for task in chosen}
    return [p for p in prompts if p.task.id not in ids], [p for p in prompts if p.task.id in ids]


def make_optimizer(policy: Policy, config: AdamConfig) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        policy.trainable().values(),
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        weight_decay=config.weight_decay,
        fused=True,
    )


def schedule(config: AdamConfig, updates: int) -> Callable[[int], float]:
    """The learning rate of the n-th of so many updates: a pure function, so a resumed run needs only n."""
    probe = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=config.learning_rate)
    try:
        made: Any = get_scheduler(
            config.lr_scheduler_type,
            probe,
            num_warmup_steps=config.warmup_steps,
            num_training_steps=updates,
            scheduler_specific_kwargs=config.lr_scheduler_kwargs or None,
        )
        factor = made.lr_lambdas[0]
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"optim.lr_scheduler_type {config.lr_scheduler_type} cannot be used: {error}") from None
    return lambda update: config.learning_rate * factor(update)


def fresh_state(config: RunnableConfig, fingerprint: str) -> TrainState:
    return TrainState(
        step=0,
        update=0,
        skipped=0,
        skipped_in_a_row=0,
        trained_tokens=0,
        best={},
        config_hash=config_hash(config),
        data_fingerprint=fingerprint,
    )


def config_hash(config: RunnableConfig) -> str:
    """Of all that decides the numbers; where the run is written is left out."""
    values = config.model_dump(mode="json")
    for name in (
        "output_dir",
        "overwrite_output_dir",
        "report_to",
        "project",
        "save_steps",
        "save_total_limit",
        "logging_steps",
    ):
        del values["run"][name]
    return hashlib.sha256(repr(values).encode()).hexdigest()


def open_run_dir(config: RunnableConfig, resume: str | None) -> tuple[Path, Path | None, list[str]]:
    """The run's folder, the checkpoint to go on from, and what to tell about it.

    ``resume``: None starts anew, ``auto`` takes the newest valid checkpoint of the folder (none: starts anew), a path
    takes that one and no other.
    """
    run_dir = Path(config.run.output_dir)
    holds_a_run = (run_dir / METRICS).exists() or bool(list_checkpoints(run_dir))
    if resume is None and holds_a_run and not config.run.overwrite_output_dir:
        raise UsageError(
            f"{run_dir} already holds a run: pass --resume to go on with it, another run.output_dir, "
            "or run.overwrite_output_dir true to remove it"
        )
    if resume is None:
        return run_dir, None, []
    if resume != "auto":
        try:
            verify(Path(resume))
        except CheckpointError as error:
            valid, _ = newest_valid(Path(resume).parent)
            other = f"; {valid.name} beside it is whole" if valid else ""
            raise UsageError(f"checkpoint {resume} is refused: {error}{other}") from None
        return run_dir, Path(resume), [f"resuming from {resume}"]
    checkpoint, refused = newest_valid(run_dir)
    found = f"resuming from {checkpoint.name}" if checkpoint else "no checkpoint to resume from: starting at step 0"
    return run_dir, checkpoint, [*refused, found]


def remove_run(run_dir: Path) -> None:
    """Removes what an earlier run wrote and nothing else."""
    for path in (*run_dir.glob("checkpoint-*"), *run_dir.glob(".checkpoint-*"), run_dir / "tensorboard"):
        shutil.rmtree(path, ignore_errors=True)
    for name in ("metrics.jsonl", "samples.jsonl", "summary.json", "config.yaml"):
        (run_dir / name).unlink(missing_ok=True)
