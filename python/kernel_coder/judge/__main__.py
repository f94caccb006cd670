"""``kernel-coder judge TASK.py CANDIDATE.py [--backend triton] [--device cpu] [--json]``

Reports whether a candidate computes what the reference computes, and how fast. The candidate runs in a sandbox; the
reference is trusted. ``--pairs`` judges a file of pairs, and continues where an earlier run of the same command ended.
``--admit`` reports on which tasks candidates can be judged.

Exit codes: 0: there are verdicts, good or bad. 2: the command is wrong; one sentence on stderr says why. 3: the judge
itself failed. 75: stopped by SIGTERM or SIGINT; finished verdicts are kept, and the same command continues.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from kernel_coder import __version__
from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.feedback import unjudged
from kernel_coder.judge.language import NAMES, other_language
from kernel_coder.judge.pairs import Pair, VerdictFile, judge_pairs, read_pairs
from kernel_coder.judge.sandbox.errors import SandboxError
from kernel_coder.judge.supervisor import open as opening
from kernel_coder.judge.supervisor.batching import AnyJudge, devices_of
from kernel_coder.judge.verdict import REFUSED, Outcome, Verdict
from kernel_coder.run.flags import FlagParser, UsageError, add_flags, end, read_flags
from kernel_coder.tasks import Task, load_tasks
from kernel_coder.tasks.task import BACKENDS, PRECISIONS, reference_problem

EXIT_MISTAKE = 2
EXIT_HARNESS = 3
EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: run the command again

NOT_IN_KEYS = {"workers", "retries", "audit_dir"}
"""Settings that do not change verdicts, so a run may be continued with other values."""


class _Stopped(BaseException):
    """Raised when SIGTERM or SIGINT arrives."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    try:
        parser = make_parser()
        options = parser.parse(arguments)
        config = read_flags(options, JudgeConfig)
        check_options(options)
        with stop_signals():
            if options.pairs is not None:
                return run_pairs(options, config)
            return run_admit(options, config) if options.admit else run_one(options, config)
    except UsageError as error:
        return end(error, EXIT_MISTAKE)
    except _Stopped as signal_:
        print(
            f"{signal_} received: stopped; verdicts in --out are complete; the same command continues",
            file=sys.stderr,
        )
        return EXIT_STOPPED
    except Exception as error:
        if not isinstance(error, SandboxError):
            traceback.print_exc()
        return end(f"the judge failed: {error}", EXIT_HARNESS)


def make_parser() -> FlagParser:
    """Return the parser of the command's flags. Every field of the configuration is one."""
    usage, _, text = str(__doc__).partition("\n")
    parser = FlagParser(prog="kernel-coder judge", usage=usage.strip("`"), description=text)
    parser.add_argument("files", nargs="*", metavar="TASK.py CANDIDATE.py", help="the same as --task and --candidate")
    parser.add_argument("--task", metavar="FILE", help="Python file with the reference, get_inputs and get_init_inputs")
    parser.add_argument("--candidate", metavar="FILE", help="Python file with the class ModelNew")
    parser.add_argument(
        "--pairs", metavar="FILE", help='file with one pair in each line: {"task":..., "candidate":..., "backend":...}'
    )
    parser.add_argument("--out", metavar="FILE", help="file for the verdicts on --pairs, one in each line")
    parser.add_argument("--admit", metavar="TASKS", nargs="+", help="files, folders or tables of tasks; or: packaged")
    parser.add_argument(
        "--backend", default="triton", help=f"language of the candidates: {', '.join(BACKENDS)} (default triton)"
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: a GPU if there is one)")
    parser.add_argument(
        "--precision", default="fp32", help=f"precision of the task: {', '.join(PRECISIONS)} (default fp32)"
    )
    parser.add_argument(
        "--entry-point", default="Model", metavar="CLASS", help="name of the reference's class (default Model)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON on stdout, and everything else on stderr")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the layers of the sandbox, too")
    parser.add_argument("--version", action="version", version=f"kernel-coder {__version__}")
    add_flags(parser.add_argument_group("how it is judged"), JudgeConfig)
    return parser


def check_options(options: argparse.Namespace) -> None:
    """Find the device. Raise UsageError if the options name no task or several, or contradict each other."""
    take_files(options)
    asked = [name for name in ("task", "pairs", "admit") if getattr(options, name)]
    if len(asked) != 1:
        got = " and ".join(f"--{name}" for name in asked) or "none of them"
        raise UsageError(f"give TASK.py CANDIDATE.py, --pairs with --out, or --admit; got {got}")
    for name, other in (("task", "candidate"), ("pairs", "out")):
        if (getattr(options, name) is None) != (getattr(options, other) is None):
            given, missing = (name, other) if getattr(options, other) is None else (other, name)
            raise UsageError(f"--{given} needs --{missing}")
    if options.backend not in BACKENDS:
        raise UsageError(f"--backend must be one of {', '.join(BACKENDS)}; got {options.backend}")
    if options.precision not in PRECISIONS:
        raise UsageError(f"--precision must be one of {', '.join(PRECISIONS)}; got {options.precision}")
    options.device = find_device(options.device)
    if options.backend == "cuda" and options.device == "cpu" and not options.admit:
        raise UsageError("--backend cuda needs a GPU; triton, cpp and torch can be judged on the CPU")


def take_files(options: argparse.Namespace) -> None:
    """Use the two positional arguments as ``--task`` and ``--candidate``. Raise UsageError for any other number."""
    if not options.files:
        return
    if options.task or options.candidate or options.pairs or options.admit:
        raise UsageError(f"{options.files[0]} has no flag, but --task, --candidate, --pairs or --admit is given too")
    if len(options.files) != 2:
        given = "only the task is given" if len(options.files) == 1 else f"got {len(options.files)} files"
        raise UsageError(f"judge takes two files, TASK.py CANDIDATE.py; {given}")
    options.task, options.candidate = options.files


def find_device(device: str | None) -> str:
    """Return the device with this name, or a GPU if there is one. Raise UsageError if torch does not see it."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device is None:
        return "cuda" if gpus else "cpu"
    try:
        names = devices_of(device)
    except ValueError as error:
        raise UsageError(f"--{error}") from None
    for name in names:
        if name.startswith("cuda") and int(name.partition(":")[2] or 0) >= gpus:
            raise UsageError(f"--device: {name} is not there; torch sees {gpus} GPU{'s' * (gpus != 1)}")
    return device


@contextlib.contextmanager
def open_judge(options: argparse.Namespace, config: JudgeConfig) -> Iterator[AnyJudge]:
    """Open a judge; with ``-v`` print its sandbox on stderr."""
    try:
        judge = opening.open_judge(options.device, options.backend, config=config)
    except ValueError as error:
        raise UsageError(str(error)) from None
    with judge:
        yield judge
        if options.verbose:
            print(f"judged {options.backend} on {options.device} in this sandbox:\n{judge.profile}", file=sys.stderr)


def run_one(options: argparse.Namespace, config: JudgeConfig) -> int:
    """Judge one candidate (``--task``)."""
    task = read_task(options)
    candidate = read_text(options.candidate, "--candidate")
    with results_only(options.json) as result:
        try:
            with open_judge(options, config) as judge:
                verdict = judge.evaluate(task, candidate, backend=options.backend)
        except UsageError:
            raise
        except Exception as error:
            if options.json:  # a program that reads stdout always gets a verdict
                failed = f"the judge failed: {type(error).__name__}: {error}"
                where = {"backend": options.backend, "device": options.device}
                result(unjudged(task, candidate, Outcome.HARNESS_FAILED, failed, **where).to_json())
            raise
        is_refused = verdict.reason is not None and verdict.reason.startswith(REFUSED)
        if options.json or not is_refused:
            result(verdict.to_json() if options.json else describe(verdict))
    if is_refused:
        raise UsageError(f"{options.task} cannot be judged against: {str(verdict.reason).removeprefix(REFUSED)}")
    if options.json:
        return 0 if verdict.is_scored else EXIT_HARNESS
    sys.stdout.flush()  # print the verdict before the hint if both go to one file
    if not verdict.correct and (other := other_language(candidate, options.backend)) is not None:
        print(f"hint: this looks like {NAMES[other]}; use --backend {other}", file=sys.stderr)
    print(f"next: {next_command(options, verdict)}", file=sys.stderr)
    return 0 if verdict.is_scored else EXIT_HARNESS


def next_command(options: argparse.Namespace, verdict: Verdict) -> str:
    """Return the command that a user probably wants after this verdict."""
    if not verdict.correct:
        return f"correct {options.candidate} and judge it again, or let a model try: kernel-coder refine {options.task}"
    if verdict.speedup is None:
        return (
            f"kernel-coder judge {options.task} {options.candidate} --device cuda  # on a GPU, which measures a speedup"
        )
    return f"kernel-coder judge {options.task} {options.candidate} --compile-baseline  # also against torch.compile"


def run_pairs(options: argparse.Namespace, config: JudgeConfig) -> int:
    """Judge a file of pairs (``--pairs``)."""
    settings = json.dumps([options.device, config.model_dump(mode="json", exclude=NOT_IN_KEYS)], sort_keys=True)
    source = Path(options.pairs)

    def pairs() -> Iterator[Pair]:
        return read_pairs(source, backend=options.backend, settings=settings)

    if Path(options.out).resolve() == source.resolve():
        raise UsageError(f"--out must be another file than --pairs; got {source} for both")
    with results_only(options.json), VerdictFile(Path(options.out)) as out:
        total = out.check(pairs())
        left = total - len(out) + len(out.failed)
        if left < total:
            print(f"{total - left} of {total} pairs are judged already", file=sys.stderr)
        if left:
            with open_judge(options, config) as judge, progress(total - left, total) as told:

                def judged(some: Iterator[Pair]) -> Iterator[Verdict]:
                    return judge.evaluate_many((pair.task, pair.candidate, pair.backend) for pair in some)

                judge_pairs(judged, pairs, out, told)
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(out.outcomes.items()))
        print(f"{len(out)} verdicts in {options.out}: {counts or 'none'}", file=sys.stderr)
        return EXIT_HARNESS if out.failed else 0


def run_admit(options: argparse.Namespace, config: JudgeConfig) -> int:
    """Report on which tasks candidates can be judged (``--admit``)."""
    tasks: list[Task] = []
    for path in options.admit:
        try:
            found = load_tasks(path)
        except (ValueError, OSError, ImportError) as error:
            raise UsageError(f"--admit {path}: {error}") from None
        for problem in found.problems:
            print(f"dropped {problem}", file=sys.stderr)
        tasks += found
    with results_only(options.json) as result, open_judge(options, config) as judge:
        for task in tasks:
            admission = judge.admit(task)
            row = {"task": task.id, "admitted": admission.admitted, "reason": admission.reason}
            how = "not known" if admission.admitted is None else "refused"
            said = "admitted" if admission.admitted else f"{how}: {admission.reason}"
            result(json.dumps(row) if options.json else f"{task.id}: {said}")
    return 0


def read_task(options: argparse.Namespace) -> Task:
    """Return the task of ``--task``."""
    reference = read_text(options.task, "--task")
    if problem := reference_problem(reference, options.entry_point):
        raise UsageError(f"--task: {options.task} cannot be judged against: {problem}")
    return Task(
        id=Path(options.task).stem,
        source=str(options.task),
        reference=reference,
        entry_point=options.entry_point,
        backend=options.backend,
        precision=options.precision,
    )


def read_text(path: str, flag: str) -> str:
    """Return the text of a file that a flag names. Raise UsageError if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{flag}: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{flag}: {path} is not UTF-8: {error.reason}") from None


def describe(verdict: Verdict) -> str:
    """Return a verdict as text for people."""
    where = f"{verdict.backend} on {verdict.device}" + ", interpreted" * verdict.interpreted
    lines = [f"{verdict.outcome.replace('_', ' ')}: {verdict.task} ({where})"]
    if verdict.reason and not verdict.feedback.startswith(verdict.reason):
        lines.append(f"reason: {verdict.reason}")
    if verdict.speedup is not None:
        times = f"{verdict.runtime_ms:.4g} ms, reference {verdict.reference_ms:.4g} ms"
        lines.append(
            f"speedup: {verdict.speedup:.3g} ({verdict.speedup_low:.3g} to {verdict.speedup_high:.3g}); {times}"
        )
    elif verdict.correct:
        lines.append("speedup: not measured")
    if verdict.reference_compile_ms is not None:
        lines.append(f"reference under torch.compile: {verdict.reference_compile_ms:.4g} ms")
    if verdict.kernel_share is not None:
        lines.append(f"kernel share: {verdict.kernel_share:.0%} of the device time is in the candidate's own kernels")
    for error in verdict.errors:
        own = "" if error.reference_error is None else f", the reference's own {error.reference_error:.2g}"
        lines.append(
            f"error of {error.name}: {error.relative_error:.2g}{own}; {error.mismatches} of {error.elements} wrong"
        )
    if verdict.feedback:
        lines += ["feedback:", textwrap.indent(verdict.feedback, "  ")]
    return "\n".join(lines)


@contextlib.contextmanager
def progress(done: int, total: int) -> Iterator[Callable[[Verdict], None]]:
    """Show progress on stderr: a bar if it is a terminal, otherwise a line for every tenth of the work.

    Give a function to call with each new verdict.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    counts: dict[str, int] = {}

    def shown() -> str:
        return "  ".join(f"{outcome} {count}" for outcome, count in sorted(counts.items()))

    if not sys.stderr.isatty():
        every = max((total - done) // 10, 1)

        def line(verdict: Verdict) -> None:
            counts[verdict.outcome] = counts.get(verdict.outcome, 0) + 1
            if (made := sum(counts.values())) % every == 0:
                print(f"{done + made}/{total}  {shown()}", file=sys.stderr)

        yield line
        return
    columns = (MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[shown]}"), console=console) as bar:
        task = bar.add_task("judge", total=total, completed=done, shown="")

        def advance(verdict: Verdict) -> None:
            counts[verdict.outcome] = counts.get(verdict.outcome, 0) + 1
            bar.update(task, advance=1, shown=shown())

        yield advance


@contextlib.contextmanager
def results_only(on: bool) -> Iterator[Callable[[str], None]]:
    """If `on`, keep stdout for results. Text that libraries and child processes print goes to stderr.

    Give the function that prints a result.
    """
    if not on:
        yield print
        return
    stdout = sys.stdout
    stdout.flush()
    kept: int | None = None
    try:
        descriptor = stdout.fileno()
        kept = os.dup(descriptor)
        os.dup2(sys.stderr.fileno(), descriptor)
    except (OSError, ValueError):  # stdout has no descriptor, as in a test
        pass
    sys.stdout = sys.stderr
    try:

        def result(text: str) -> None:
            if kept is None:
                stdout.write(f"{text}\n")
                return
            line = f"{text}\n".encode()
            while line:
                line = line[os.write(kept, line) :]

        yield result
    finally:
        sys.stdout = stdout
        if kept is not None:
            os.dup2(kept, descriptor)
            os.close(kept)


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """Raise :class:`_Stopped` on SIGTERM or SIGINT, so that all processes are ended. A second signal exits at once."""
    seen: list[int] = []

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        seen.append(number)
        if len(seen) > 1:
            os._exit(128 + number)  # sandboxed processes end with the process that started them
        raise _Stopped(signal.Signals(number).name)

    try:
        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not the main thread, which alone can set handlers
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
