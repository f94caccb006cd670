"""The `kernel-coder` command."""

from __future__ import annotations

import pytest
from kernel_coder import cli


def test_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    assert all(name in capsys.readouterr().out for name in cli.COMMANDS)
    assert cli.main([]) == 2


def test_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trian"]) == 2
    assert capsys.readouterr().err == "error: kernel-coder has no command trian; did you mean train?\n"


def test_command_is_the_module_of_its_name(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["kernel-coder"])
    assert cli.main(["train", "--config", "no.yaml"]) == 2
    assert capsys.readouterr().err == "error: config file no.yaml does not exist\n"


def test_every_command_exists() -> None:
    for name in cli.COMMANDS:
        assert cli.module_of(name) is not None
