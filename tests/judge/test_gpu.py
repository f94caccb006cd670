"""Limits of a GPU, and what NVML says about it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from kernel_coder.judge.examiner.timing import timer
from kernel_coder.judge.examiner.timing.timer import Timer
from kernel_coder.judge.examiner.timing_records import ReferenceTiming
from kernel_coder.judge.gpu import facts, nvml
from kernel_coder.judge.gpu.facts import BANDWIDTH_GB, gpu_facts, known_bandwidth, measured_bandwidth
from kernel_coder.judge.gpu.turns import GpuTurns

# ---- limits ----------------------------------------------------------------------------------------------------------


def test_every_card_in_the_table_is_found_by_its_own_name() -> None:
    for name, bandwidth in BANDWIDTH_GB.items():
        for suffix in ("", " 80GB HBM3", "-SXM4-40GB", " NVL"):
            assert known_bandwidth(name + suffix) == 1e9 * bandwidth
        assert known_bandwidth(name + "7") is None
    assert known_bandwidth("NVIDIA H20") is None


@pytest.mark.parametrize(("name", "is_measured"), [("NVIDIA H200", False), ("NVIDIA H20", True)])
def test_the_bandwidth_of_a_gpu_that_is_not_in_the_table_is_measured_once(
    monkeypatch: pytest.MonkeyPatch, name: str, is_measured: bool
) -> None:
    measured: list[int] = []
    properties = SimpleNamespace(name=name, L2_cache_size=50 << 20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(facts, "measured_bandwidth", lambda index: measured.append(index) or 3e12)
    facts._facts.cache_clear()
    try:
        found = gpu_facts("cuda:1")
        assert gpu_facts(1) is found
    finally:
        facts._facts.cache_clear()
    assert found == facts.GpuFacts(
        1.25 * 3e12 if is_measured else 4.8e12, 50 << 20, is_measured, facts.TERAFLOPS.get(name)
    )
    assert measured == [1] * is_measured


@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA H20"])
def test_unknown_bandwidth_is_measured_alone_and_before_the_reference_is_timed(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    events: list[str] = []

    class Turns(GpuTurns):
        @contextmanager
        def alone(self) -> Iterator[None]:  # type: ignore[override]
            events.append("alone")
            yield
            events.append("released")

    found = Timer.__new__(Timer)
    found.kind, found.device, found.turns = "cuda", torch.device("cuda"), Turns()
    found.task = SimpleNamespace(known=ReferenceTiming(calls=1))  # type: ignore[assignment]
    monkeypatch.setattr(
        found, "_timed_alone", lambda calls: events.append("timed") or SimpleNamespace(call_s=1.0, is_quiet=True)
    )
    monkeypatch.setattr(found, "_wanted_calls", lambda call_s: 1)
    found.requester = SimpleNamespace(free_memory=lambda: events.append("memory given back"))  # type: ignore[assignment]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(timer, "gpu_facts", lambda device: events.append("measured"))
    monkeypatch.setattr(timer, "has_much_to_free", lambda device: False)
    found.measure_baseline()
    assert events == ["alone", "measured", "released", "timed", "memory given back"][0 if name == "NVIDIA H20" else 3 :]


# ---- NVML ------------------------------------------------------------------------------------------------------------

QUESTIONS = """
from kernel_coder.judge.gpu import nvml
for device in (0, "cuda:1", 2):
    print(nvml.uuid(device), nvml.minor_number(device), nvml.memory(device), sep=" | ")
"""


@pytest.fixture(scope="module")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("fake_nvml.c")
    compiler = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*compiler, str(source), "-o", str(directory / "libnvidia-ml.so.1")], check=True)
    return str(directory)


def answers(directory: str, visible: str | None) -> list[str]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": path, "LD_LIBRARY_PATH": directory}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    done = subprocess.run([sys.executable, "-c", QUESTIONS], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


NEITHER = "None | None | None"
FIRST = "GPU-1000-abcd | 5 | Memory(used=100, total=1000)"
SECOND = "GPU-2000-abcd | 6 | Memory(used=101, total=1000)"


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [FIRST, SECOND, NEITHER]),
        ("1,0", [SECOND, FIRST, NEITHER]),
        pytest.param("GPU-2000", [SECOND, NEITHER, NEITHER], marks=pytest.mark.long),
        pytest.param("", [NEITHER, NEITHER, NEITHER], marks=pytest.mark.long),
    ],
)
def test_gpus_are_numbered_as_cuda_numbers_them(fake_nvml: str, visible: str | None, expected: list[str]) -> None:
    assert answers(fake_nvml, visible) == expected


def test_nvml_functions_return_none_without_the_library() -> None:
    if nvml._library() is not None:
        pytest.skip("this machine has NVML")
    assert nvml.uuid() is nvml.minor_number() is nvml.memory() is None


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [("0", 0), ("1", 1)]),
        ("3,2", [("3", 3), ("2", 2)]),
        ("GPU-12", [("GPU-12", 0), ("1", 1)]),
    ],
)
def test_without_the_library_gpu_names_and_numbers_come_from_cuda_visible_devices(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: list[tuple[str, int]]
) -> None:
    monkeypatch.setattr(nvml, "_library", lambda: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [(nvml.visible_name(gpu), nvml.node_number(gpu)) for gpu in (0, "cuda:1")] == expected


def test_importing_the_modules_starts_no_cuda() -> None:
    """A process that has started the CUDA driver cannot fork processes that use the driver."""
    code = """
        import ctypes, kernel_coder.judge.gpu.facts, kernel_coder.judge.runner.launch_hooks, torch
        not_initialized = 3
        try:
            answer = ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p()))
        except OSError:
            answer = not_initialized  # there is no driver
        print(torch.cuda.is_initialized(), answer == not_initialized)
    """
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n"


# ---- on a real GPU -----------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_facts_of_the_gpu_agree_with_a_measurement(device: str) -> None:
    found, measured = gpu_facts(device), measured_bandwidth(device)
    print(f"\n{found}\nmeasured copy {measured / 1e12:.3f} TB/s")
    assert 0.5 * found.bandwidth < measured < found.bandwidth
    assert found.l2_bytes > 1 << 20
    assert found.is_measured == (known_bandwidth(torch.cuda.get_device_name(device)) is None)


@pytest.mark.gpu
def test_nvml_knows_this_gpu_and_its_memory(device: str) -> None:
    held = torch.zeros(1 << 30, dtype=torch.uint8, device=device)
    torch.cuda.synchronize()
    memory = nvml.memory(device)
    assert memory is not None
    assert memory.used > held.nbytes
    print(f"\n/dev/nvidia{nvml.minor_number(device)} {nvml.uuid(device)}, {memory.used >> 20} MiB used")
    assert nvml.uuid(device) == f"GPU-{torch.cuda.get_device_properties(device).uuid}"
