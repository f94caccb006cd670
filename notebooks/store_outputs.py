"""Runs notebooks and stores their outputs in them. Those that train do so for a step or two.

python notebooks/store_outputs.py                       # all
python notebooks/store_outputs.py notebooks/06_judge.ipynb
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
TIMEOUT_S = 600
"""Upper limit for one cell, in seconds. Training cells take about a minute on one core."""


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a new run from top to bottom."""
    os.environ["KC_NOTEBOOK"] = "small"
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(path.resolve().parent)}}
    client = NotebookClient(notebook, timeout=TIMEOUT_S, kernel_name="python3", resources=where, record_timing=False)
    client.execute()
    notebook.metadata.pop("kernelspec", None)
    notebook.metadata.pop("language_info", None)
    return notebook


def main(names: list[str]) -> None:
    """Runs these notebooks, or all, and writes them back."""
    for path in map(Path, names) if names else sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(run(path), path)
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
