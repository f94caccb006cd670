"""``python -m kernel_coder.data build --out FILE.parquet --from generator --count N [--seed S] ...``
``python -m kernel_coder.data distill --out FILE.parquet --model M --implement ops --convert packaged ...``
``python -m kernel_coder.data collect --out FILE.jsonl --count N ...``: see ``kernel_coder.data.collect``
``python -m kernel_coder.data mix PAIRS --out FILE.parquet ...``: see ``kernel_coder.data.mix``

Exit codes: 0 done; 2 a mistake in the arguments or their files (one sentence on stderr); 75 stopped by Ctrl-C, of
distill also by SIGTERM or by a server that gives no more answers. Of build 1: fewer pairs than asked for; of distill 3:
nothing can be judged. Either goes on where it was when the same command is given again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernel_coder.data.build import GENERATOR, Plan, Report, build
from kernel_coder.data.distill_command import DESCRIPTION, add_distill, run_distill
from kernel_coder.data.mix import add_mix, run_mix
from kernel_coder.data.verifiers import InterpreterVerifier, JudgeVerifier, Verifier
from kernel_coder.evaluate.errors import EXIT_STOPPED
from kernel_coder.flags import FlagParser, end
from kernel_coder.tasks.generator import LEVELS, SPLITS

MAX_ELEMENTS = 16384


def main(arguments: Sequence[str] | None = None, **injected: Any) -> int:
    """Runs the command and returns its exit code; ``injected`` is for `kernel_coder.data.distill_command`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["collect"]:  # its flags are those of a training recipe
        from kernel_coder.data.collect import main as collect

        return collect(given[1:])
    parser = FlagParser(prog="python -m kernel_coder.data", description="Training data.")
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="make verified pairs")
    _add_build(building)
    _add_screen(building)
    asking = commands.add_parser("distill", help="ask a teacher for pairs; keep what is right", description=DESCRIPTION)
    add_distill(asking)
    _add_screen(asking)
    add_mix(commands.add_parser("mix", help="right and wrong answers, and second turns, for a warm-up"))
    commands.add_parser("collect", help="conversations of a model with the judge, and answers to learn", add_help=False)
    try:
        options = parser.parse(arguments)
        if options.command == "mix":
            return run_mix(options)
        return _build(options) if options.command == "build" else run_distill(options, **injected)
    except KeyboardInterrupt:
        print("stopped: the same command goes on where this one was", file=sys.stderr)
        return EXIT_STOPPED
    except (OSError, ModuleNotFoundError, ValueError) as error:
        return end(error, 2)


def _add_screen(parser: argparse.ArgumentParser) -> None:
    """What both commands have: the generator's share, and what is not wanted."""
    add = parser.add_argument
    add("--seed", type=int, default=0, help="of the generator, and of a teacher's answers")
    add("--families", nargs="+", help="of the generator; default: all of the wanted splits")
    add("--levels", nargs="+", type=int, default=list(LEVELS), help="difficulty of generated tasks")
    add("--splits", nargs="+", choices=SPLITS, default=["train"], help="sides of the split that are wanted")
    add("--per-structure", type=int, default=1, help="pairs that may differ in names and constants alone")
    add("--against", metavar="FOLDER", help="problems that no pair may resemble, such as a copy of KernelBench")
    add("--max-size", type=int, help="halve larger sizes of modules from files: the interpreter is slow")
    add("--allow-kernelbench", action="store_true", help="keep KernelBench's own modules: to measure, not to train on")


def _add_build(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FILE.parquet", help="what to write; drops go beside it")
    add(
        *("--from", "-f"),
        dest="sources",
        nargs="+",
        default=[GENERATOR],
        metavar="SOURCE",
        help="files and folders of PyTorch modules, of which those without a solution go through Inductor; generator, "
        "which comes after them",
    )
    add("--count", type=int, help="verified pairs that are wanted; needed for the generator")
    add(
        "--max-elements",
        type=int,
        default=MAX_ELEMENTS,
        help="modules that go through Inductor get smaller sizes until no tensor of theirs has more elements; 0 leaves "
        f"them (default: {MAX_ELEMENTS})",
    )
    add("--negatives", type=int, default=0, help="wrong solutions for each pair, in a file of their own")
    add("--workers", type=int, default=2, help="processes")
    add("--timeout", type=float, default=60.0, metavar="SECONDS", help="for one candidate")
    add(
        "--verifier",
        choices=("interpreter", "arrays", "judge"),
        default="interpreter",
        help="what says that a pair is right; arrays is quick and knows kernels on single elements only",
    )


def _build(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    plan = Plan(
        sources=tuple(options.sources),
        count=options.count,
        seed=options.seed,
        families=tuple(options.families) if options.families else None,
        levels=tuple(options.levels),
        splits=tuple(options.splits),
        per_structure=options.per_structure,
        negatives=options.negatives,
        against=options.against,
        max_size=options.max_size,
        max_elements=options.max_elements or None,
        allow_kernelbench=options.allow_kernelbench,
    )
    make = {"interpreter": InterpreterVerifier, "arrays": _arrays, "judge": _judge}[options.verifier]
    started = time.monotonic()
    with make(options.workers, options.timeout) as verifier, tqdm(total=plan.count, unit="pair") as bar:

        def progress(rows: int, attempts: int) -> None:
            bar.update(rows - bar.n)
            bar.set_postfix(dropped=attempts - rows, refresh=False)

        report = build(
            plan, options.out, verifier, workers=options.workers, timeout_s=options.timeout, progress=progress
        )
    _print(report, options.out, time.monotonic() - started)
    return 0 if report.complete else 1


def _judge(workers: int, timeout_s: float) -> Verifier:
    return JudgeVerifier(workers=workers, timeout_s=timeout_s)


def _arrays(workers: int, timeout_s: float) -> Verifier:
    """In this process: `workers` and `timeout_s` say nothing."""
    import torch

    from kernel_coder.data.arrays import ArrayVerifier

    torch.set_num_threads(1)
    return ArrayVerifier()


def _print(report: Report, out: Path, seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    dropped = len(report.drops)
    console.print(
        f"{report.rows:,} pairs of {report.attempts:,} attempts ({dropped:,} dropped) in {seconds:.0f} s: {out}"
    )
    if report.negatives or report.negative_drops:
        console.print(f"{report.negatives:,} negatives: {out.with_suffix('.negatives.parquet')}")
    if not report.complete:
        console.print("fewer than asked for: the files have no more, or nearly all repeats (see --per-structure)")
    if len(report.rows_by_source) > 1:
        console.print(", ".join(f"{number:,} from {source}" for source, number in report.rows_by_source.items()))
    if table := report.table():
        title = f"drops, each in {out.with_suffix('.drops.json').name}"
        shown = Table("source", "stage", "reason", "dropped", title=title)
        for source, stage, reason, number in table:
            shown.add_row("/".join(Path(source).parts[-2:]), stage, reason, f"{number:,}")
        console.print(shown)
    console.print(f"rows' SHA-256: {report.content_hash}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
