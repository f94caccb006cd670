"""Runs notebooks and stores their outputs in them. Those that train do so for a step or two.

python notebooks/store_outputs.py                       # all
python notebooks/store_outputs.py notebooks/06_judge.ipynb
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_output

FOLDER = Path(__file__).parent
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
TIMEOUT_S = 600
"""Upper limit for one cell, in seconds. Training cells take about a minute on one core."""


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a new run from top to bottom."""
    os.environ["KC_NOTEBOOK"] = "small"
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(path.resolve().parent)}}
    client = NotebookClient(notebook, timeout=TIMEOUT_S, kernel_name="python3", resources=where, record_timing=False)
    client.execute()
    return tidy(notebook)


def tidy(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook without warnings, progress bars and colours, and with one output for what a cell prints."""
    for cell in notebook.cells:
        kept: list[nbformat.NotebookNode] = []
        for output in cell.get("outputs", ()):
            if output.output_type == "stream" and output.name == "stderr":
                continue
            if output.output_type == "display_data" and set(output.data) <= {"text/plain", "text/html"}:
                output = new_output("stream", name="stdout", text=output.data["text/plain"])  # a line of rich's
            if output.output_type == "stream":
                output.text = COLOUR.sub("", output.text)
                if kept and kept[-1].output_type == "stream":
                    kept[-1].text += output.text
                    continue
            kept.append(output)
        if "outputs" in cell:
            cell.outputs = kept
    for name in ("kernelspec", "language_info"):
        notebook.metadata.pop(name, None)
    return notebook


def main(names: list[str]) -> None:
    """Runs these notebooks, or all, and writes them back."""
    for path in map(Path, names) if names else sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(run(path), path)
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
