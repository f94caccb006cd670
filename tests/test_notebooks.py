"""Every notebook runs from top to bottom on a CPU, and prints what is stored in it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
sys.path.append(str(FOLDER))

from store_outputs import run  # noqa: E402

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SAMPLED = {"02_train_nano", "03_multi_turn", "07_free_gpu"}
"""Notebooks that print answers of a trained model, which other versions of torch draw otherwise. Only the kinds of
their outputs are compared."""

LONG = SAMPLED | {"04_report", "05_own_model_task_reward"}
"""Notebooks that only `make test-long` runs."""


def said(cell: Any) -> str:
    """What a cell printed on standard output, or returned, without numbers and temporary folders."""
    parts = []
    for output in cell.get("outputs", ()):
        if output.output_type == "stream" and output.name == "stdout":
            parts.append(output.text)
        elif output.output_type in ("execute_result", "display_data"):
            parts.append(output.data.get("text/plain", ""))
    text = re.sub(r"/tmp/[\w/.-]+", "PATH", "".join(parts))
    text = re.sub(r"[▁▂▃▄▅▆▇█]+", "BARS", text)
    return re.sub(r"\s+", " ", re.sub(r"-?\d[\d.,]*(?:e[-+]?\d+)?%?", "N", text)).strip()


def kinds(cell: Any) -> set[str]:
    """The kinds of a cell's outputs, without warnings."""
    return {output.output_type for output in cell.get("outputs", ()) if output.get("name") != "stderr"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.long] * (path.stem in LONG), id=path.stem) for path in NOTEBOOKS],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_notebook_prints_its_stored_outputs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KC_NOTEBOOK", "small")  # restored at the end; run() sets it, too
    stored, now = nbformat.read(path, as_version=4), run(path)
    for number, (before, after) in enumerate(zip(stored.cells, now.cells, strict=True)):
        assert kinds(before) == kinds(after), f"cell {number}: python notebooks/store_outputs.py {path.name}"
        if path.stem not in SAMPLED:
            assert said(before) == said(after), f"cell {number}: python notebooks/store_outputs.py {path.name}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_with_outputs_and_without_paths(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert any(cell.get("outputs") for cell in notebook.cells)
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"/(?:home|root|work)/", text), "outputs name a folder of the machine that made them"
    assert len(text) < 1_000_000
