"""``kernel-coder library add RUN...``: the correct kernels of runs of train, refine, evaluate or data collect
``kernel-coder library search [WORDS | MODULE.py]``: kernels by words, or those of the tasks most like a module
``kernel-coder library show ID``: a kernel with its task and verdict
``kernel-coder library export ID --out FOLDER [--name NAME]``: the kernel as a package to import

The library is ``--library FILE``, else ``$KERNEL_CODER_LIBRARY``, else ``runs/library.sqlite``. Exit codes: 0: done.
1: search found nothing. 2: a mistake (one sentence on stderr).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernel_coder.library.export import export
from kernel_coder.library.runs import add_run
from kernel_coder.library.store import Entry, Library, default_path
from kernel_coder.run.errors import EXIT_MISTAKE, UsageError
from kernel_coder.run.flags import FlagParser, end
from kernel_coder.tasks import load_tasks
from kernel_coder.tasks.task import BACKENDS

NOTHING_FOUND = 1


def parser() -> FlagParser:
    """Return the parser of the command line."""
    made = FlagParser(prog="kernel-coder library", description=__doc__)
    commands = made.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("add", help="add the correct kernels of runs")
    adding.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, or file of data collect")
    adding.add_argument("--tasks", help="the task set of the runs; default: the one that their config names")
    searching = commands.add_parser("search", help="list kernels by words, or those most like a module")
    searching.add_argument("words", nargs="*", help="words of the task or source, or a .py file with a module")
    searching.add_argument("--limit", type=int, default=20, help="highest number of kernels (default: 20)")
    searching.add_argument("--backend", choices=BACKENDS, help="only kernels in this language")
    searching.add_argument("--device", help="only kernels verified on a device whose name holds this text")
    showing = commands.add_parser("show", help="print a kernel, its task and its verdict")
    exporting = commands.add_parser("export", help="write a kernel as a package to import")
    for command in (showing, exporting):
        command.add_argument("id", type=int, help="number of the kernel, as in search")
    exporting.add_argument("--out", type=Path, default=Path("."), help="folder for the package (default: .)")
    exporting.add_argument("--name", help="import name of the package (default: from the task)")
    for command in (searching, showing):
        command.add_argument("--json", action="store_true", help="print JSON, one line a kernel")
    for command in (adding, searching, showing, exporting):
        command.add_argument("--library", type=Path, help="the library's file")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    try:
        options = parser().parse(arguments)
        path = options.library or default_path()
        with Library(path, create=options.command == "add") as library:
            return {"add": _add, "search": _search, "show": _show, "export": _export}[options.command](library, options)
    except UsageError as error:
        return end(error, EXIT_MISTAKE)


def _add(library: Library, options: argparse.Namespace) -> int:
    for run in options.runs:
        added, correct = add_run(library, run, options.tasks)
        print(f"{run}: {correct} correct answers, {added} of them new; {library.path} holds {len(library)} kernels")
    return 0


def _search(library: Library, options: argparse.Namespace) -> int:
    if len(options.words) == 1 and options.words[0].endswith(".py"):
        try:
            (task,) = load_tasks(options.words[0])
        except (ValueError, OSError) as error:
            raise UsageError(f"{options.words[0]} must hold one module: {error}") from None
        found = library.nearest(task, options.limit, backend=options.backend)
    else:
        text = " ".join(options.words)
        found = library.search(text, backend=options.backend, device=options.device, limit=options.limit)
    for entry in found:
        print(json.dumps(record(entry)) if options.json else line(entry))
    if not found:
        print(f"no kernel found in {library.path}, which holds {len(library)}", file=sys.stderr)
    return 0 if found else NOTHING_FOUND


def _show(library: Library, options: argparse.Namespace) -> int:
    entry = library.get(options.id)
    if options.json:
        print(json.dumps({**record(entry), "source": entry.source, "reference": entry.task.reference}))
        return 0
    print(line(entry))
    for name, value in record(entry).items():
        print(f"{name:12} {value}")
    print(f"\n# the module\n\n{entry.task.reference}\n\n# the kernel\n\n{entry.source}")
    return 0


def _export(library: Library, options: argparse.Namespace) -> int:
    folder = export(library.get(options.id), options.out, options.name)
    print(f"wrote {folder}; next: pytest {folder}")
    return 0


def line(entry: Entry) -> str:
    """Return one line about a kernel, for people."""
    speed = "untimed" if entry.verdict.speedup is None else f"{entry.verdict.speedup:.2f}x"
    like = "" if entry.similarity is None else f"  {entry.similarity:.0%} alike"
    return f"{entry.id:6}  {entry.task.title:40.40}  {entry.task.backend:6}  {speed:>8}  {entry.verdict.device}{like}"


def record(entry: Entry) -> dict[str, Any]:
    """Return the facts about a kernel, without the sources."""
    verdict = entry.verdict
    facts = {
        "id": entry.id,
        "task": entry.task.id,
        "backend": entry.task.backend,
        "precision": entry.task.precision,
        "device": verdict.device,
        "interpreted": verdict.interpreted,
        "speedup": verdict.speedup,
        "licence": entry.licence,
        "origin": entry.origin,
        "hash": verdict.candidate_hash,
        "parents": list(entry.parents),
        "added_at": entry.added_at,
    }
    return facts | ({} if entry.similarity is None else {"similarity": round(entry.similarity, 4)})


if __name__ == "__main__":
    sys.exit(main())
