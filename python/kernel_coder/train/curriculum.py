"""How far a run has come, and what follows: which tasks are drawn, how hard they may be, under which rewards.

Everything here is a pure function of a :class:`Progress`, which is saved with the checkpoint, so a resumed run draws
the same tasks. Measured rates are exponential moving averages: ``decay * old + (1 - decay) * new``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

from kernel_coder.rollout import completion_seed
from kernel_coder.tasks import Task
from kernel_coder.train.config import SamplerConfig, StageConfig, TrainConfig

if TYPE_CHECKING:
    from kernel_coder.train.groups import Answers

UNSEEN = 0.5
"""The success rate that a task is taken to have until it was tried: the one of which most can be learnt."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What was measured so far."""

    drawn: int = 0  # tasks, in the order of epochs
    rates: Mapping[str, float] = field(default_factory=dict)  # success rate by task id, of those that were tried
    level: int | None = None  # tasks above are not drawn
    level_rate: float = UNSEEN  # success rate at this level
    level_answers: int = 0
    stage: int = 0  # of the rewards
    stage_rate: float | None = None  # of the metric that ends the stage
    stage_steps: int = 0


def epoch_order(size: int, epoch: int, seed: int, shuffle: bool) -> list[int]:
    """The order of an epoch; each has its own."""
    if not shuffle:
        return list(range(size))
    return torch.randperm(size, generator=torch.Generator().manual_seed(completion_seed(seed, "epoch", epoch))).tolist()


def draw_epochs(size: int, start: int, count: int, seed: int, shuffle: bool) -> list[int]:
    """``count`` further places of an endless sequence of epochs, each in its own order.

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
    """Places of ``count`` tasks, without repetition as long as there are others, by weight ``p (1 - p) + floor``.

    A task that is always solved, and one that never is, has groups without spread and teaches nothing; the floor keeps
    trying them. Each gets the key ``-log(u) / weight``, and the smallest are drawn (Efraimidis and Spirakis 2006).
    """
    known = [rates.get(name, UNSEEN) for name in ids]
    weights = torch.tensor([p * (1 - p) + floor for p in known], dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    drawn: list[int] = []
    while len(drawn) < count:
        uniforms = torch.rand(len(ids), generator=generator, dtype=torch.float64).clamp(min=1e-300)
        drawn += (-uniforms.log() / weights).argsort(stable=True).tolist()
    return drawn[:count]


class HasTask(Protocol):
    """A prompt of the run."""

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
) -> tuple[list[Prompted], Progress]:
    """The tasks to try next. ``without`` names those that should not come, as long as there are enough others."""
    eligible = [p for p in prompts if progress.level is None or level_of(p.task) <= progress.level]
    after = replace(progress, drawn=progress.drawn + count)
    if config.sampler.kind == "epochs":
        places = draw_epochs(len(eligible), progress.drawn, count, config.run.seed, config.data.shuffle)
    else:
        fresh = [p for p in eligible if p.task.id not in without]
        eligible = fresh if len(fresh) >= count else eligible
        names = [p.task.id for p in eligible]
        number = completion_seed(*seed, "tasks")
        places = draw_by_success(names, progress.rates, count, config.sampler.floor, number)
    return [eligible[place] for place in places], after


def level_of(task: Task) -> int:
    """The task's difficulty; one that states none may always be drawn."""
    level = task.metadata.get("level")
    return int(level) if isinstance(level, int | float) and not isinstance(level, bool) else -1


def first_progress(tasks: Sequence[Task], config: SamplerConfig) -> Progress:
    """Where a run begins.

    Raises:
        ValueError: no task is as easy as the first level.
    """
    if config.max_level is not None and min(map(level_of, tasks)) > config.max_level:
        easiest = min(map(level_of, tasks))
        raise ValueError(f"sampler.max_level = {config.max_level} leaves no task: the easiest has level {easiest}")
    return Progress(level=config.max_level)


def after_answers(
    progress: Progress, tasks: Sequence[Task], successes: Sequence[Sequence[bool]], config: SamplerConfig
) -> Progress:
    """What these groups of answers say: a rate for each task, and whether the next level may begin.

    A level ends once ``level_up_after`` answers to its tasks were seen and their rate has reached ``level_up_at``.
    """
    rates = dict(progress.rates)
    level_rate, level_answers = progress.level_rate, progress.level_answers
    for task, group in zip(tasks, successes, strict=True):
        if not group:  # none of its answers could be scored
            continue
        share = sum(group) / len(group)
        rates[task.id] = _averaged(rates.get(task.id), share, config.decay)
        if progress.level is not None and level_of(task) == progress.level:
            level_rate = _averaged(level_rate if level_answers else None, share, config.decay)
            level_answers += len(group)
    return replace(progress, rates=rates, level_rate=level_rate, level_answers=level_answers)


def next_level(progress: Progress, tasks: Sequence[Task], config: SamplerConfig) -> Progress:
    """The level after the one that was passed, if it was and there is one."""
    if progress.level is None:
        return progress
    here = any(level_of(task) == progress.level for task in tasks)
    passed = progress.level_answers >= config.level_up_after and progress.level_rate >= config.level_up_at
    above = [level for level in map(level_of, tasks) if level > progress.level]
    if not above or (here and not passed):
        return progress
    return replace(progress, level=min(above), level_rate=UNSEEN, level_answers=0)


def next_stage(
    progress: Progress, stages: Sequence[StageConfig], metrics: Mapping[str, float], decay: float
) -> Progress:
    """The stage of the rewards after a step with these metrics; a stage that has ended does not come back."""
    if progress.stage + 1 >= len(stages):
        return progress
    stage = stages[progress.stage]
    value = metrics.get(str(stage.until))
    steps = progress.stage_steps + 1
    if value is None or value != value:  # nothing could be measured
        return replace(progress, stage_steps=steps)
    rate = _averaged(progress.stage_rate, value, decay)
    assert stage.reaches is not None  # StageConfig
    if rate >= stage.reaches and steps >= stage.min_steps:
        return replace(progress, stage=progress.stage + 1, stage_rate=None, stage_steps=0)
    return replace(progress, stage_rate=rate, stage_steps=steps)


def stage_factors(config: TrainConfig, progress: Progress) -> Mapping[str, float] | None:
    """What the rewards' weights are multiplied by; None without stages."""
    return config.stages[progress.stage].weights if config.stages else None


def learn(
    progress: Progress,
    sampled: Sequence[Answers],
    prompts: Sequence[HasTask],
    config: TrainConfig,
    metrics: Mapping[str, float],
) -> Progress:
    """What a step has shown: success rates, and with them the next level and the next stage."""
    for answers in sampled:
        tasks = [prompt.task for prompt in answers.prompts]
        progress = after_answers(progress, tasks, answers.successes(config.sampler.success_reward), config.sampler)
    progress = next_level(progress, [prompt.task for prompt in prompts], config.sampler)
    return next_stage(progress, config.stages, metrics, config.sampler.decay)


def progress_metrics(progress: Progress, config: TrainConfig) -> dict[str, float]:
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
