"""``kernel-coder evaluate --strategy S[,S ...] --tasks T [--evaluations N] [--seeds 0,1] [--resume] [--flag V ...]``

Searches for a kernel for each task with each strategy (serial, parallel, turns, evolve) and each seed, all with the
same budget of judged candidates, and draws the share of solved tasks and the best speedup against that budget. With
``--at-once N``, N searches run at the same time. Every flag of ``kernel-coder refine`` applies to all searches. Exit
codes are those of ``kernel-coder evaluate``.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from kernel_coder.evaluate.errors import (
    EXIT_HARNESS,
    EXIT_MISTAKE,
    EXIT_STOPPED,
    HarnessFailed,
    ServerFailed,
    UsageError,
)
from kernel_coder.refine.config import RefineConfig, parse
from kernel_coder.run.errors import StopRequested
from kernel_coder.run.flags import end, validated

STRATEGIES = {"serial": "serial", "parallel": "parallel", "turns": "best_of_turns", "evolve": "evolve"}
"""The strategies. The keys are their names here, the values those of ``refine``."""

PARALLEL = 8
"""Answers in a round, for every strategy, unless ``--parallel`` is given."""

ANSWERS_FOR_EVALUATION = 4
"""Upper limit for the number of answers, as a multiple of the budget in evaluations. Equal code is judged once, so a
model that repeats itself would never use up that budget."""

SUMMARY, TABLE, REPORT = "summary.json", "table.md", "report.html"
WIDTH, HEIGHT = 640, 220  # of a chart, in CSS pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareConfig:
    """All settings of a comparison.

    Attributes:
        strategies: names of :data:`STRATEGIES`.
        tasks: task set, as for ``kernel-coder evaluate``.
        exclude_families: names of families of tasks that are left out.
        limit: only the first tasks; None: all.
        evaluations: budget of each search, in judged candidates.
        seeds: each search is made once with each of these seeds.
        at_once: number of searches at the same time. A local model generates their answers in one batch; a server gets
            the requests of all of them.
        remember: judge equal code for the same task once in all searches together.
        output: folder for the results, with a folder for each search.
        search: the settings of the searches, of which strategy, module, seed, budget and output are replaced.
    """

    strategies: tuple[str, ...]
    tasks: str
    exclude_families: tuple[str, ...] = ()
    limit: int | None
    evaluations: int
    seeds: tuple[int, ...]
    at_once: int = 1
    remember: bool = False
    output: Path
    search: RefineConfig

    def search_config(self, strategy: str, seed: int, folder: Path) -> RefineConfig:
        """Return the config of one search."""
        given = self.search.model_dump(exclude={"judge", "turns"}, exclude_unset=True) | {"judge": self.search.judge}
        budget = {
            "strategy": STRATEGIES[strategy],
            "evaluations": self.evaluations,
            "parallel": given.get("parallel", PARALLEL),
        }
        budget["turns"] = math.ceil(ANSWERS_FOR_EVALUATION * self.evaluations / int(budget["parallel"]))
        return validated(RefineConfig, {**given, **budget, "seed": seed, "output": str(folder)})


def parse_compare(arguments: list[str]) -> tuple[CompareConfig, bool]:
    """Return the config of a command line, and whether it resumes an earlier comparison."""
    parser = argparse.ArgumentParser(prog="kernel-coder evaluate", description=__doc__, allow_abbrev=False)
    parser.add_argument("--strategy", required=True, help="strategies, as in evolve,serial,parallel,turns")
    parser.add_argument("--tasks", default="packaged", help="task set, as for evaluate without --strategy")
    parser.add_argument("--exclude-families", default="", help="families of tasks to leave out, as in bmm,loss")
    parser.add_argument("--limit", type=int, help="only the first N tasks")
    parser.add_argument("--evaluations", type=int, default=64, help="judged candidates of each search (default: 64)")
    parser.add_argument("--seeds", default="0", help="seeds, as in 0,1,2 (default: 0)")
    parser.add_argument("--at-once", type=int, default=1, help="number of searches at the same time (default: 1)")
    parser.add_argument(
        "--remember", action="store_true", help="judge equal code for the same task once, in all searches together"
    )
    parser.add_argument("--output", type=Path, default=Path("runs/strategies"), help="folder for the results")
    parser.add_argument("--resume", action="store_true", help="continue the comparison in the output folder")
    own, rest = parser.parse_known_args(arguments)
    strategies = tuple(own.strategy.split(","))
    for name in strategies:
        if name not in STRATEGIES:
            raise UsageError(f"--strategy must name some of {', '.join(STRATEGIES)}; got {name}")
    if own.evaluations < 1:
        raise UsageError(f"--evaluations must be at least 1; got {own.evaluations}")
    if own.at_once < 1:
        raise UsageError(f"--at-once must be at least 1; got {own.at_once}")
    try:
        seeds = tuple(int(seed) for seed in own.seeds.split(","))
    except ValueError:
        raise UsageError(f"--seeds must be numbers, as in 0,1,2; got {own.seeds}") from None
    search, _ = parse([own.tasks, *rest])
    config = CompareConfig(
        strategies=strategies,
        tasks=own.tasks,
        exclude_families=tuple(name for name in own.exclude_families.split(",") if name),
        limit=own.limit,
        evaluations=own.evaluations,
        seeds=seeds,
        at_once=own.at_once,
        remember=own.remember,
        output=own.output,
        search=search,
    )
    return config, own.resume


@dataclass(frozen=True, slots=True)
class Progress:
    """The best speedup of a search, 0 before the first correct candidate: after each different candidate, and after
    each answer.

    A correct candidate that was not timed counts as 1. A model that repeats itself gives more answers than candidates.
    """

    task: str
    seed: int
    best: tuple[float, ...]
    by_answer: tuple[float, ...]
    answers: int
    tokens: int
    timed: bool
    finished: bool = True

    def after(self, evaluations: int) -> float:
        """Return the best speedup after this many candidates; a search that ended earlier keeps its last one."""
        return _after(self.best, evaluations)

    def after_answers(self, answers: int) -> float:
        """Return the best speedup after this many answers; a search that ended earlier keeps its last one."""
        return _after(self.by_answer, answers)


def _after(best: Sequence[float], count: int) -> float:
    return best[min(count, len(best)) - 1] if best else 0.0


def compare(
    config: CompareConfig,
    *,
    resume: bool = False,
    make_model: Callable[..., Any] | None = None,
    make_judge: Callable[..., Any] | None = None,
    poll: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Runs the searches that the folder lacks, writes the results and returns the content of summary.json.

    Raises:
        UsageError: a setting is wrong, or the folder holds a comparison and ``resume`` is False.
        StopRequested, ServerFailed, HarnessFailed: the searches so far are saved, and results are written up to the
            number of candidates that all searches have reached.
    """
    from kernel_coder.evaluate.devices import on_this_machine, resolve_dtype
    from kernel_coder.evaluate.run import load_judge, load_model
    from kernel_coder.library import Library, default_path
    from kernel_coder.refine.evolve import Evolution
    from kernel_coder.refine.search import Search
    from kernel_coder.refine.shared_judge import SharedJudge
    from kernel_coder.refine.shared_model import SharedModel
    from kernel_coder.refine.trajectory import Trajectory
    from kernel_coder.run.hashes import sha256_text
    from kernel_coder.tasks import load_tasks

    config = replace(config, search=on_this_machine(config.search))
    search = config.search
    try:
        loaded = load_tasks(config.tasks, exclude_families=config.exclude_families or None).limit(config.limit)
    except (ValueError, OSError, ImportError) as error:
        message = str(error).replace("data.path", "--tasks").replace("data.exclude_families", "--exclude-families")
        raise UsageError(message) from None
    tasks = [replace(task, backend=search.backend, precision=search.precision) for task in loaded]
    if not resume and (config.output / SUMMARY).exists():
        raise UsageError(f"{config.output} already holds a comparison: pass --resume, or another --output")
    is_stopping = False
    reached: dict[tuple[int, int, str], Progress] = {}

    def poll_all() -> None:
        poll()
        if is_stopping:
            raise StopRequested("the failure of another search")

    def one_search(seed: int, number: int, name: str) -> None:
        task = tasks[number]
        folder = config.output / name / f"seed-{seed}" / f"{number:03}-{_slug(task.id)}"
        own = config.search_config(name, seed, folder)
        kind = Evolution if name == "evolve" else Search
        with ExitStack() as needed:
            library = None
            if search.examples or search.to_library:
                path = search.library or default_path()
                library = needed.enter_context(Library(path, create=search.to_library))
            model = needed.enter_context(lend())
            trajectory = needed.enter_context(Trajectory(folder, sha256_text(task.reference), resume))
            if isinstance(judge, SharedJudge):
                known = trajectory.attempts.values()
                judge.remember(task, ((one.code, one.verdict) for one in known if one.code and one.verdict))
            ended = None
            try:
                ended = kind(own, task, trajectory, model, judge, poll_all, _quiet, library).run()
            finally:
                progress = progress_of(trajectory, task.id, seed, finished=ended is not None)
                reached[seed, number, name] = progress
        best = progress.after(config.evaluations)
        told = f"best {best:.2f}x" if best and progress.timed else "solved" if best else "not solved"
        say(f"{task.id} seed {seed} {name}: {told} after {len(progress.best)} candidates; {ended}")

    with ExitStack() as stack:
        open_judge = make_judge or load_judge
        judge = open_judge(device=search.judged_on, backend=search.backend, config=search.judge, log=None)
        stack.enter_context(judge)
        if config.remember:
            judge = SharedJudge(judge)

        def open_model() -> Any:
            return (make_model or load_model)(search.model_config_of(resolve_dtype(search.dtype, search.device)))

        def lend_client() -> Any:  # a client of a server works in one thread only, so each search opens its own
            return closing(open_model())

        lend: Callable[[], Any] = lend_client
        if config.at_once == 1 or search.base_url is None:
            model = open_model()
            stack.callback(model.close)
            shared = SharedModel(model, poll_all, overlaps=search.judged_elsewhere)
            lend = partial(nullcontext, model) if config.at_once == 1 else shared.search
        threads = stack.enter_context(ThreadPoolExecutor(config.at_once, thread_name_prefix="search"))
        every = [
            (seed, number, name) for seed in config.seeds for number in range(len(tasks)) for name in config.strategies
        ]
        running = {one: threads.submit(one_search, *one) for one in every}
        try:
            raise_first_error(running.values())
        finally:
            is_stopping = True
            threads.shutdown(cancel_futures=True)
            begun = {name: [reached.get(one) for one in every if one[2] == name] for name in config.strategies}
            # A strategy has results only if all its searches have begun.
            found = {name: [one for one in some if one] for name, some in begun.items() if all(some)}
            summary = summarise(config, found)
            if summary["strategies"]:
                write_results(config, summary)
    return summary


def raise_first_error(searches: Iterable[Future[Any]]) -> None:
    """Waits for all searches, or until one fails; then raises its exception."""
    done, _ = wait(searches, return_when=FIRST_EXCEPTION)
    for one in done:
        one.result()


def _quiet(line: str) -> None:
    """Prints nothing, because a line for each verdict of a search would be too many here."""


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text)[-60:]


def progress_of(trajectory: Any, task: str, seed: int, *, finished: bool) -> Progress:
    """Return the progress of a search, in the order of the answers. What follows an answer without a verdict is left
    out of ``by_answer``: its verdict might have changed the rest."""
    best, seen, after, by_answer, timed = 0.0, set[str](), list[float](), list[float](), False
    is_known = True
    for one in trajectory.attempts.values():
        if one.is_judged and one.code is not None and one.code not in seen:
            seen.add(one.code)
            if one.verdict is not None and one.verdict.correct:
                timed = timed or one.verdict.speedup is not None
                best = max(best, one.verdict.speedup or 1.0)
            after.append(best)
        is_known = is_known and (one.is_judged or one.code is None)
        if is_known:
            by_answer.append(best)
    counts = len(trajectory.attempts), trajectory.tokens
    return Progress(task, seed, tuple(after), tuple(by_answer), *counts, timed, finished)


def points(evaluations: int) -> list[int]:
    """Return the numbers of candidates at which results are reported: powers of two, and the budget.

    >>> points(48)
    [1, 2, 4, 8, 16, 32, 48]
    """
    return [*(2**k for k in range(evaluations.bit_length()) if 2**k < evaluations), evaluations]


def summarise(config: CompareConfig, found: dict[str, list[Progress]]) -> dict[str, Any]:
    """Return the content of summary.json: for each strategy and number of candidates the share of solved tasks and the
    geometric mean of the best speedup, with bootstrap intervals over tasks. An unsolved task has the speedup 1, as if
    its reference were used. If a strategy has unfinished searches, its curve ends where the shortest of them does.

    ``answers_curve`` has the same numbers after so many answers. An answer costs the same whether it is new or not, so
    this compares strategies at equal costs of the model."""
    results = {name: results_of(searches, config.evaluations) for name, searches in found.items()}
    return {
        "model": config.search.model,
        "tasks": config.tasks,
        "evaluations": config.evaluations,
        "seeds": list(config.seeds),
        "strategies": {name: one for name, one in results.items() if one["curve"]},
    }


def results_of(searches: Sequence[Progress], evaluations: int) -> dict[str, Any]:
    """Return the results of one strategy: counts over its searches, and both curves up to the budget."""
    unfinished = [one for one in searches if not one.finished]
    reached = {
        "curve": (Progress.after, [len(one.best) for one in unfinished]),
        "answers_curve": (Progress.after_answers, [len(one.by_answer) for one in unfinished]),
    }
    return {
        "tasks": len({one.task for one in searches}),
        "searches": len(searches),
        "unfinished": len(unfinished),
        "answers": sum(one.answers for one in searches),
        "candidates": sum(len(one.best) for one in searches),
        "tokens": sum(one.tokens for one in searches),
        **{
            name: _curve(searches, [one for one in points(evaluations) if one <= min(lengths, default=one)], after)
            for name, (after, lengths) in reached.items()
        },
    }


def _curve(
    searches: Sequence[Progress], at: Sequence[int], after: Callable[[Progress, int], float]
) -> list[dict[str, Any]]:
    """Return a row for each number in `at`: what the searches had reached after so many candidates or answers,
    according to `after`."""
    import numpy as np

    from kernel_coder.evaluate.metrics import intervals

    if not at:
        return []
    tasks = list(dict.fromkeys(one.task for one in searches))
    by_task = [[one for one in searches if one.task == task] for task in tasks]
    best = np.array([[[after(one, k) for k in at] for one in group] for group in by_task])  # [tasks, seeds, points]
    timed = any(one.timed for one in searches)
    logs = np.log(np.where(best > 0, best, 1.0)).mean(axis=1)
    solved = (best > 0).mean(axis=1)
    ones = np.ones_like(solved)
    bounds = intervals(np.concatenate([solved, logs], axis=1), np.concatenate([ones, ones], axis=1))
    rows = []
    for place, evaluations in enumerate(at):
        share, speed = bounds[place], bounds[len(at) + place]
        rows.append(
            {
                "evaluations": evaluations,
                "solved": float(solved[:, place].mean()),
                "solved_low": share and share[0],
                "solved_high": share and share[1],
                "speedup": math.exp(logs[:, place].mean()) if timed else None,
                "speedup_low": math.exp(speed[0]) if timed and speed else None,
                "speedup_high": math.exp(speed[1]) if timed and speed else None,
            }
        )
    return rows


def write_results(config: CompareConfig, summary: dict[str, Any]) -> None:
    """Writes summary.json, table.md and report.html."""
    from kernel_coder.pages import render

    rows = table(summary)
    header, *body = rows
    lines = [f"| {' | '.join(header)} |", f"|{' --: |' * len(header)}", *(f"| {' | '.join(row)} |" for row in body)]
    page = render(
        __package__ or "kernel_coder.refine",
        "compare.html.jinja",
        None,
        summary=summary,
        table=rows,
        charts=[chart for chart in (chart_of(summary, "solved"), chart_of(summary, "speedup")) if chart],
        size=(WIDTH, HEIGHT),
        settings=config.search.model_dump_json(indent=2),
    )
    config.output.mkdir(parents=True, exist_ok=True)
    files = {
        SUMMARY: orjson.dumps(summary, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode(),
        TABLE: "\n".join([*lines, ""]),
        REPORT: page,
    }
    for name, text in files.items():
        part = config.output / f".{name}.part"
        part.write_text(text, encoding="utf-8", errors="replace")
        part.replace(config.output / name)


def table(summary: dict[str, Any]) -> list[list[str]]:
    """Return the header and the rows of the table: the solved share, and the speedup where something was timed."""
    from kernel_coder.pages import percent, times

    at = [str(one) for one in points(summary["evaluations"])]
    found = [["strategy", *(f"after {one}" for one in at), "answers", "candidates", "tokens"]]
    for value, shown in (("solved", percent), ("speedup", times)):
        for name, one in summary["strategies"].items():
            cells = list(_cells(one["curve"], value, shown))
            if any(cell for cell in cells):
                counts = [str(one[key]) for key in ("answers", "candidates", "tokens")]
                missing = [""] * (len(at) - len(cells))
                found.append([f"{name}, {value}", *cells, *missing, *counts])
    return found


def _cells(curve: Sequence[dict[str, Any]], value: str, shown: Callable[[float], str]) -> Iterator[str]:
    for one in curve:
        low = one[f"{value}_low"]
        bounds = "" if low is None else f" ({shown(low)} to {shown(one[f'{value}_high'])})"
        yield "" if one[value] is None else f"{shown(one[value])}{bounds}"


def chart_of(summary: dict[str, Any], value: str) -> dict[str, Any] | None:
    """Return the lines of a chart against the logarithm of the number of candidates; None if nothing was measured."""
    curves = {name: [one[value] for one in found["curve"]] for name, found in summary["strategies"].items()}
    known = [one for curve in curves.values() for one in curve if one is not None]
    if not known:
        return None
    at = points(summary["evaluations"])
    top, bottom = max(*known, 1.0), 0.0 if value == "solved" else min(*known, 1.0)
    widest, span = math.log(max(at[-1], 2)), max(top - bottom, 1e-9)
    lines = {
        name: " ".join(
            f"{WIDTH * math.log(count) / widest:.1f},{HEIGHT - (HEIGHT - 12) * (one - bottom) / span:.1f}"
            for count, one in zip(at, curve, strict=False)
            if one is not None
        )
        for name, curve in curves.items()
    }
    return {"value": value, "lines": lines, "top": top, "bottom": bottom, "most": at[-1]}


def main(arguments: list[str] | None = None, **injected: Any) -> int:
    """Runs the command and returns its exit code; ``injected`` goes to :func:`compare`."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        config, resume = parse_compare(given)

        from kernel_coder.run.signals import listening

        def say(line: str) -> None:
            print(line, flush=True)

        with listening() as stop:
            compare(config, resume=resume, poll=stop.poll, say=say, **injected)
        print((config.output / TABLE).read_text(encoding="utf-8"))
        print(f"open {(config.output / REPORT).resolve()} in a browser")
        return 0
    except UsageError as error:
        return end(error, EXIT_MISTAKE)
    except HarnessFailed as error:
        return end(error, EXIT_HARNESS)
    except (ServerFailed, StopRequested) as error:
        return end(f"stopped by {error}; the searches so far are saved: continue with --resume", EXIT_STOPPED)


if __name__ == "__main__":
    sys.exit(main())
