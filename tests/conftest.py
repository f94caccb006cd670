"""What every test shares: the device parameter, restored random state, and doctest names."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import torch
from kernel_coder import _core

# An example that takes long says something of the machine, not of the code.
hypothesis.settings.register_profile("kernel_coder", deadline=None)
hypothesis.settings.load_profile("kernel_coder")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cpu: about the CPU alone, whatever devices there are")
    config.addinivalue_line("markers", "gpu: about a GPU alone; skipped, and reported so, where there is none")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `device` runs on the CPU and, where the ops have CUDA, there too: one body for both.

    One that asks for `kernels` as well runs on CUDA twice: "any", and "general" without the kernels for clusters.
    """
    if "device" not in metafunc.fixturenames:
        if "kernels" in metafunc.fixturenames:
            metafunc.parametrize("kernels", ["any"])
        return
    cuda = _core.cuda_loaded and torch.cuda.is_available()
    if os.environ.get("KC_REQUIRE_CUDA") == "1" and not cuda:
        pytest.exit("KC_REQUIRE_CUDA=1, but the CUDA ops are not loaded or no GPU is visible", returncode=1)
    if metafunc.definition.get_closest_marker("cpu"):
        cuda = False
    if metafunc.definition.get_closest_marker("gpu"):
        metafunc.parametrize("device", ["cuda"] * cuda)
    elif "kernels" in metafunc.fixturenames:
        everywhere = [("cpu", "any")] + [("cuda", "any"), ("cuda", "general")] * cuda
        metafunc.parametrize(("device", "kernels"), everywhere, ids=["-".join(each) for each in everywhere])
    else:
        metafunc.parametrize("device", ["cpu"] + ["cuda"] * cuda)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several workers test, modules with a slow test come first, so that none waits for one at the end."""
    if getattr(config, "workerinput", None) is None:  # pytest-xdist's, of a worker
        return
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def open_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes a folder that other users reach: pytest's are closed to them, and a runner of the judge may be one."""

    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        of_pytest = 3 if "PYTEST_XDIST_WORKER" in os.environ else 2  # one more, of each worker
        for path in (folder, *folder.parents[:of_pytest]):
            with contextlib.suppress(PermissionError):
                path.chmod(0o711)
        return folder

    return make


@pytest.fixture(autouse=True)
def restored_random_state() -> Iterator[None]:
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    yield
    torch.set_rng_state(torch_state)
    random.setstate(python_state)
