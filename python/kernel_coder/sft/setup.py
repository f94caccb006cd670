"""Everything that a supervised run needs before its first step, and the checks that can fail before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kernel_coder.policy.model import PLAIN, Policy, causal_lm, load_policy
from kernel_coder.prompts import build_messages, encode_prompt
from kernel_coder.rollout import RolloutEngine, Sampling
from kernel_coder.rollout.engines import make_engine
from kernel_coder.rollout.transformers_engine import end_of_sequence_ids
from kernel_coder.run.checkpoint import RngState, TrainState, capture_rng, load_optimizer, load_state
from kernel_coder.run.errors import UsageError
from kernel_coder.run.logs import find_trackers
from kernel_coder.sft.attention import StatesOf, check_separation
from kernel_coder.sft.compilation import Acceleration, accelerate
from kernel_coder.sft.config import SftConfig, SftDataConfig
from kernel_coder.sft.examples import (
    Encoder,
    Example,
    conversation_rows,
    encode_rows,
    encode_tasks,
    fingerprint,
)
from kernel_coder.sft.packing import Filled, PackedBatch, best_fit, collate
from kernel_coder.tasks import Task, TaskSet, load_tasks
from kernel_coder.train.setup import SHOWN_PROBLEMS, Prompt, fresh_state, make_optimizer, schedule
from kernel_coder.train.verdicts import AnswerJudge


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """What the loop works with. Nothing in it is replaced during a run; the weights and the optimiser change inside."""

    policy: Policy
    engine: RolloutEngine
    judge: AnswerJudge
    sampling: Sampling  # of held-out answers
    examples: tuple[Example, ...]
    packs: tuple[tuple[int, ...], ...]  # examples that share a sequence
    held_out: tuple[PackedBatch, ...]
    filled: Filled | None  # what every forward pass is if the layers are compiled
    states_of: StatesOf  # the decoder in training
    asked: tuple[Prompt, ...]  # held-out tasks that are answered
    num_held_out: int
    optimizer: torch.optim.Optimizer
    learning_rate: Callable[[int], float]  # of the n-th update
    total_steps: int
    state: TrainState
    rng: RngState
    notes: tuple[str, ...]


def open_session(config: SftConfig, checkpoint: Path | None) -> Session:
    """Loads data, model and optimiser, from the checkpoint if there is one."""
    find_trackers(config.run.report_to)
    judge = AnswerJudge(config.judge)
    policy = load_policy(config.model, resume_from=checkpoint)
    plain = PLAIN if config.model.chat_template == PLAIN else None
    encoder = Encoder(policy.tokenizer, config.data, plain)
    stop_at(policy, encoder.end[-1])
    try:
        data = load_data(config, encoder)
        asked = [make_prompt(policy, config, task, plain) for task in data.asked]
    except (ValueError, OSError, ImportError) as error:
        raise UsageError(str(error)) from None
    longest = policy.context_length
    if longest is not None and config.data.max_length > longest:
        raise UsageError(f"data.max_length = {config.data.max_length} is more than the model's context of {longest}")
    packs = make_packs(data.train, config.data)
    check_separation(policy, *neighbours(policy), bf16=config.model.bf16)
    steps = total_steps(config, len(packs))
    optimizer = make_optimizer(policy, config.optim)
    state, rng = fresh_state(config, fingerprint((*data.train, *data.held_out))), capture_rng()
    notes = [*data.notes, describe(data.train, packs, config, steps)]
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
    held_out_packs = make_packs(data.held_out, config.data)
    filled, acceleration = None, Acceleration()
    if config.model.torch_compile:
        filled = one_shape([*taken(data.train, packs), *taken(data.held_out, held_out_packs)], config)
        fixed = replace(policy, recomputation=None)  # measuring it would compile every layer for two more shapes
        size = config.optim.per_device_train_batch_size
        batch = batches_of(data.train, packs[:size], config, policy.device, filled)[0]
        acceleration = accelerate(fixed, batch, bf16=config.model.bf16)
        filled, policy = (filled, fixed) if acceleration.compiled else (None, policy)
        notes += acceleration.notes
    return Session(
        policy=policy,
        engine=make_engine(
            policy.model,
            policy.tokenizer,
            batch_size=config.eval.batch_size,
            dtype=torch.bfloat16 if config.model.bf16 else None,
        ),
        judge=judge,
        sampling=Sampling(max_completion_length=config.eval.max_completion_length, temperature=config.eval.temperature),
        examples=tuple(data.train),
        packs=packs,
        held_out=tuple(batches_of(data.held_out, held_out_packs, config, policy.device, filled)),
        filled=filled,
        states_of=acceleration.states_of,
        asked=tuple(asked),
        num_held_out=data.num_held_out,
        optimizer=optimizer,
        learning_rate=schedule(config.optim, steps),
        total_steps=steps,
        state=state,
        rng=rng,
        notes=tuple(notes),
    )


def stop_at(policy: Policy, end: int) -> None:
    """Makes the token that ends an answer one that ends sampling, here and in whatever loads the checkpoint."""
    ids = end_of_sequence_ids(policy.model, policy.tokenizer)
    if end not in ids:
        causal_lm(policy.model).generation_config.eos_token_id = sorted({*ids, end})


@dataclass(frozen=True, slots=True)
class Data:
    """Examples on both sides, and the held-out tasks that the model is asked to solve itself."""

    train: list[Example]
    held_out: list[Example]
    asked: list[Task]
    num_held_out: int
    notes: list[str]


def load_data(config: SftConfig, encoder: Encoder) -> Data:
    """What is learnt and what is held out: of tasks the same ones as in the reinforcement run on the same data."""
    if (rows := conversation_rows(config.data.path)) is not None:
        if config.eval.num_tasks and config.eval.path is None:
            raise UsageError("eval.num_tasks holds tasks out, and this data has none: set eval.path to held-out tasks")
        train, dropped = encode_rows(encoder, rows)
        train = train[: config.data.limit]
        notes = [f"{config.data.path}: {len(train):,} examples, {len(dropped):,} rows dropped"]
    else:
        tasks = load_tasks(config.data)
        notes = [tasks.summary(), *(f"dropped {problem}" for problem in tasks.problems[:SHOWN_PROBLEMS])]
        if config.eval.path is None:
            tasks, held_out = held_out_of(tasks, config.eval.num_tasks)
        train, dropped = encode_tasks(encoder, tasks)
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
    try:
        return tasks.hold_out(count)
    except ValueError as error:
        raise UsageError(f"eval.num_tasks: {error}") from None


def replace_path(config: SftDataConfig, path: str) -> SftDataConfig:
    return config.model_copy(update={"path": path, "limit": None, "revision": None})


def make_prompt(policy: Policy, config: SftConfig, task: Task, plain: str | None) -> Prompt:
    """A held-out task as the model is asked it; too long a one is the user's mistake, as in a reinforcement run."""
    messages = build_messages(task, config.data.prompt_template, one_shot=config.data.one_shot)
    ids = tuple(encode_prompt(policy.tokenizer, messages, plain))
    room = policy.context_length
    if room is not None and len(ids) + config.eval.max_completion_length > room:
        raise UsageError(
            f"the prompt of held-out task {task.id} has {len(ids)} tokens, which with eval.max_completion_length = "
            f"{config.eval.max_completion_length} is more than the context of {room}"
        )
    return Prompt(task, messages, ids)


def make_packs(examples: Sequence[Example], config: SftDataConfig) -> tuple[tuple[int, ...], ...]:
    """Which examples share a sequence: packed once, so that an epoch has the same number of steps every time."""
    if not config.packing:
        return tuple((index,) for index in range(len(examples)))
    return tuple(map(tuple, best_fit([len(example) for example in examples], config.max_length)))


def one_shape(packs: Sequence[Sequence[Example]], config: SftConfig) -> Filled:
    """What no forward pass over any of these packs exceeds."""
    lengths = [[len(example) for example in pack] for pack in packs]
    return Filled.of(lengths, config.optim.per_device_train_batch_size, config.data.max_length)


def taken(examples: Sequence[Example], packs: Sequence[Sequence[int]]) -> list[list[Example]]:
    return [[examples[i] for i in pack] for pack in packs]


def batches_of(
    examples: Sequence[Example],
    packs: Sequence[Sequence[int]],
    config: SftConfig,
    device: torch.device,
    filled: Filled | None = None,
) -> list[PackedBatch]:
    """The forward passes over these packs, each of one shape if it is to be ``filled``."""
    size = config.optim.per_device_train_batch_size
    groups = [packs[start : start + size] for start in range(0, len(packs), size)]
    return [collate([examples[i] for pack in group for i in pack], device, filled=filled) for group in groups]


def neighbours(policy: Policy) -> tuple[PackedBatch, PackedBatch]:
    """Two packed rows that end alike behind different neighbours: what :func:`check_separation` compares."""
    import numpy as np

    size = len(policy.tokenizer)

    def example(start: int) -> Example:
        return Example("", (np.arange(8, dtype=np.int32) * 7 + start) % size, np.ones(8, dtype=bool))

    one, two = ([example(start), example(3)] for start in (11, 101))
    return collate(one, policy.device), collate(two, policy.device)


def steps_per_epoch(config: SftConfig, packs: int) -> int:
    return math.ceil(packs / config.packs_per_step)


def total_steps(config: SftConfig, packs: int) -> int:
    if config.run.max_steps > 0:
        return config.run.max_steps
    return max(1, math.ceil(config.run.num_train_epochs * steps_per_epoch(config, packs)))


def describe(examples: Sequence[Example], packs: Sequence[Sequence[int]], config: SftConfig, steps: int) -> str:
    """One line for people about what an epoch is."""
    tokens = sum(map(len, examples))
    learnt = sum(int(example.in_loss.sum()) for example in examples)
    filled = tokens / (len(packs) * config.data.max_length)
    packed = f"{len(packs):,} sequences of {config.data.max_length} tokens, {filled:.1%} full"
    epoch = steps_per_epoch(config, len(packs))
    return (
        f"{len(examples):,} examples, {tokens:,} tokens, {learnt:,} of them learnt; "
        f"{packed if config.data.packing else 'not packed'}; {steps:,} steps, {epoch:,} an epoch"
    )
