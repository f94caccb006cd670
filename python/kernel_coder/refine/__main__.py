"""``kernel-coder refine module.py [--model M] [--strategy S] [--turns T] [--parallel P] [--flag value ...]``

Exit codes: 0: ``best.py`` holds a verified kernel. 1: the budget is spent and no kernel is correct. 2: a mistake in the
flags or the module (one sentence on stderr). 3: the judge failed on every answer or cannot be started. 75: SIGTERM,
SIGINT or a failing server stopped the search; the work so far is saved, and ``--resume`` continues it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from kernel_coder.evaluate.errors import (
    EXIT_HARNESS,
    EXIT_MISTAKE,
    EXIT_STOPPED,
    HarnessFailed,
    ServerFailed,
    UsageError,
)
from kernel_coder.evaluate.help import show_help
from kernel_coder.judge.verdict import REFUSED
from kernel_coder.refine.config import COMMON_FIELDS, USAGE, RefineConfig, parse
from kernel_coder.run.errors import StopRequested
from kernel_coder.run.flags import end

NOTHING_FOUND = 1


def main(
    arguments: list[str] | None = None,
    *,
    make_model: Callable[..., Any] | None = None,
    make_judge: Callable[..., Any] | None = None,
) -> int:
    """Runs the command and returns its exit code; ``make_model`` and ``make_judge`` replace the real ones in tests."""
    given = sys.argv[1:] if arguments is None else arguments
    if show_help(given, USAGE, RefineConfig, COMMON_FIELDS):
        return 0
    try:
        config, resume = parse(given)
        return refine(config, resume, make_model, make_judge)
    except UsageError as error:
        return end(error, EXIT_MISTAKE)
    except HarnessFailed as error:
        if task := str(error).partition(REFUSED)[2]:  # the module's own mistake, such as an exception
            return end(f"{config.module} cannot be judged against: {task}", EXIT_MISTAKE)
        return end(error, EXIT_HARNESS)


def refine(
    config: RefineConfig,
    resume: bool = False,
    make_model: Callable[..., Any] | None = None,
    make_judge: Callable[..., Any] | None = None,
) -> int:
    """Runs the search, writes the report even after an error, and returns the exit code."""
    # These import torch, which takes seconds: the flags are parsed first.
    from kernel_coder.evaluate.devices import on_this_machine, resolve_dtype
    from kernel_coder.evaluate.run import load_judge, load_model
    from kernel_coder.library import Library, default_path
    from kernel_coder.refine.evolve import Evolution
    from kernel_coder.refine.report import write_report
    from kernel_coder.refine.search import Search, load_module
    from kernel_coder.refine.trajectory import BEST, Trajectory
    from kernel_coder.run.hashes import sha256_text
    from kernel_coder.run.signals import listening

    task = load_module(config)
    config = on_this_machine(config)
    model_config = config.model_config_of(resolve_dtype(config.dtype, config.device))

    def say(line: str) -> None:
        print(line, flush=True)

    with Trajectory(config.folder, sha256_text(task.reference), resume) as trajectory, listening() as stop:
        (config.folder / "config.json").write_text(config.model_dump_json(indent=2) + "\n")
        failure: Exception | None = None
        ended = ""
        open_judge = make_judge or load_judge
        judge = open_judge(device=config.judged_on, backend=config.backend, config=config.judge, log=None)
        with judge:
            model = (make_model or load_model)(model_config)
            try:
                with ExitStack() as stack:
                    library: Library | None = None
                    if config.examples or config.to_library:
                        path = config.library or default_path()
                        library = stack.enter_context(Library(path, create=config.to_library))
                    kind = Evolution if config.strategy == "evolve" else Search
                    ended = kind(config, task, trajectory, model, judge, stop.poll, say, library).run()
            except (StopRequested, ServerFailed, HarnessFailed) as error:
                failure, ended = error, f"stopped: {error}"
            finally:
                model.close()
                page = write_report(config, task, trajectory, ended or "an error stopped the search")
        best = trajectory.best
        say(f"{ended}; {len(trajectory.attempts)} answers, {trajectory.evaluations} evaluations: {page}")
        if best is None and failure is None:
            say(f"no correct kernel found: {trajectory.failures()}")
            evolves = config.strategy == "evolve" and config.evaluations is not None
            more = f"--evaluations {2 * (config.evaluations or 1)}" if evolves else f"--turns {2 * config.turns}"
            more = f"--strategy evolve {more}" if config.strategy == "evolve" else more
            say(f"next: more answers, as in kernel-coder refine {config.module} --resume {more}")
        elif best is not None:
            best_file = config.folder / BEST
            say(f"the best kernel is {best_file}")
            say(f"next: kernel-coder judge --task {config.module} --candidate {best_file} --backend {config.backend}")
        if isinstance(failure, HarnessFailed):
            raise failure
        if failure is not None:
            return end(
                f"stopped by {failure}; the work so far is in {config.folder}: continue with --resume", EXIT_STOPPED
            )
        return 0 if best is not None else NOTHING_FOUND


if __name__ == "__main__":
    sys.exit(main())
