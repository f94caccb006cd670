"""``kernel-coder report RUN [--output FILE] [--no-plots] [--samples N]``

Writes a self-contained page about a training run (supervised or by reinforcement, finished or running) and PNG plots
beside it. Prints the path of the page, and last the command to type next. Exit codes: 0: the page is written. 2: the
arguments or the folder are wrong (one sentence on stderr).
"""

from __future__ import annotations

import sys
from pathlib import Path

from kernel_coder import __version__
from kernel_coder.run.errors import EXIT_MISTAKE
from kernel_coder.run.files import without_link
from kernel_coder.run.flags import FlagParser, UsageError, end

PAGE = "report.html"
SAMPLES = 150
"""Default number of answers on the page; with typical lengths the page then has a few MB."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = FlagParser(
        prog="kernel-coder report", description="Writes a self-contained page about a training run: RUN/report.html."
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of a run (run.output_dir)")
    parser.add_argument("--output", metavar="FILE", type=Path, help=f"page to write (default: RUN/{PAGE})")
    parser.add_argument("--no-plots", action="store_true", help="do not write PNG files")
    parser.add_argument(
        "--samples", metavar="N", type=int, default=SAMPLES, help=f"number of answers on the page (default {SAMPLES})"
    )
    parser.add_argument("--version", action="version", version=f"kernel-coder {__version__}")
    try:
        options = parser.parse(arguments)
        if options.samples < 0:
            raise UsageError(f"--samples must be at least 0; got {options.samples}")
        page = options.output or options.run / PAGE
        if page.is_dir():
            raise UsageError(f"--output {page} is a folder; name a file")
        if not page.parent.is_dir() and options.output is not None:
            raise UsageError(f"--output {page} is in a folder that does not exist")
        _write(options.run, page, options.samples, plots=not options.no_plots)
    except (UsageError, OSError) as error:
        return end(error, EXIT_MISTAKE)
    return 0


def _write(folder: Path, page: Path, samples: int, *, plots: bool) -> None:
    from kernel_coder.report import plots as pictures
    from kernel_coder.report.folder import read_run
    from kernel_coder.report.page import html, write

    folder = without_link(folder)
    run = read_run(folder, samples)
    write(page, html(run))
    if plots and pictures.is_available():
        for path in pictures.write_plots(run, page):
            print(path.resolve())
    elif plots:
        print("no PNG plots: matplotlib is not installed (pip install 'kernel-coder[report]', or --no-plots)")
    print(page.resolve())
    checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda path: (len(path.name), path.name))
    later = f"report {folder}  # again, once a checkpoint is saved"
    following = f"evaluate --model {checkpoints[-1]}" if checkpoints else later
    print(f"next: kernel-coder {following}")


if __name__ == "__main__":
    sys.exit(main())
