"""These tests start a real vLLM server: ``make test-vllm``. KC_VLLM_PYTHON names the interpreter that has vLLM."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

PYTHON = os.environ.get("KC_VLLM_PYTHON", "")
collect_ignore_glob = [] if PYTHON else ["test_*.py"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
