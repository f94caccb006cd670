"""Every script among the examples runs, from another folder, and every file there is in the table of its README."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import kernel_coder
import pytest

FOLDER = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))
SAYS = {
    "judge_from_python.py": ["relu_kernel: correct", "relu_copy: wrong_output, output has wrong values"],
    "own_reward.py": ["step 2/2  reward", "next: kernel-coder report"],
    "loss_in_own_loop.py": ["step 3: loss"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name == "own_reward.py"), id=name) for name in SCRIPTS]
)
def test_script_runs(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(kernel_coder.__file__).parents[1])}
    command = [sys.executable, str(FOLDER / name)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for words in SAYS[name]:
        assert words in done.stdout or words.replace("  ", " ") in done.stdout, done.stdout


def test_every_file_is_in_the_readme() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in sorted(FOLDER.glob("*.py")) if f"]({path.name})" not in text] == []
