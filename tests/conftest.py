"""What every test shares: the seed, the device parameter, the judge's parent processes, and folders that other users
can open."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import hypothesis
import numpy
import pytest
import torch
from kernel_coder import _core
from kernel_coder.judge.sandbox.fork_server import ForkServer
from kernel_coder.judge.sandbox.sandbox import Sandbox
from kernel_coder.judge.supervisor import processes

SEED = int(os.environ.get("KC_TEST_SEED", "0"))
"""Seed of every random number that a test draws; 0 to 2**32 - 1. The judge's own secrets stay random."""

# No deadline: the time of an example depends on the machine, not on the code.
hypothesis.settings.register_profile("kernel_coder", deadline=None)
hypothesis.settings.load_profile("kernel_coder")


def seed_everything() -> None:
    """Seed Python, numpy and torch."""
    random.seed(SEED)
    numpy.random.seed(SEED)
    torch.manual_seed(SEED)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test draws the same numbers, whichever tests ran before it."""
    seed_everything()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed before the fixtures of modules and sessions, too; :func:`seeded` comes after them."""
    seed_everything()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """The report of a failed test names the seed."""
    report = (yield).get_result()  # type: ignore[attr-defined]
    if report.failed:
        report.sections.append(("seed", f"run it again with KC_TEST_SEED={SEED}"))


def pytest_report_header() -> str:
    return f"KC_TEST_SEED={SEED}"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "hypothesis_seed", None) is None:  # before hypothesis reads its own option
        config.option.hypothesis_seed = str(SEED)
    config.addinivalue_line("markers", "cpu: about the CPU alone, whatever devices there are")
    config.addinivalue_line("markers", "gpu: about a GPU alone; skipped, and reported so, where there is none")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the argument `device` runs on the CPU and, if the CUDA ops are loaded, also on a GPU.

    With the argument `kernels`, it runs on CUDA twice: "any", and "general" without the kernels for clusters.
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
    """With several workers, modules with a slow test run first, so that no slow module starts at the end."""
    if getattr(config, "workerinput", None) is None:  # pytest-xdist sets it in a worker
        return
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


class SharedServer:
    """Has the methods of a `ForkServer`, and forks from a parent process that the judges of all tests share.

    The parent imports torch, which takes seconds, and runs no candidate. Only judges on a CPU share it: on a GPU each
    judge has a cache of kernels, whose folder the parent knows.
    """

    shared: ClassVar[dict[object, ForkServer]] = {}

    def __init__(self, sandbox: Sandbox, modules: Sequence[str], *, environment: Mapping[str, str]) -> None:
        kind = (tuple(modules), tuple(sorted(environment.items())), tuple(sys.path))
        if kind not in self.shared:
            self.shared[kind] = ForkServer(sandbox, modules, environment=environment)
        self.server, self.sandbox = self.shared[kind], sandbox

    def start(self, target: str, *, sandbox: Sandbox | None = None, **rest: Any) -> Any:
        return self.server.start(target, sandbox=sandbox or self.sandbox, **rest)

    def close(self) -> None:
        """Close nothing: other judges use the parent."""


@pytest.fixture(scope="session", autouse=True)
def shared_servers() -> Iterator[None]:
    """Judges on a CPU fork their processes from shared parent processes, which end with the last test."""

    def open_server(sandbox: Sandbox, modules: Sequence[str], *, environment: Mapping[str, str]) -> Any:
        made = ForkServer if environment["CUDA_VISIBLE_DEVICES"] else SharedServer
        return made(sandbox, modules, environment=environment)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "ForkServer", open_server)
        yield
    for server in SharedServer.shared.values():
        server.close()


@pytest.fixture(scope="session")
def own_servers(shared_servers: None) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """In the context that it makes, each judge starts parent processes of its own, as outside of tests."""

    @contextlib.contextmanager
    def own() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(processes, "ForkServer", ForkServer)
            yield

    return own


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch computes in one thread, so that sums have one order on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def open_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes a folder that other users can open. pytest closes its folders, and a Runner may be another user."""

    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        of_pytest = 3 if "PYTEST_XDIST_WORKER" in os.environ else 2  # one more per worker
        for path in (folder, *folder.parents[:of_pytest]):
            with contextlib.suppress(PermissionError):
                path.chmod(0o711)
        return folder

    return make
