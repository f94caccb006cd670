"""The README does not go stale: its Python blocks run, and each of its commands is run by a test or by CI itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from kernel_coder.rewards import RewardPart
from kernel_coder.train.config import TrainConfig

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PYTHON_BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line.split("  #")[0].strip()
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.strip()
]

#: Commands that a test cannot run inside itself, and where they run instead.
RUN_ELSEWHERE = {
    "make train": "tests/train/test_nano_training.py runs it, made short",
    "make test": "this test is part of it",
    "pip install kernel-coder": "tests/test_wheel.py installs the wheel built from this tree",
    "pip install 'kernel-coder[train]'": "the environment of every test has this extra",
}


@pytest.mark.parametrize("block", PYTHON_BLOCKS, ids=range(len(PYTHON_BLOCKS)))
def test_python_block_runs(block: str) -> None:
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


@pytest.mark.slow
@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in RUN_ELSEWHERE])
def test_command_runs(command: str, tmp_path: Path) -> None:
    command = re.sub(r"^(python|kernel-coder)\b", lambda name: shlex_path(name[1]), command)
    command = command.replace("runs/", f"{tmp_path}/")
    if " refine " in command:
        command += f" --output {tmp_path}/search"
    run = subprocess.run(
        command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "CI": "true"}
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    # After a judge command, the README shows the printed text. Only the numbers may differ.
    if re.search(r"kernel[_-]coder[. ]judge", command):
        assert without_numbers(run.stdout) in without_numbers(README)


def without_numbers(text: str) -> str:
    """
    >>> without_numbers("got -0.767, rtol 7.6e-06")
    'got N, rtol N'
    """
    return re.sub(r"-?\d[\d.]*(?:e-?\d+)?(?<!\.)", "N", text.strip())


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", README, re.DOTALL))
def test_yaml_block_is_a_valid_part_of_a_config(block: str) -> None:
    config = TrainConfig(**yaml.safe_load(block))
    for part in config.rewards:
        RewardPart.parse(part)


def shlex_path(name: str) -> str:
    """This environment's program of that name."""
    return sys.executable if name == "python" else str(Path(sys.executable).parent / name)


def test_every_command_that_runs_elsewhere_is_in_the_readme() -> None:
    assert shutil.which("make")
    assert set(RUN_ELSEWHERE) <= set(COMMANDS)


def test_readme_has_at_most_150_lines() -> None:
    assert len(README.splitlines()) <= 150


def test_every_linked_file_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target
