"""The `kernel-coder` command."""

from __future__ import annotations

import pytest
from kernel_coder import cli


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in cli.COMMANDS)
    assert cli.main([]) == 2


def test_error_for_an_unknown_command_suggests_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trian"]) == 2
    assert capsys.readouterr().err == "error: kernel-coder has no command trian; did you mean train?\n"


def test_every_command_exists() -> None:
    assert all(cli.module_of(name) == f"kernel_coder.{name.replace(chr(45), chr(95))}" for name in cli.COMMANDS)
    assert cli.module_of("no_such_command") is None
