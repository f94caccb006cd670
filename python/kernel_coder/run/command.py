"""Runs the command of a run: reads flags, returns an exit code, and reports every mistake in one sentence."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernel_coder.run import distributed, launch
from kernel_coder.run.config import Config, load
from kernel_coder.run.errors import (
    EXIT_DIVERGED,
    EXIT_ENGINE,
    EXIT_MISTAKE,
    EXIT_STOPPED,
    EngineFailed,
    TrainingDiverged,
    UsageError,
)
from kernel_coder.run.extras import require_extra
from kernel_coder.run.files import without_link
from kernel_coder.run.flags import FlagParser, end


def run_command(
    kind: type[Config], loop: Callable[[], Callable[..., Any]], arguments: list[str] | None = None, *, module: str = ""
) -> int:
    """Reads the config from the arguments, runs ``loop()(config, resume=...)`` and returns the exit code.

    With ``--nproc N`` it starts ``python -m module`` as N processes, and each of them does this. A process that
    torchrun restarts after a failure continues from the newest checkpoint.

    ``loop`` is a function that imports the loop: importing torch and transformers takes seconds, and a misspelt flag
    should be reported at once.
    """
    parser = FlagParser(add_help=False)
    parser.add_argument("--config", metavar="FILE or NAME")
    parser.add_argument("--resume", nargs="?", const="auto")
    given = sys.argv[1:] if arguments is None else arguments
    try:
        count, given = launch.nproc_of(given)
        own, flags = parser.parse_known_args(given)
        config_path, resume = own.config, own.resume
        if resume not in (None, "auto"):
            run_dir, resume = _run_and_checkpoint(Path(resume))
            config_path = config_path or run_dir / "config.yaml"
            flags = ["--run.output_dir", str(run_dir), "--run.new_folder", "false", *flags]
        config = load(kind, config_path, flags)
        require_extra("train", f"kernel-coder {kind.__name__.removesuffix('Config').lower()}")
        if (code := launch.launched(module, given, count)) is not None:
            return code
        if launch.restarted():
            resume = "auto"
        run = loop()

        from transformers.utils import logging

        logging.disable_progress_bar()
        with distributed.joined(config.parallel.timeout_s):
            return EXIT_STOPPED if run(config, resume=resume).status == "stopped" else 0
    except UsageError as error:
        return end(f"{which_rank()}{error}", EXIT_MISTAKE)
    except TrainingDiverged as error:
        return end(f"{which_rank()}{error}", EXIT_DIVERGED)
    except EngineFailed as error:
        return end(f"{which_rank()}{error}", EXIT_ENGINE)


def which_rank() -> str:
    """Return the beginning of an error message of a rank other than 0, and nothing for rank 0."""
    world = distributed.torchrun_world()
    return "" if world.is_first else f"rank {world.rank}: "


def _run_and_checkpoint(path: Path) -> tuple[Path, str]:
    """Return the run folder and checkpoint that ``--resume PATH`` means: PATH is a run folder or a checkpoint."""
    if not path.is_dir():
        raise UsageError(f"--resume {path} is not a folder")
    path = without_link(path)
    return (path.parent, str(path)) if path.name.startswith("checkpoint-") else (path, "auto")
