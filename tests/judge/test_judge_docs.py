"""docs/judge.md describes the layers, settings, outcomes, fields and commands that exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from kernel_coder.judge import JudgeConfig, Outcome, Verdict
from kernel_coder.judge.sandbox.config import DEFAULT_REQUIRED
from kernel_coder.judge.sandbox.profile import LAYERS

PAGE = (Path(__file__).parents[2] / "docs" / "judge.md").read_text()


def rows(heading: str) -> list[str]:
    """Return the names in backquotes in the first column of the first table below a heading."""
    section = PAGE[PAGE.index(f"\n{heading}\n") :]
    table = section[section.index("\n| ") :].split("\n\n")[0]
    return [name for row in table.strip().splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]


def test_every_layer_is_described() -> None:
    assert rows("## The sandbox") == list(LAYERS)
    required = re.search(r"Required\s+by\s+default:\s+(.*?);", PAGE, re.DOTALL)
    assert required is not None
    assert set(re.findall(r"`(\w+)`", required[1])) == DEFAULT_REQUIRED


def test_every_setting_is_described() -> None:
    assert rows("## Configuration") == list(JudgeConfig.model_fields)


def test_every_outcome_and_field_is_described() -> None:
    assert rows("## The verdict") == [outcome.value for outcome in Outcome]
    below = PAGE[PAGE.index("## The verdict") :]
    described = re.findall(
        r"`(\w+)`", " ".join(row.split("|")[1] for row in below.splitlines() if row.startswith("| `"))
    )
    assert {one.name for one in fields(Verdict)} <= {*described, "outcome", "compiled"}


def test_the_commands_on_the_page_parse() -> None:
    from kernel_coder.judge.__main__ import make_parser

    commands = re.findall(r"^kernel-coder judge (.*?)(?: >.*)?$", PAGE, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        make_parser().parse(command.split())
