"""The frame around the steps of every kind of run: prepare, run to the last step or a signal, summarise."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
import yaml

import kernel_coder
from kernel_coder.run.checkpoint import (
    RunState,
    Saveable,
    State,
    list_checkpoints,
    remove_checkpoints_after,
    save_checkpoint,
)
from kernel_coder.run.config import Config, RunConfig, RunnableConfig
from kernel_coder.run.errors import StopRequested
from kernel_coder.run.files import CONFIG
from kernel_coder.run.folder import choose_folder, link_latest, open_run_dir, remove_run
from kernel_coder.run.hashes import sha256_tensors
from kernel_coder.run.logs import RunLog
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
    """What a step leaves behind."""

    state: State
    metrics: Mapping[str, float]
    samples: Iterable[Mapping[str, Any]] = ()  # lines of samples.jsonl


SomeState = TypeVar("SomeState", bound=RunState, covariant=True)


class PreparedRun(Protocol[SomeState]):
    """What every kind of run has prepared before its first step."""

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
    """A run that is ready for its next step, with its log open and its judge started.

    An earlier run in the folder is deleted only after ``prepare`` has succeeded, so a mistake in the config costs
    nothing.

    Args:
        config: of the run.
        resume: see :func:`~kernel_coder.run.folder.open_run_dir`.
        prepare: loads all that the run needs; is given the config and the checkpoint to continue from, if any.
        shown: the metrics that are printed, and their labels.
    """
    if config.run.num_threads is not None:
        torch.set_num_threads(config.run.num_threads)
    seed_rng(config.run.seed)
    is_linked = config.run.new_folder
    config = config.model_copy(update={"run": choose_folder(config.run, resume)})
    run_dir, checkpoint, notes = open_run_dir(config.run, resume)
    if checkpoint is not None:
        notes += changed_config(config, checkpoint)
    run = prepare(config, checkpoint)
    with run.judge:
        if resume is None:
            remove_run(run_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        if is_linked:
            link_latest(run_dir)
        remove_checkpoints_after(run_dir, run.state.step)
        with closing(RunLog(run_dir, config, run.state.step, total=run.total_steps, shown=shown)) as log:
            for note in (*notes, *run.notes):
                log.message(note)
            restore_rng(run.rng)
            yield run, log


def changed_config(config: RunnableConfig, checkpoint: Path) -> list[str]:
    """A note about the fields in which a resumed run's config differs from that of its last part; none if it does not.

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
    run: PreparedRun[State], config: RunConfig, log: RunLog, step: Callable[[State, Poll, Stopwatch], StepResult[State]]
) -> tuple[State, str]:
    """Runs all remaining steps, and logs and saves them.

    The stopwatch that a step is given measures its phases, and tells the terminal which one lasts.

    ``step`` may let :class:`StopRequested` pass as long as it has changed neither weights nor files. The run is then
    saved as it was after the step before.

    Returns:
        The last state, and ``finished`` or, after a signal, ``stopped``.
    """
    state, rng = run.state, capture_rng()
    with listening() as stop:
        try:
            while state.step < run.total_steps:
                rng = capture_rng()
                stop.poll()
                done = step(state, stop.poll, Stopwatch(log.doing))
                state = done.state
                log.step(state.step, done.metrics, done.samples)
                if state.step % config.save_steps == 0 or state.step == run.total_steps:
                    _save(run, state, config, log.run_dir)
        except StopRequested as signal:
            restore_rng(rng)
            if list_checkpoints(log.run_dir)[:1] != [log.run_dir / f"checkpoint-{state.step:08d}"]:
                _save(run, state, config, log.run_dir)
            log.message(f"{signal} received: step {state.step} is saved; continue with --resume")
            return state, "stopped"
    return state, "finished"


def _save(run: PreparedRun[State], state: State, config: RunConfig, run_dir: Path) -> None:
    save_checkpoint(run_dir, run.policy, run.optimizer, state, capture_rng(), keep=config.save_total_limit)


def progress_facts(status: str, state: RunState) -> dict[str, Any]:
    """The first entries of every ``summary.json``: how far the run has come."""
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
    """The last entries of every ``summary.json``: the resulting weights, and all that they depend on."""
    newest = list_checkpoints(run_dir)[:1]
    weights = run.policy.trainable()
    return {
        "weights_sha256": sha256_tensors(weights),
        "checkpoint": str(newest[0].resolve()) if newest else None,
        "model": model,
        "data": data,
        "data_fingerprint": state.data_fingerprint,
        "seed": config.seed,
        "threads": torch.get_num_threads(),
        "device": str(next(iter(weights.values())).device),
        "kernel_coder": kernel_coder.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "finished_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
