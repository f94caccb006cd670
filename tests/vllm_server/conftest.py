"""These tests start a real vLLM server: ``make test-vllm``. KC_VLLM_PYTHON names the interpreter that has vLLM."""

from __future__ import annotations

import os

import pytest

PYTHON = os.environ.get("KC_VLLM_PYTHON", "")
collect_ignore_glob = [] if PYTHON else ["test_*.py"]


@pytest.fixture(autouse=True)
def in_one_thread(one_thread: None) -> None:
    """Runs all tests of this folder in one thread."""
