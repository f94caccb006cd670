"""The examples in the docstrings are executed."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["task", "task_set", "rows", "sources"])
def test_examples_are_true(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"kernel_coder.tasks.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
