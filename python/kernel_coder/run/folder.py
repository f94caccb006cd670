"""The folder of a run: checks whether it may be used, finds the checkpoint to continue from, and removes old runs."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path

from kernel_coder.run.checkpoint import CheckpointError, list_checkpoints, newest_valid, verify
from kernel_coder.run.config import RunConfig
from kernel_coder.run.errors import UsageError
from kernel_coder.run.files import CONFIG, METRICS, SAMPLES, SUMMARY

LATEST_LINK = "latest"
"""Name of the link, beside the folders of runs, to the folder of the last one."""


def choose_folder(config: RunConfig, resume: str | None) -> RunConfig:
    """Return the config with the folder that the run uses, which differs from ``output_dir`` only with ``new_folder``.

    A new run gets the first of ``output_dir``, ``output_dir-2``, ``output_dir-3``, ... after the last that holds a run.
    A run that resumes gets the last one.

    Args:
        config: names the folder.
        resume: as for :func:`open_run_dir`.
    """
    if not config.new_folder or (config.overwrite_output_dir and resume is None):
        return config
    first = Path(config.output_dir)
    numbered = {1: first} if holds_a_run(first) else {}
    for path in first.parent.glob(f"{first.name}-*"):
        match = re.fullmatch(r"-([2-9]|[1-9]\d+)", path.name.removeprefix(first.name))
        if match is not None and holds_a_run(path):
            numbered[int(match[1])] = path
    last = max(numbered, default=0)
    new = first if last == 0 else first.with_name(f"{first.name}-{last + 1}")
    chosen = new if resume is None or last == 0 else numbered[last]
    return config.model_copy(update={"output_dir": str(chosen)})


def link_latest(run_dir: Path) -> None:
    """Makes the link ``latest``, beside the folder of a run, point to that folder. A file that is no link is kept."""
    link = run_dir.parent / LATEST_LINK
    part = link.with_name(f".{LATEST_LINK}-{os.getpid()}")
    if link.exists() and not link.is_symlink():
        return
    with contextlib.suppress(OSError):  # a file system without links
        part.symlink_to(run_dir.name, target_is_directory=True)
        part.replace(link)


def holds_a_run(run_dir: Path) -> bool:
    """Return whether a folder holds a run, finished or not."""
    return (run_dir / METRICS).exists() or bool(list_checkpoints(run_dir))


def open_run_dir(config: RunConfig, resume: str | None) -> tuple[Path, Path | None, list[str]]:
    """Finds the run's folder and the checkpoint to continue from. Nothing is created or deleted.

    Args:
        config: names the folder.
        resume: None for a new run; ``auto`` for the newest valid checkpoint of the folder, or a new run if there is
            none; otherwise the path of a checkpoint.

    Returns:
        The folder, the checkpoint (None: a new run), and notes for the user.

    Raises:
        UsageError: the folder holds a run that would be overwritten, or the named checkpoint is not valid.
    """
    run_dir = Path(config.output_dir)
    if resume is None and holds_a_run(run_dir) and not config.overwrite_output_dir:
        raise UsageError(
            f"{run_dir} already holds a run: pass --resume to continue it, another run.output_dir, "
            "or run.overwrite_output_dir true to remove it"
        )
    if resume is None:
        return run_dir, None, []
    if resume != "auto":
        try:
            verify(Path(resume))
        except CheckpointError as error:
            valid, _ = newest_valid(Path(resume).parent)
            other = f"; {valid.name} beside it is whole" if valid else ""
            raise UsageError(f"checkpoint {resume} is refused: {error}{other}") from None
        return run_dir, Path(resume), [f"resuming from {resume}"]
    checkpoint, refused = newest_valid(run_dir)
    found = f"resuming from {checkpoint.name}" if checkpoint else "no checkpoint to resume from: starting at step 0"
    return run_dir, checkpoint, [*refused, found]


def remove_run(run_dir: Path) -> None:
    """Deletes what an earlier run wrote into the folder, and no other file."""
    for path in (*run_dir.glob("checkpoint-*"), *run_dir.glob(".checkpoint-*"), run_dir / "tensorboard"):
        shutil.rmtree(path, ignore_errors=True)
    for name in (METRICS, SAMPLES, SUMMARY, CONFIG):
        (run_dir / name).unlink(missing_ok=True)
