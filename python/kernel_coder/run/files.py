"""The names of the files in a run's folder."""

from pathlib import Path

METRICS = "metrics.jsonl"
SAMPLES = "samples.jsonl"
SUMMARY = "summary.json"
CONFIG = "config.yaml"


def without_link(folder: Path) -> Path:
    """Return the folder that a link such as ``runs/latest`` names now; any other path unchanged."""
    return folder.parent / folder.readlink() if folder.is_symlink() else folder
