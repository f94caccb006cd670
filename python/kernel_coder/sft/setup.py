"""Prepares a supervised run: everything that it needs before its first step, and all checks that can fail before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernel_coder.policy.defaults import defaults_of, task_path
from kernel_coder.policy.model import Policy, load_policy, resolve_device
from kernel_coder.policy.parts import causal_lm
from kernel_coder.rollout import RolloutEngine, Sampling
from kernel_coder.rollout.transformers_engine import end_of_sequence_ids
from kernel_coder.run import distributed
from kernel_coder.run.checkpoint import RunState, start_or_resume
from kernel_coder.run.errors import UsageError
from kernel_coder.run.logs import find_trackers
from kernel_coder.run.optimizer import make_optimizer, make_schedule
from kernel_coder.run.rng import RngState
from kernel_coder.sft.attention import check_separation
from kernel_coder.sft.compilation import Acceleration, accelerate
from kernel_coder.sft.config import SftConfig, SftDataConfig
from kernel_coder.sft.examples import Encoder, Example, encode_rows, encode_tasks, fingerprint
from kernel_coder.sft.packing import Filled, PackedBatch, best_fit, collate
from kernel_coder.sft.update import UpdateSettings
from kernel_coder.tasks import Task, TaskSet, load_tasks
from kernel_coder.tasks.conversations import conversation_rows
from kernel_coder.train.batch import deal_rows
from kernel_coder.train.prompts import SHOWN_PROBLEMS, Prompt, load_task_set, make_prompt
from kernel_coder.train.rollouts import engine_for, may_overlap, never_stop
from kernel_coder.train.verdicts import AnswerJudge


@dataclass(frozen=True, slots=True, eq=False)
class SftRun:
    """The objects of a supervised run. No attribute is replaced during a run; weights and optimiser change in place.

    Attributes:
        config: of the run.
        policy: the model that is trained.
        optimizer: the optimiser of its trainable parameters.
        updates: the settings that are the same in all updates.
        examples: the examples to learn.
        packs: for each packed sequence the indices of its examples.
        held_out: this rank's forward passes over the known answers to held-out tasks.
        filled: the shape of all forward passes if the layers are compiled, else None.
        asked: held-out tasks that the model answers itself.
        engine: samples these answers.
        refresh: brings the engine's weights up to date, if they are a copy of the policy's.
        sampling: temperature and length limit of these answers.
        judge: gives verdicts on these answers.
        num_held_out: number of held-out tasks on all ranks.
        total_steps: steps of the whole run.
        state: the progress of the run when it was prepared.
        rng: the random state with which it continues.
        notes: what the user should know before the first step.
    """

    config: SftConfig
    policy: Policy
    optimizer: torch.optim.Optimizer
    updates: UpdateSettings
    examples: tuple[Example, ...]
    packs: tuple[tuple[int, ...], ...]
    held_out: tuple[PackedBatch, ...]
    filled: Filled | None
    asked: tuple[Prompt, ...]
    engine: RolloutEngine
    refresh: Callable[[], None]
    sampling: Sampling
    judge: AnswerJudge
    num_held_out: int
    total_steps: int
    state: RunState
    rng: RngState
    notes: tuple[str, ...]


def prepare(config: SftConfig, checkpoint: Path | None) -> SftRun:
    """Loads data, model and optimiser, the last two from the checkpoint if there is one.

    Raises:
        UsageError: something in the config cannot be used.
    """
    find_trackers(config.run.report_to)
    judge = AnswerJudge(config.judge)
    device = resolve_device(config.model.device)
    judge.alternate = not may_overlap(judge, device)
    divides = config.parallel.shard and not distributed.world().is_alone
    if divides and config.model.torch_compile:
        raise UsageError("model.torch_compile needs whole weights on each GPU: set parallel.shard false")
    loaded_on = torch.device("cpu") if divides else device  # divided weights are moved to the GPU layer by layer
    policy = load_policy(config.model, resume_from=checkpoint, device=loaded_on)
    policy = replace(policy, parallel=config.parallel, defaults=model_defaults(config))
    encoder = Encoder(policy.tokenizer, config.data, config.model.plain)
    stop_at(policy, encoder.end[-1])
    try:
        data = load_data(config, encoder)
        asked = [ask(task, policy, config) for task in data.asked]
    except (ValueError, OSError, ImportError) as error:
        raise UsageError(str(error)) from None
    longest = policy.context_length
    if longest is not None and config.data.max_length > longest:
        raise UsageError(f"data.max_length = {config.data.max_length} is more than the model's context of {longest}")
    packs = make_packs(data.train, config.data)
    sampler = policy.copied(device) if divides and asked else policy
    if divides:
        policy = policy.divided(config.parallel, device)
    check_separation(policy, *neighbours(policy), bf16=policy.bf16)
    steps = total_steps(config, len(packs))
    optimizer = make_optimizer(policy.trainable().values(), config.optim)
    start = RunState.start(config.hash(), fingerprint((*data.train, *data.held_out)))
    state, rng, resumed = start_or_resume(checkpoint, start, policy, optimizer, config.data.path)
    held_out_packs = make_packs(data.held_out, config.data)
    own_held_out = own_packs(data.held_out, held_out_packs)
    filled, acceleration = None, Acceleration()
    if config.model.torch_compile:
        filled = one_shape([*taken(data.train, packs), *taken(data.held_out, held_out_packs)], config)
        # Measuring the memory of activations would compile every layer for two more shapes.
        fixed = replace(policy, recomputation=None)
        size = config.optim.per_device_train_batch_size
        batch = batches_of(data.train, packs[:size], config, policy.device, filled)[0]
        acceleration = accelerate(fixed, batch, bf16=policy.bf16)
        filled, policy = (filled, fixed) if acceleration.compiled else (None, policy)
    return SftRun(
        config=config,
        policy=policy,
        optimizer=optimizer,
        updates=UpdateSettings(
            learning_rate=make_schedule(config.optim, steps),
            max_grad_norm=config.optim.max_grad_norm,
            max_skipped=config.run.max_skipped_updates,
            states_of=acceleration.states_of,
        ),
        examples=tuple(data.train),
        packs=packs,
        held_out=tuple(batches_of(data.held_out, own_held_out, config, policy.device, filled)),
        filled=filled,
        asked=tuple(asked),
        engine=engine_for(sampler, batch_size=config.eval.batch_size),
        sampling=Sampling(max_completion_length=config.eval.max_completion_length, temperature=config.eval.temperature),
        refresh=partial(policy.refresh, sampler) if divides and asked else never_stop,
        judge=judge,
        num_held_out=data.num_held_out,
        total_steps=steps,
        state=state,
        rng=rng,
        notes=(*data.notes, describe(data.train, packs, config, steps), *resumed, *acceleration.notes),
    )


def model_defaults(config: SftConfig) -> dict[str, Any]:
    """Return the trained model's default prompt settings: those of this run, otherwise those of its base model.

    See :mod:`kernel_coder.policy.defaults`.
    """
    asked = config.eval
    return {
        **defaults_of(config.model.name_or_path),
        "prompt_template": config.data.prompt_template,
        "max_new_tokens": asked.max_completion_length if asked.num_answered else config.data.max_length,
        "tasks": task_path(asked.path or (config.data.path if asked.num_tasks else None)),
        "backend": None if config.judge is None else config.judge.backend,
        "chat_template": config.model.plain,
        "one_shot": config.data.one_shot or None,
    }


def stop_at(policy: Policy, end: int) -> None:
    """Sets the token at which sampling stops to the end of an answer, in this run and in its checkpoints."""
    ids = end_of_sequence_ids(policy.model, policy.tokenizer)
    if end not in ids:
        causal_lm(policy.model).generation_config.eos_token_id = sorted({*ids, end})


@dataclass(frozen=True, slots=True)
class Data:
    """The data of a run."""

    train: list[Example]
    held_out: list[Example]  # known answers to held-out tasks
    asked: list[Task]  # held-out tasks that the model answers itself
    num_held_out: int  # all held-out tasks
    notes: list[str]  # what the user should know about the data


def load_data(config: SftConfig, encoder: Encoder) -> Data:
    """Loads the examples to learn and the held-out tasks.

    A reinforcement run on the same data holds out the same tasks.
    """
    if (rows := conversation_rows(config.data.path)) is not None:
        if config.eval.num_tasks and config.eval.path is None:
            raise UsageError("eval.num_tasks holds tasks out, and this data has none: set eval.path to held-out tasks")
        train, dropped = encode_rows(encoder, rows, config.data.num_proc)
        train = train[: config.data.limit]
        notes = [f"{config.data.path}: {len(train):,} examples, {len(dropped):,} rows dropped"]
    else:
        tasks, notes = load_task_set(config.data)
        if config.eval.path is None:
            tasks, held_out = held_out_of(tasks, config.eval.num_tasks)
        train, dropped = encode_tasks(encoder, tasks, config.data.num_proc)
        notes += [f"{len(dropped):,} tasks were dropped"] if dropped else []
    notes += [f"dropped {why}" for why in dropped[:SHOWN_PROBLEMS]]
    if not train:
        raise UsageError(
            f"{config.data.path} has nothing to learn from: {dropped[0] if dropped else 'all its tasks are held out'}"
        )
    if config.eval.path is not None:
        held_out = TaskSet(load_tasks(replace_path(config.data, config.eval.path))).limit(config.eval.num_tasks or None)
    elif conversation_rows(config.data.path) is not None:
        held_out = TaskSet(())
    known = [task for task in held_out if task.solution is not None]
    examples, too_long = encode_tasks(encoder, known)
    notes += [f"{len(held_out):,} tasks are held out, {len(examples):,} with an answer to take the loss of"] * bool(
        held_out
    )
    notes += [f"no loss of held-out {why}" for why in too_long[:SHOWN_PROBLEMS]]
    return Data(train, examples, list(held_out)[: config.eval.num_answered], len(held_out), notes)


def held_out_of(tasks: TaskSet, count: int) -> tuple[TaskSet, TaskSet]:
    """Divides tasks into those to learn from and ``count`` held-out ones."""
    try:
        return tasks.hold_out(count)
    except ValueError as error:
        raise UsageError(f"eval.num_tasks: {error}") from None


def replace_path(config: SftDataConfig, path: str) -> SftDataConfig:
    """Return the config for all rows of another data set."""
    return config.model_copy(update={"path": path, "limit": None, "revision": None})


def ask(task: Task, policy: Policy, config: SftConfig) -> Prompt:
    """Return the prompt of a held-out task that the model answers itself.

    Raises:
        UsageError: the prompt and the longest answer do not fit into the model's context.
    """
    prompt, room = make_prompt(task, policy, config.data, config.model), policy.context_length
    if room is not None and len(prompt.ids) + config.eval.max_completion_length > room:
        raise UsageError(
            f"the prompt of held-out task {task.id} has {len(prompt.ids)} tokens, which with "
            f"eval.max_completion_length = {config.eval.max_completion_length} is more than the context of {room}"
        )
    return prompt


def make_packs(examples: Sequence[Example], config: SftDataConfig) -> tuple[tuple[int, ...], ...]:
    """Return for each packed sequence the indices of its examples. All epochs use the same sequences."""
    if not config.packing:
        return tuple((index,) for index in range(len(examples)))
    return tuple(map(tuple, best_fit([len(example) for example in examples], config.max_length)))


def one_shape(packs: Sequence[Sequence[Example]], config: SftConfig) -> Filled:
    """Return the shape to which all forward passes over these packs are padded."""
    lengths = [[len(example) for example in pack] for pack in packs]
    return Filled.of(lengths, config.optim.per_device_train_batch_size, config.data.max_length)


def taken(examples: Sequence[Example], packs: Sequence[Sequence[int]]) -> list[list[Example]]:
    """Return the examples of each pack."""
    return [[examples[i] for i in pack] for pack in packs]


def batches_of(
    examples: Sequence[Example],
    packs: Sequence[Sequence[int]],
    config: SftConfig,
    device: torch.device,
    filled: Filled | None = None,
) -> list[PackedBatch]:
    """Return the forward passes over these packs. With ``filled`` all have that shape.

    All ranks have equally many passes; a rank with fewer packs gets passes over an example that is not in the loss.
    """
    size = config.optim.per_device_train_batch_size
    groups = [packs[start : start + size] for start in range(0, len(packs), size)]
    found = [collate([examples[i] for pack in group for i in pack], device, filled=filled) for group in groups]
    for _ in range(max(distributed.gathered(len(found))) - len(found)):
        found.append(collate([IDLE], device, filled=filled))
    return found


IDLE = Example("", np.zeros(2, dtype=np.int32), np.zeros(2, dtype=bool))
"""The example that a rank computes if it has no packs in a pass. No token of it is in the loss."""


def own_packs(examples: Sequence[Example], packs: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """Return this rank's packs. The longest are assigned first, each to the rank that then has the fewest tokens."""
    world = distributed.world()
    if world.is_alone:
        return list(packs)
    tokens = [sum(len(examples[i]) for i in pack) for pack in packs]
    _, parts = deal_rows(tokens, [0] * len(packs), range(len(packs)), world.size)
    return [packs[place] for place in sorted(parts[world.rank])]


def neighbours(policy: Policy) -> tuple[PackedBatch, PackedBatch]:
    """Return two packed rows that end with the same example after different neighbours, for
    :func:`check_separation`."""
    size = len(policy.tokenizer)

    def example(start: int) -> Example:
        return Example("", (np.arange(8, dtype=np.int32) * 7 + start) % size, np.ones(8, dtype=bool))

    one, two = ([example(start), example(3)] for start in (11, 101))
    return collate(one, policy.device), collate(two, policy.device)


def steps_per_epoch(config: SftConfig, packs: int) -> int:
    """Return the number of steps in which every pack is used once."""
    return math.ceil(packs / config.packs_per_step)


def total_steps(config: SftConfig, packs: int) -> int:
    """Return the number of steps of the whole run."""
    if config.run.max_steps > 0:
        return config.run.max_steps
    return max(1, math.ceil(config.run.num_train_epochs * steps_per_epoch(config, packs)))


def describe(examples: Sequence[Example], packs: Sequence[Sequence[int]], config: SftConfig, steps: int) -> str:
    """Return a note with the size of the data and of an epoch."""
    tokens = sum(map(len, examples))
    learnt = sum(int(example.in_loss.sum()) for example in examples)
    filled = tokens / (len(packs) * config.data.max_length)
    packed = f"{len(packs):,} sequences of {config.data.max_length} tokens, {filled:.1%} full"
    epoch = steps_per_epoch(config, len(packs))
    return (
        f"{len(examples):,} examples, {tokens:,} tokens, {learnt:,} of them learnt; "
        f"{packed if config.data.packing else 'not packed'}; {steps:,} steps, {epoch:,} an epoch"
    )
