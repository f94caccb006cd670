"""``kernel-coder data build --out FILE.parquet --from generator --count N [--seed S] ...``
``kernel-coder data distill --out FILE.parquet --model M --implement ops --convert packaged ...``
``kernel-coder data collect --out FILE.jsonl --count N ...``: see ``kernel_coder.data.collect``
``kernel-coder data mix PAIRS --out FILE.parquet ...``: see ``kernel_coder.data.mix``

Exit codes: 0: done. 1: build made fewer pairs than requested. 2: the arguments or their files are wrong (one sentence
on stderr). 3: the judge cannot start, or failed on every answer of distill. 75: stopped by Ctrl-C, and in distill also
by SIGTERM or a failing server. The same command continues an interrupted one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernel_coder import __version__
from kernel_coder.data.build import GENERATOR, Plan, Report, build
from kernel_coder.data.distill_command import DESCRIPTION, add_distill, run_distill
from kernel_coder.data.mix import add_mix, run_mix
from kernel_coder.data.verifiers import InterpreterVerifier, JudgeVerifier, NotRun, OncePerSolution, Verifier
from kernel_coder.evaluate.errors import EXIT_STOPPED
from kernel_coder.run.distributed import end_process
from kernel_coder.run.extras import require_extra
from kernel_coder.run.flags import FlagParser, end
from kernel_coder.tasks.generator import LEVELS, SPLITS

MAX_ELEMENTS = 16384
"""Default limit for the elements of a tensor. The interpreter takes 1 to 2 ms for each program, so seconds for a
module."""


def main(arguments: Sequence[str] | None = None, **injected: Any) -> int:
    """Runs the command and returns its exit code; ``injected`` is passed to ``run_distill``."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["collect"]:  # its flags are the fields of a training recipe
        from kernel_coder.data.collect import main as collect

        return collect(given[1:])
    parser = FlagParser(prog="kernel-coder data", description="Makes training data.")
    parser.add_argument("--version", action="version", version=f"kernel-coder {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="make verified pairs")
    _add_build(building)
    _add_screen(building)
    asking = commands.add_parser("distill", help="ask a teacher for pairs; keep correct ones", description=DESCRIPTION)
    add_distill(asking)
    _add_screen(asking)
    add_mix(commands.add_parser("mix", help="make right and wrong answers and second turns for a warm-up"))
    commands.add_parser(
        "collect", help="record conversations with the judge and extract answers to learn", add_help=False
    )
    try:
        options = parser.parse(arguments)
        require_extra("triton", f"kernel-coder data {options.command}")
        if options.command == "mix":
            return run_mix(options)
        return _build(options) if options.command == "build" else run_distill(options, **injected)
    except KeyboardInterrupt:
        print("stopped; the same command continues", file=sys.stderr)
        return EXIT_STOPPED
    except (OSError, ModuleNotFoundError, ValueError) as error:
        return end(error, 2)


def _add_screen(parser: argparse.ArgumentParser) -> None:
    """Add the flags of build and distill: the generator's settings, and which tasks to leave out."""
    add = parser.add_argument
    add("--seed", type=int, default=0, help="seed of the generator and of a teacher's answers")
    add("--families", nargs="+", help="families of generated tasks; default: all in the chosen splits")
    add("--levels", nargs="+", type=int, default=list(LEVELS), help="levels of difficulty of generated tasks")
    add("--splits", nargs="+", choices=SPLITS, default=["train"], help="splits of generated tasks")
    add("--per-structure", type=int, default=1, help="number of pairs with equal syntax trees but for names, constants")
    add("--against", metavar="FOLDER", help="no pair may resemble a problem in this folder, such as KernelBench's")
    add("--max-size", type=int, help="halve larger sizes in modules from files, because the interpreter is slow")
    add("--allow-kernelbench", action="store_true", help="keep KernelBench's own modules: for measuring, not training")


def _add_build(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FILE.parquet", help="file to write; dropped rows go beside it")
    add(
        *("--from", "-f"),
        dest="sources",
        nargs="+",
        default=[GENERATOR],
        metavar="SOURCE",
        help="files and folders of PyTorch modules (Inductor makes missing solutions), or generator, which comes last",
    )
    add("--count", type=int, help="number of verified pairs to make; required for the generator")
    add(
        "--max-elements",
        type=int,
        default=MAX_ELEMENTS,
        help="reduce the sizes of modules for Inductor until no tensor has more elements; 0: keep the sizes "
        f"(default: {MAX_ELEMENTS})",
    )
    add("--negatives", type=int, default=0, help="wrong solutions for each pair, written to a separate file")
    add("--workers", type=int, default=2, help="number of processes")
    add("--timeout", type=float, default=60.0, metavar="SECONDS", help="time limit for one candidate")
    add(
        "--verifier",
        choices=("interpreter", "solutions", "arrays", "judge", "none"),
        default="interpreter",
        help="how pairs are verified; solutions: by the interpreter, each distinct solution once; arrays is quick, for "
        "kernels that work on single elements; none: not at all, only for the generator's pairs",
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
    if options.verifier == "none" and (options.sources != [GENERATOR] or options.negatives):
        raise ValueError(
            "--verifier none is only for the generator's right answers; verify other sources and negatives"
        )
    makers = {
        "interpreter": InterpreterVerifier,
        "solutions": _solutions,
        "arrays": _arrays,
        "judge": _judge,
        "none": _none,
    }
    make = makers[options.verifier]
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


def _solutions(workers: int, timeout_s: float) -> Verifier:
    return OncePerSolution(InterpreterVerifier(workers, timeout_s))


def _none(workers: int, timeout_s: float) -> Verifier:
    """Make a verifier that runs nothing; `workers` and `timeout_s` have no effect."""
    return NotRun()


def _judge(workers: int, timeout_s: float) -> Verifier:
    return JudgeVerifier(workers=workers, timeout_s=timeout_s)


def _arrays(workers: int, timeout_s: float) -> Verifier:
    """Make a verifier that works in this process; `workers` and `timeout_s` have no effect."""
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
        console.print("fewer than requested: the files have no more, or nearly all are repeats (see --per-structure)")
    if len(report.rows_by_source) > 1:
        console.print(", ".join(f"{number:,} from {source}" for source, number in report.rows_by_source.items()))
    if table := report.table():
        title = f"drops, each in {out.with_suffix('.drops.json').name}"
        shown = Table("source", "stage", "reason", "dropped", title=title)
        for source, stage, reason, number in table:
            shown.add_row("/".join(Path(source).parts[-2:]), stage, reason, f"{number:,}")
        console.print(shown)
    console.print(f"rows' SHA-256: {report.content_hash}", soft_wrap=True)
    console.print(f"next: kernel-coder data mix {out} --out {out.stem}-mixed.parquet", soft_wrap=True)


if __name__ == "__main__":
    end_process(main())
