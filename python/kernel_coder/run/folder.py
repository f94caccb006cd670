"""The folder of a run: whether it may be used, where the run continues, and what belongs to it."""

from __future__ import annotations

import shutil
from pathlib import Path

from kernel_coder.run.checkpoint import CheckpointError, list_checkpoints, newest_valid, verify
from kernel_coder.run.config import RunConfig
from kernel_coder.run.errors import UsageError

METRICS = "metrics.jsonl"
SAMPLES = "samples.jsonl"
SUMMARY = "summary.json"
CONFIG = "config.yaml"


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
    holds_a_run = (run_dir / METRICS).exists() or bool(list_checkpoints(run_dir))
    if resume is None and holds_a_run and not config.overwrite_output_dir:
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
