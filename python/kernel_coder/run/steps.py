"""The loop over the steps of every kind of run: prepares, runs to the last step or a signal, and summarises."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
import yaml

import kernel_coder
from kernel_coder.run import distributed
from kernel_coder.run.checkpoint import (
    RunState,
    Saveable,
    State,
    Writing,
    list_checkpoints,
    remove_checkpoints_after,
    save_checkpoint,
)
from kernel_coder.run.config import Config, ParallelConfig, RunConfig, RunnableConfig
from kernel_coder.run.errors import StopRequested
from kernel_coder.run.files import CONFIG
from kernel_coder.run.folder import choose_folder, link_latest, open_run_dir, remove_run
from kernel_coder.run.hashes import sha256_tensors
from kernel_coder.run.logs import NoLog, RunLog
from kernel_coder.run.rng import RngState, capture_rng, restore_rng, seed_rng
from kernel_coder.run.signals import listening
from kernel_coder.run.stopwatch import Stopwatch

Poll = Callable[[], None]
"""Raises :class:`StopRequested` if the run was asked to stop."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended."""

    status: str  # "finished" or "stopped"
    summary: Path


@dataclass(frozen=True, slots=True)
class StepResult(Generic[State]):
    """The result of a step."""

    state: State
    metrics: Mapping[str, float]
    samples: Iterable[Mapping[str, Any]] = ()  # lines of samples.jsonl


SomeState = TypeVar("SomeState", bound=RunState, covariant=True)


class PreparedRun(Protocol[SomeState]):
    """The attributes that every kind of run has before its first step."""

    @property
    def policy(self) -> Saveable: ...
    @property
    def optimizer(self) -> torch.optim.Optimizer: ...
    @property
    def judge(self) -> AbstractContextManager[Any]: ...
    @property
    def state(self) -> SomeState: ...
    @property
    def rng(self) -> RngState: ...
    @property
    def total_steps(self) -> int: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


Run = TypeVar("Run", bound=PreparedRun[Any])


@contextmanager
def opened(
    config: Config, resume: str | None, prepare: Callable[[Config, Path | None], Run], shown: Mapping[str, str]
) -> Iterator[tuple[Run, RunLog]]:
    """Opens a run for the block: it is ready for its next step, its log is open and its judge is started.

    An earlier run in the folder is deleted only after ``prepare`` has succeeded, so a mistake in the config destroys
    nothing. Rank 0 alone writes into the folder; the logs of other ranks are silent.

    Args:
        config: of the run.
        resume: see :func:`~kernel_coder.run.folder.open_run_dir`.
        prepare: loads all that the run needs, given the config and the checkpoint to continue from (or None).
        shown: the metrics that are printed, and their labels.
    """
    if config.run.num_threads is not None:
        torch.set_num_threads(config.run.num_threads)
    seed_rng(config.run.seed)
    is_linked = config.run.new_folder

    def open_folder() -> tuple[RunConfig, Path, Path | None, list[str]]:
        chosen = choose_folder(config.run, resume)
        run_dir, checkpoint, notes = open_run_dir(chosen, resume)
        changed = [] if checkpoint is None else changed_config(config.model_copy(update={"run": chosen}), checkpoint)
        return chosen, run_dir, checkpoint, notes + changed

    chosen, run_dir, checkpoint, notes = distributed.from_first(open_folder)
    config = config.model_copy(update={"run": chosen})
    run = prepare(config, checkpoint)
    with run.judge:
        distributed.barrier()  # all ranks have read what they need of an earlier run
        if distributed.world().is_first:
            if resume is None:
                remove_run(run_dir)
            run_dir.mkdir(parents=True, exist_ok=True)
            if is_linked:
                link_latest(run_dir)
            remove_checkpoints_after(run_dir, run.state.step)
            made: RunLog = RunLog(run_dir, config, run.state.step, total=run.total_steps, shown=shown)
        else:
            made = NoLog(run_dir)
        with closing(made) as log:
            for note in (*notes, *run.notes):
                log.message(note)
            restore_rng(run.rng)
            yield run, log


def changed_config(config: RunnableConfig, checkpoint: Path) -> list[str]:
    """Return a note about the fields in which a resumed run's config differs from that of its last part; none if it
    does not.

    Args:
        config: of the resumed run.
        checkpoint: in the folder of the run.
    """
    try:
        earlier = yaml.safe_load((checkpoint.parent / CONFIG).read_text(encoding="utf-8"))
        changes = config.differences(earlier)
    except (OSError, ValueError, AttributeError, yaml.YAMLError):
        return []
    return [f"the config differs from that of {checkpoint.name}: {'; '.join(changes)}"] if changes else []


def run_steps(
    run: PreparedRun[State],
    config: RunConfig,
    log: RunLog,
    step: Callable[[State, Poll, Stopwatch], StepResult[State]],
    parallel: ParallelConfig | None = None,
    completed: Callable[[State], State] = lambda state: state,
) -> tuple[State, str]:
    """Runs all remaining steps, and logs and saves them.

    Each step gets a stopwatch, which measures its phases and shows the present one on the terminal.

    ``step`` may let :class:`StopRequested` pass as long as it has changed neither weights nor files. The run is then
    saved as it was after the step before.

    ``completed`` adds to a state the data that only a checkpoint needs.

    Returns:
        The last state, and ``finished`` or, after a signal, ``stopped``.
    """
    state, rng = run.state, capture_rng()
    saver = Saver(run, config, parallel or ParallelConfig(), log.run_dir)
    ranks = RankTimes()
    with listening() as stop, saver:
        try:
            while state.step < run.total_steps:
                rng = capture_rng()
                stop.poll()
                saver.poll()
                done = step(state, stop.poll, Stopwatch(log.doing))
                state = done.state
                metrics, notes = ranks.compare(done.metrics)
                log.step(state.step, metrics, done.samples)
                for note in notes:
                    log.message(note)
                if state.step % config.save_steps == 0 or state.step == run.total_steps:
                    saver.save(completed(state), whole=state.step == run.total_steps)
        except StopRequested as signal:
            restore_rng(rng)
            if not saver.has(state):
                saver.save(completed(state), whole=False)
            saver.finish()
            log.message(f"{signal} received: step {state.step} is saved; continue with --resume")
            return state, "stopped"
    return state, "finished"


class Saver:
    """Saves the checkpoints of a run.

    It is a context manager; leaving it waits until the last checkpoint is complete. After an exception a checkpoint
    that is being written is abandoned.
    """

    def __init__(self, run: PreparedRun[Any], config: RunConfig, parallel: ParallelConfig, run_dir: Path) -> None:
        self.run, self.config, self.parallel, self.run_dir = run, config, parallel, run_dir
        self.writing: Writing | None = None

    def save(self, state: RunState, *, whole: bool) -> None:
        """Begins to save a checkpoint. ``whole``: in one piece, as Hugging Face's ``from_pretrained`` reads it."""
        self.finish()
        self.writing = save_checkpoint(
            self.run_dir,
            self.run.policy,
            self.run.optimizer,
            state,
            capture_rng(),
            keep=self.config.save_total_limit,
            whole=whole or self.parallel.whole_checkpoints,
        )
        if not self.parallel.async_save:
            self.finish()

    def poll(self) -> None:
        """Completes the checkpoint that is being written if all ranks have written their parts."""
        if self.writing is not None and not distributed.any_of(not self.writing.is_done()):
            self.finish()

    def finish(self) -> None:
        """Waits until the checkpoint that is being written is complete."""
        if self.writing is not None:
            writing, self.writing = self.writing, None
            writing.finish()

    def has(self, state: RunState) -> bool:
        """Return whether the newest checkpoint is of this state."""
        self.finish()
        name = f"checkpoint-{state.step:08d}"
        return distributed.from_first(lambda: [path.name for path in list_checkpoints(self.run_dir)[:1]] == [name])

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is None:
            self.finish()


LAG_RATIO = 1.25
"""A rank lags if its phases take at least this many times as long as those of the median rank."""

LAG_STEPS = 3
"""Number of steps in a row in which a rank must lag before it is named, so that a single long answer is not
reported."""


class RankTimes:
    """Compares the time that ranks spend in the phases of steps."""

    def __init__(self) -> None:
        self.lagging: dict[int, int] = {}  # steps in a row, by rank

    def compare(self, metrics: Mapping[str, float]) -> tuple[dict[str, float], list[str]]:
        """Return the metrics of this rank with the times of all ranks, and notes about ranks that lag.

        Waiting for other ranks (``time/wait_s``) is not counted. With one rank the metrics stay as they are. All ranks
        must call this together.
        """
        world = distributed.world()
        if world.is_alone:
            return dict(metrics), []
        own = {name: value for name, value in metrics.items() if name.startswith("time/") and name.endswith("_s")}
        everyone = distributed.gathered((platform.node(), own))
        busy = [sum(times.get(name, 0.0) for name in BUSY) for _, times in everyone]
        found = dict(metrics)
        for rank, (_, times) in enumerate(everyone):
            for name in (*BUSY, "time/update_s"):
                found[f"time/rank{rank}/{name.removeprefix('time/')}"] = times.get(name, 0.0)
        middle, slowest = statistics.median(busy), max(busy)
        found |= {"time/slowest_rank": float(busy.index(slowest)), "time/imbalance": slowest / max(middle, 1e-9)}
        notes = []
        for rank, seconds in enumerate(busy):
            self.lagging[rank] = self.lagging.get(rank, 0) + 1 if seconds > LAG_RATIO * middle else 0
            if self.lagging[rank] == LAG_STEPS:
                notes.append(
                    f"rank {rank} on {everyone[rank][0]} lags: {seconds:.1f} s of work in this step, where the median "
                    f"rank has {middle:.1f} s"
                )
        return found, notes


BUSY = ("time/rollout_s", "time/logprobs_s")
"""The phases whose length depends on the rank. In an update all ranks wait for each other, layer by layer."""


def progress_facts(status: str, state: RunState) -> dict[str, Any]:
    """Return the first entries of every ``summary.json``: how far the run has come."""
    return {
        "status": status,
        "steps": state.step,
        "updates": state.update,
        "skipped_updates": state.skipped,
        "trained_tokens": state.trained_tokens,
    }


def origin_facts(
    run: PreparedRun[State], state: State, config: RunConfig, run_dir: Path, *, model: str, data: str
) -> dict[str, Any]:
    """Return the last entries of every ``summary.json``: the resulting weights, and all that they depend on."""
    newest = list_checkpoints(run_dir)[:1]
    weights = run.policy.trainable()
    return {
        "weights_sha256": sha256_tensors(run.policy.whole()),
        "checkpoint": str(newest[0].resolve()) if newest else None,
        "model": model,
        "data": data,
        "data_fingerprint": state.data_fingerprint,
        "seed": config.seed,
        "processes": distributed.world().size,
        "threads": torch.get_num_threads(),
        "device": str(next(iter(weights.values())).device),
        "kernel_coder": kernel_coder.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "finished_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
