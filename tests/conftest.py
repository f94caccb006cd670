"""What every test shares: the device parameter, restored random state, and doctest names."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
import torch
from kernel_coder import _core


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `device` runs on the CPU and, where the ops have CUDA, there too: one body for both."""
    if "device" in metafunc.fixturenames:
        cuda = _core.cuda_loaded and torch.cuda.is_available()
        if os.environ.get("KC_REQUIRE_CUDA") == "1" and not cuda:
            pytest.exit("KC_REQUIRE_CUDA=1, but the CUDA ops are not loaded or no GPU is visible", returncode=1)
        metafunc.parametrize("device", ["cpu", "cuda"] if cuda else ["cpu"])


@pytest.fixture(autouse=True)
def restored_random_state() -> Iterator[None]:
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    yield
    torch.set_rng_state(torch_state)
    random.setstate(python_state)
