"""Loads tasks, encodes them as prompts, and divides these into prompts to train on and prompts to evaluate on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_coder.policy.config import ModelConfig
from kernel_coder.policy.model import Policy
from kernel_coder.prompts import Message, build_messages, check_prompt_length, encode_prompt
from kernel_coder.run.errors import UsageError
from kernel_coder.tasks import Task, TaskSet, load_tasks
from kernel_coder.train.config import DataConfig, TrainConfig

SHOWN_PROBLEMS = 5
"""Upper limit for the number of unusable rows whose problems are printed, so that a bad data set does not fill the
terminal."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A task with the prompt that the model gets."""

    task: Task
    messages: list[Message]
    ids: tuple[int, ...]


def load_task_set(data: DataConfig) -> tuple[TaskSet, list[str]]:
    """Return the tasks of ``data.path``, and notes for the user about their number and about rows that are unusable.

    Raises:
        UsageError: the data cannot be read, or holds no usable task.
    """
    try:
        tasks = load_tasks(data)
    except (ValueError, OSError, ImportError) as error:
        raise UsageError(str(error)) from None
    return tasks, [tasks.summary(), *(f"dropped {problem}" for problem in tasks.problems[:SHOWN_PROBLEMS])]


def make_prompt(task: Task, policy: Policy, data: DataConfig, model: ModelConfig) -> Prompt:
    """Writes the prompt of a task with the prompt template, and encodes it with the chat template.

    Raises:
        UsageError: there is no such template, or it does not fit the task.
    """
    try:
        messages = build_messages(task, data.prompt_template, one_shot=data.one_shot)
        return Prompt(task, messages, tuple(encode_prompt(policy.tokenizer, messages, model.plain)))
    except ValueError as error:
        raise UsageError(str(error)) from None


def make_prompts(tasks: Sequence[Task], policy: Policy, config: TrainConfig) -> tuple[list[Prompt], list[str]]:
    """Return the prompts of all tasks except those longer than ``data.max_prompt_length``, and a note about these.

    Raises:
        UsageError: a prompt and its answer do not fit into the model's context.
    """
    longest, prompts, dropped = config.data.max_prompt_length, list[Prompt](), 0
    for task in tasks:
        prompt = make_prompt(task, policy, config.data, config.model)
        if longest is not None and len(prompt.ids) > longest:
            dropped += 1
            continue
        if problem := check_prompt_length(
            len(prompt.ids),
            task.id,
            context_length=policy.context_length,
            max_completion_length=config.rollout.max_completion_length,
        ):
            raise UsageError(f"{problem}: drop such tasks with data.max_prompt_length, or ask for shorter answers")
        prompts.append(prompt)
    note = f"{dropped} tasks were dropped: their prompts exceed data.max_prompt_length = {longest}"
    return prompts, [note] if dropped else []


def split_prompts(prompts: list[Prompt], policy: Policy, config: TrainConfig) -> tuple[list[Prompt], list[Prompt]]:
    """Return the prompts to train on and the held-out ones, which come from ``eval.path`` if it is set."""
    count = config.eval.num_tasks
    if config.eval.path is None:
        return hold_out(prompts, count if prompts else 0)
    source = config.data.model_copy(update={"path": config.eval.path, "revision": None, "limit": None})
    try:
        tasks = load_tasks(source)
    except (ValueError, OSError, ImportError) as error:
        raise UsageError(f"eval.path: {error}") from None
    return prompts, make_prompts(tasks, policy, config)[0][:count]


def hold_out(prompts: Sequence[Prompt], count: int) -> tuple[list[Prompt], list[Prompt]]:
    """Divides prompts into those to train on and ``count`` held-out ones, chosen by a hash of the task's id."""
    try:
        _, chosen = TaskSet(prompt.task for prompt in prompts).hold_out(count)
    except ValueError as error:
        raise UsageError(f"eval.num_tasks: {error}") from None
    ids = {task.id for task in chosen}
    return [p for p in prompts if p.task.id not in ids], [p for p in prompts if p.task.id in ids]
