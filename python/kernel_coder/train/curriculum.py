"""Decides which tasks are drawn, how hard they may be, and which stage of the rewards applies.

All functions here are pure functions of a :class:`Progress`, which is saved with the checkpoint, so a resumed run draws
the same tasks. Measured rates are exponential moving averages: ``decay * old + (1 - decay) * new``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeVar

import torch

from kernel_coder.rollout import completion_seed
from kernel_coder.run.checkpoint import RunState
from kernel_coder.tasks import Task
from kernel_coder.train.config import SamplerConfig, StageConfig, TrainConfig
from kernel_coder.train.groups import Answers

UNTRIED_RATE = 0.5
"""Assumed success rate of a task that was never tried, from 0 to 1. One half gives such a task the largest weight."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The tasks drawn and the rates measured so far."""

    drawn: int = 0  # number of tasks
    rates: Mapping[str, float] = field(default_factory=dict)  # success rate of each task that was tried, by its id
    level: int | None = None  # the hardest level that is drawn; None: all
    level_rate: float = UNTRIED_RATE  # success rate at this level
    level_answers: int = 0  # answers to tasks of this level
    stage: int = 0  # index of the rewards' stage
    stage_rate: float | None = None  # moving average of the metric that ends the stage
    stage_steps: int = 0  # steps since the stage began


@dataclass(frozen=True, slots=True)
class TrainState(RunState):
    """How far a training run has come."""

    progress: Progress = field(default_factory=Progress)
    ahead: tuple[Mapping[str, Any], ...] = ()  # judged answers of later steps; see kernel_coder.train.ahead

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        # A dataclass with slots is a new class, which a bare super() does not know.
        own = {"progress": Progress(**values.get("progress", {})), "ahead": tuple(values.get("ahead", ()))}
        return super(TrainState, cls).from_json({**values, **own})


def epoch_order(size: int, epoch: int, seed: int, shuffle: bool) -> list[int]:
    """Return the order of ``size`` items in an epoch: a new permutation in each, or always the same without
    ``shuffle``."""
    if not shuffle:
        return list(range(size))
    return torch.randperm(size, generator=torch.Generator().manual_seed(completion_seed(seed, "epoch", epoch))).tolist()


def draw_epochs(size: int, start: int, count: int, seed: int, shuffle: bool) -> list[int]:
    """Items ``start`` to ``start + count`` of an endless sequence of epochs, as indices below ``size``.

    >>> draw_epochs(3, 2, 3, seed=0, shuffle=False)
    [2, 0, 1]
    """
    orders: dict[int, list[int]] = {}
    places = []
    for place in range(start, start + count):
        epoch = place // size
        if epoch not in orders:
            orders[epoch] = epoch_order(size, epoch, seed, shuffle)
        places.append(orders[epoch][place % size])
    return places


def draw_by_success(ids: Sequence[str], rates: Mapping[str, float], count: int, floor: float, seed: int) -> list[int]:
    """Return the indices of ``count`` tasks, drawn with weights ``p (1 - p) + floor``. No task repeats before all were
    drawn.

    A task that is always or never solved has groups of equal rewards, from which nothing can be learnt. Because of the
    floor such a task is still tried from time to time. Each task gets the key ``-log(u) / weight`` with a uniform
    random number u, and the tasks with the smallest keys are drawn (Efraimidis and Spirakis 2006).
    """
    known = [rates.get(name, UNTRIED_RATE) for name in ids]
    weights = torch.tensor([p * (1 - p) + floor for p in known], dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    drawn: list[int] = []
    while len(drawn) < count:
        uniforms = torch.rand(len(ids), generator=generator, dtype=torch.float64).clamp(min=1e-300)
        drawn += (-uniforms.log() / weights).argsort(stable=True).tolist()
    return drawn[:count]


class HasTask(Protocol):
    """Anything with a task, such as a prompt."""

    @property
    def task(self) -> Task: ...


Prompted = TypeVar("Prompted", bound=HasTask)


def draw(
    prompts: Sequence[Prompted],
    progress: Progress,
    config: TrainConfig,
    count: int,
    seed: tuple[int | str, ...],
    without: Collection[str] = (),
) -> list[Prompted]:
    """Draws the tasks to try next.

    Args:
        prompts: all prompts to train on.
        progress: that of the run, with the number of tasks drawn so far.
        config: how to draw.
        count: tasks to draw.
        seed: for drawing by success rate.
        without: ids of tasks that are drawn only if there are not enough others.
    """
    eligible = [p for p in prompts if progress.level is None or level_of(p.task) <= progress.level]
    if config.sampler.kind == "epochs":
        places = draw_epochs(len(eligible), progress.drawn, count, config.run.seed, config.data.shuffle)
    else:
        fresh = [p for p in eligible if p.task.id not in without]
        eligible = fresh if len(fresh) >= count else eligible
        names = [p.task.id for p in eligible]
        number = completion_seed(*seed, "tasks")
        places = draw_by_success(names, progress.rates, count, config.sampler.floor, number)
    return [eligible[place] for place in places]


def level_of(task: Task) -> int:
    """Return the task's level of difficulty; -1, below all levels, if its data states none."""
    level = task.metadata.get("level")
    return int(level) if isinstance(level, int | float) and not isinstance(level, bool) else -1


def first_progress(tasks: Sequence[Task], config: SamplerConfig) -> Progress:
    """Return the progress before the first step.

    Raises:
        ValueError: all tasks are harder than the first level.
    """
    if config.max_level is not None and min(map(level_of, tasks)) > config.max_level:
        easiest = min(map(level_of, tasks))
        raise ValueError(f"sampler.max_level = {config.max_level} leaves no task: the easiest has level {easiest}")
    return Progress(level=config.max_level)


def after_answers(
    progress: Progress, tasks: Sequence[Task], successes: Sequence[Sequence[bool]], config: SamplerConfig
) -> Progress:
    """Updates the success rates of tasks and of the level.

    Args:
        progress: before.
        tasks: the tasks that were answered.
        successes: for each task, whether each scored rollout was correct.
        config: how rates are averaged.
    """
    rates = dict(progress.rates)
    level_rate, level_answers = progress.level_rate, progress.level_answers
    for task, group in zip(tasks, successes, strict=True):
        if not group:  # no answer could be scored
            continue
        share = sum(group) / len(group)
        rates[task.id] = _averaged(rates.get(task.id), share, config.decay)
        if progress.level is not None and level_of(task) == progress.level:
            level_rate = _averaged(level_rate if level_answers else None, share, config.decay)
            level_answers += len(group)
    return replace(progress, rates=rates, level_rate=level_rate, level_answers=level_answers)


def next_level(progress: Progress, tasks: Sequence[Task], config: SamplerConfig) -> Progress:
    """Adds the next level if the present one was passed, or if it has no tasks.

    A level is passed with ``level_up_after`` answers and a success rate of ``level_up_at``.
    """
    if progress.level is None:
        return progress
    here = any(level_of(task) == progress.level for task in tasks)
    passed = progress.level_answers >= config.level_up_after and progress.level_rate >= config.level_up_at
    above = [level for level in map(level_of, tasks) if level > progress.level]
    if not above or (here and not passed):
        return progress
    return replace(progress, level=min(above), level_rate=UNTRIED_RATE, level_answers=0)


def next_stage(
    progress: Progress, stages: Sequence[StageConfig], metrics: Mapping[str, float], decay: float
) -> Progress:
    """Updates the stage of the rewards after a step with these metrics. A stage that has ended never returns."""
    if progress.stage + 1 >= len(stages):
        return progress
    stage = stages[progress.stage]
    value = metrics.get(str(stage.until))
    steps = progress.stage_steps + 1
    if value is None or value != value:  # nothing could be measured in this step
        return replace(progress, stage_steps=steps)
    rate = _averaged(progress.stage_rate, value, decay)
    assert stage.reaches is not None  # StageConfig
    if rate >= stage.reaches and steps >= stage.min_steps:
        return replace(progress, stage=progress.stage + 1, stage_rate=None, stage_steps=0)
    return replace(progress, stage_rate=rate, stage_steps=steps)


def stage_factors(config: TrainConfig, progress: Progress) -> Mapping[str, float] | None:
    """Return the factors of the rewards' weights in the present stage, by label; None without stages."""
    return config.stages[progress.stage].weights if config.stages else None


def learn(
    progress: Progress,
    sampled: Sequence[Answers],
    prompts: Sequence[HasTask],
    config: TrainConfig,
    metrics: Mapping[str, float],
) -> Progress:
    """Return the progress after a step: new success rates, and possibly the next level and the next stage.

    Args:
        progress: before the step.
        sampled: all answers of the step.
        prompts: all prompts to train on.
        config: of the run.
        metrics: of the step.
    """
    for answers in sampled:
        tasks = [prompt.task for prompt in answers.prompts]
        progress = after_answers(progress, tasks, answers.successes(config.sampler.success_reward), config.sampler)
    progress = next_level(progress, [prompt.task for prompt in prompts], config.sampler)
    return next_stage(progress, config.stages, metrics, config.sampler.decay)


def progress_metrics(progress: Progress, config: TrainConfig) -> dict[str, float]:
    """Return the metrics that describe the progress. ``sampler/useful_tasks`` counts tasks that are solved
    sometimes."""
    rates = list(progress.rates.values())
    metrics = {"sampler/tasks_tried": float(len(rates))}
    if rates:
        metrics["sampler/success_rate"] = sum(rates) / len(rates)
        metrics["sampler/useful_tasks"] = float(sum(0.05 < rate < 0.95 for rate in rates))
    if progress.level is not None:
        metrics |= {"sampler/level": float(progress.level), "sampler/level_rate": progress.level_rate}
    if config.stages:
        metrics["stage"] = float(progress.stage)
    return metrics


def _averaged(old: float | None, new: float, decay: float) -> float:
    return new if old is None else decay * old + (1 - decay) * new
