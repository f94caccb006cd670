"""What every kind of run does around its steps: it opens, goes on until the last or a signal, and says what it was."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

import kernel_coder
from kernel_coder.policy.model import Policy
from kernel_coder.run.checkpoint import (
    RngState,
    TrainState,
    capture_rng,
    list_checkpoints,
    remove_checkpoints_after,
    restore_rng,
    seed_rng,
    weights_hash,
)
from kernel_coder.run.errors import StopRequested
from kernel_coder.run.logs import RunLog
from kernel_coder.run.signals import StopSignal
from kernel_coder.train.config import RunnableConfig
from kernel_coder.train.setup import open_run_dir, remove_run

Step = tuple[TrainState, Mapping[str, float], Iterable[Mapping[str, Any]]]
"""The state after a step, its numbers, and the lines of ``samples.jsonl``."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    status: str  # "finished" or "stopped"
    summary: Path


class Opened(Protocol):
    """What every kind of session has."""

    @property
    def judge(self) -> AbstractContextManager[Any]: ...
    @property
    def state(self) -> TrainState: ...
    @property
    def rng(self) -> RngState: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


Session = TypeVar("Session", bound=Opened)
Config = TypeVar("Config", bound=RunnableConfig)


@contextmanager
def opened(
    config: Config,
    resume: str | None,
    open_session: Callable[[Config, Path | None], Session],
    open_log: Callable[[Path, Session], RunLog],
) -> Iterator[tuple[Path, Session, RunLog]]:
    """A run's folder, session and log, ready for the first step that is left, and the session's judge at work.

    An earlier run in the folder is removed last, when nothing that the config says can fail any more. ``resume`` is
    that of :func:`kernel_coder.train.setup.open_run_dir`.
    """
    if config.run.num_threads is not None:
        torch.set_num_threads(config.run.num_threads)
    seed_rng(config.run.seed)
    run_dir, checkpoint, notes = open_run_dir(config, resume)
    session = open_session(config, checkpoint)
    with session.judge:
        if resume is None:
            remove_run(run_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        remove_checkpoints_after(run_dir, session.state.step)
        with closing(open_log(run_dir, session)) as log:
            for note in (*notes, *session.notes):
                log.message(note)
            restore_rng(session.rng)
            yield run_dir, session, log


def run_steps(
    run_step: Callable[[TrainState], Step],
    save: Callable[[TrainState], None],
    state: TrainState,
    *,
    total: int,
    save_steps: int,
    run_dir: Path,
    log: RunLog,
    stop: StopSignal,
) -> tuple[TrainState, str]:
    """Every step that is left. Returns the last state and ``finished`` or, after a signal, ``stopped``.

    ``run_step`` may raise :class:`StopRequested` as long as it has changed neither weights nor files.
    """
    rng = capture_rng()
    try:
        while state.step < total:
            rng = capture_rng()
            stop.poll()
            state, metrics, samples = run_step(state)
            log.step(state.step, metrics, samples)
            if state.step % save_steps == 0 or state.step == total:
                save(state)
    except StopRequested as signal:
        restore_rng(rng)
        if list_checkpoints(run_dir)[:1] != [run_dir / f"checkpoint-{state.step:08d}"]:
            save(state)
        log.message(f"{signal} received: step {state.step} is saved, go on with --resume")
        return state, "stopped"
    return state, "finished"


def facts(config: RunnableConfig, policy: Policy, state: TrainState, run_dir: Path) -> dict[str, Any]:
    """The last entries of every ``summary.json``: what was trained, on what, and with what."""
    newest = list_checkpoints(run_dir)[:1]
    return {
        "weights_sha256": weights_hash(policy.trainable()),
        "checkpoint": str(newest[0].resolve()) if newest else None,
        "model": config.model.name_or_path,
        "data": config.data.path,
        "data_fingerprint": state.data_fingerprint,
        "seed": config.run.seed,
        "threads": torch.get_num_threads(),
        "device": str(policy.device),
        "kernel_coder": kernel_coder.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "finished_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
