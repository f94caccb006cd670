"""Facts and care of a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kernel_coder.judge.gpu import facts as gpu
from kernel_coder.judge.gpu import nvml
from kernel_coder.judge.gpu.facts import PEAKS, GpuFacts, L2Flusher, flop_count, gpu_facts, probe_gpu


def facts_of(name: str) -> GpuFacts:
    return GpuFacts(name, None, 80 << 30, 50 << 20, 132, (9, 0), *PEAKS[name])


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_the_floor_is_the_slower_of_moving_and_computing() -> None:
    h200 = facts_of("NVIDIA H200")
    assert h200.physical_floor_s(4800 * 10**9, 0, "fp32") == 1.0
    assert h200.physical_floor_s(0, 989 * 10**12, "bf16") == 1.0
    assert h200.physical_floor_s(2400 * 10**9, 989 * 10**12, "fp16") == 1.0
    assert h200.physical_floor_s(9600 * 10**9, 989 * 10**12, "fp16") == 2.0
    assert h200.physical_floor_s(0, 0, "tf32") == 0.0
    with pytest.raises(ValueError, match="precision must be one of fp64, fp32, tf32, fp16, bf16, fp8; got int3"):
        h200.physical_floor_s(1, 1, "int3")


def test_a_narrower_precision_is_never_slower() -> None:
    for name in PEAKS:
        times = [facts_of(name).physical_floor_s(0, 1e12, p) for p in ("fp64", "fp32", "tf32", "bf16", "fp8")]
        assert times == sorted(times, reverse=True), name


def test_every_card_in_the_table_is_found_by_its_own_name() -> None:
    for name, peaks in PEAKS.items():
        for suffix in ("", " 80GB HBM3", "-SXM4-40GB", " NVL"):
            assert gpu._known_peaks(name + suffix) is peaks
        assert gpu._known_peaks(name + "7") is None


# ---- work ------------------------------------------------------------------------------------------------------------


class Mixed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.linear = torch.nn.Linear(8, 4, bias=False)
        self.tied = self.linear
        self.register_buffer("scale", torch.ones(4, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        pooled = self.convolution(x).mean((2, 3))
        return {"out": self.linear(pooled), "input": x}


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_work_counts_products_bytes_and_each_parameter_once(place: str) -> None:
    module = Mixed().to(place)
    work = flop_count(module, [torch.zeros(2, 3, 16, 16, device=place)])
    assert work.convolution_flops == 2 * 2 * 8 * 16 * 16 * 3 * 9
    assert work.flops == 2 * 2 * 8 * 4
    assert work.least_flops == work.flops + work.convolution_flops / 4
    assert work.input_bytes == 4 * 2 * 3 * 16 * 16
    assert work.output_bytes == 4 * 2 * 4
    assert work.parameter_bytes == 4 * (8 * 3 * 9 + 8 + 8 * 4) + 8 * 4


# ---- NVML ------------------------------------------------------------------------------------------------------------

QUESTIONS = """
from kernel_coder.judge.gpu import nvml
for device in (0, "cuda:1", 2):
    found = nvml.compute_processes(device)
    print(nvml.uuid(device), nvml.minor_number(device), nvml.memory(device),
          found and (len(found), found[0], found[99]), nvml.clocks(device), sep=" | ")
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


NEITHER = "None | None | None | None | None"
FIRST = (
    "GPU-1000-abcd | 5 | Memory(used=100, total=1000) | "
    "(100, ComputeProcess(pid=1, used_bytes=None), ComputeProcess(pid=100, used_bytes=990)) | "
    "Clocks(sm=101, memory=102, max_sm=1001, max_memory=1002, is_held_down=False)"
)
SECOND = (
    "GPU-2000-abcd | 6 | Memory(used=101, total=1000) | [] | "
    "Clocks(sm=101, memory=102, max_sm=1001, max_memory=1002, is_held_down=True)"
)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [FIRST, SECOND, NEITHER]),
        ("1,0", [SECOND, FIRST, NEITHER]),
        ("GPU-2000", [SECOND, NEITHER, NEITHER]),
        ("", [NEITHER, NEITHER, NEITHER]),
    ],
)
def test_gpus_are_counted_as_cuda_counts_them(fake_nvml: str, visible: str | None, expected: list[str]) -> None:
    assert answers(fake_nvml, visible) == expected


def test_a_machine_without_the_library_knows_nothing() -> None:
    if nvml._library() is not None:
        pytest.skip("this machine has NVML")
    assert nvml.uuid() is nvml.minor_number() is nvml.memory() is nvml.compute_processes() is nvml.clocks() is None
    assert gpu.memory_used() is None


def test_importing_it_starts_no_cuda() -> None:
    code = (
        "import sys, kernel_coder.judge.gpu.facts, kernel_coder.judge.runner.launch_hooks\n"
        "import torch; print(torch.cuda.is_initialized(), 'libcuda.so' in open('/proc/self/maps').read())"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


# ---- the probe -------------------------------------------------------------------------------------------------------


def test_a_device_that_computes_right_passes(device: str) -> None:
    assert gpu._probe(torch.device(device)) is None


@pytest.mark.parametrize(
    ("operator", "message"),
    [("__matmul__", "a product of matrices has 1 wrong elements of 65536"), ("sum", "a sum is 8796090925057 instead")],
)
@pytest.mark.cpu
def test_one_wrong_bit_is_told(device: str, operator: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(torch.Tensor, operator)

    def wrong(self: torch.Tensor, *arguments: torch.Tensor) -> torch.Tensor:
        result = right(self, *arguments)
        if self.is_floating_point() or operator == "sum":
            result.view(-1)[0] += 1
        return result

    monkeypatch.setattr(torch.Tensor, operator, wrong)
    assert message in str(gpu._probe(torch.device(device)))


@pytest.mark.cpu
def test_a_gpu_that_is_not_there_fails_the_probe_in_either_way(device: str) -> None:
    index = 4096 if torch.cuda.is_available() else 0
    assert str(probe_gpu(index)).startswith(f"cuda:{index} fails: ")
    assert str(probe_gpu(index, timeout_s=120)).startswith(f"cuda:{index} fails: ")
    assert probe_gpu(index, timeout_s=0.01) == f"GPU {index} gave no answer within 0.01 s"


@pytest.mark.gpu
def test_the_gpu_is_well_and_its_facts_agree_with_what_is_measured(device: str) -> None:
    began = time.monotonic()
    assert probe_gpu(device) is None
    first_s = time.monotonic() - began
    began = time.monotonic()
    assert probe_gpu(device) is None
    again_s = time.monotonic() - began
    began = time.monotonic()
    assert probe_gpu(device, timeout_s=120) is None
    print(f"\nprobe: {first_s:.3f} s, again {again_s:.4f} s, in its own process {time.monotonic() - began:.2f} s")
    facts = gpu_facts(device)
    measured = gpu.measured_bandwidth(device)
    print(f"{facts}\nmeasured copy {measured / 1e12:.3f} TB/s; {gpu.clocks(device)}")
    assert facts.name == torch.cuda.get_device_name(device)
    assert 0.5 * facts.bandwidth < measured < facts.bandwidth
    assert facts.l2_bytes > 1 << 20
    assert facts.is_measured == (gpu._known_peaks(facts.name) is None)


@pytest.mark.gpu
def test_no_product_is_faster_than_the_floor(device: str) -> None:
    facts, n = gpu_facts(device), 8192
    for dtype, precision in ((torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.float32, "fp32")):
        a = torch.randn(n, n, device=device, dtype=dtype)
        times = []
        for _ in range(5):
            began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            began.record()
            a @ a
            ended.record()
            ended.synchronize()
            times.append(began.elapsed_time(ended) / 1e3)
        floor = facts.physical_floor_s(2 * a.nbytes, 2 * n**3, precision)
        print(f"{precision}: {1e3 * min(times):.3f} ms, floor {1e3 * floor:.3f} ms")
        assert floor < min(times) < 20 * floor


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_flushed_cache_makes_a_small_read_slower(device: str) -> None:
    flush, x = L2Flusher(device), torch.randn(4 << 20, device=device)  # 16 MiB
    assert flush.size >= max(256 << 20, 2 * gpu_facts(device).l2_bytes)
    assert isinstance(gpu.reset_persisting_l2(device), bool)

    def read_ms(flushed: bool) -> float:
        times = []
        for _ in range(30):
            x.sum()
            if flushed:
                flush()
            torch.cuda._sleep(200_000)  # so that the launch is not what is measured
            began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            began.record()
            x.sum()
            ended.record()
            ended.synchronize()
            times.append(began.elapsed_time(ended))
        return sorted(times)[len(times) // 2]

    warm, cold = read_ms(False), read_ms(True)
    print(f"\n16 MiB summed: {1e3 * warm:.1f} us from the cache, {1e3 * cold:.1f} us after a flush")
    assert cold > 1.1 * warm
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        flush()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_nvml_knows_this_process_and_its_memory(device: str) -> None:
    held = torch.zeros(1 << 30, dtype=torch.uint8, device=device)
    torch.cuda.synchronize()
    used = gpu.memory_used(device)
    assert used is not None
    assert used > held.nbytes
    found = gpu.compute_processes(device)
    print(f"\n/dev/nvidia{nvml.minor_number(device)} {nvml.uuid(device)}, {used >> 20} MiB used; processes: {found}")
    assert found is None or len(found) >= 1
    assert nvml.uuid(device) == f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def test_facts_say_what_they_are() -> None:
    h100 = facts_of("NVIDIA H100")
    assert not h100.is_measured
    assert replace(h100, is_measured=True) != h100
