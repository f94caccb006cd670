"""One GPU as the judge needs it: its facts and limits, whether it is well, and a cache that holds nothing of before.

Importing this touches no GPU.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernel_coder.judge.gpu import nvml
from kernel_coder.judge.gpu.nvml import Clocks, ComputeProcess, clocks, compute_processes, device_index
from kernel_coder.judge.wire.trees import tensors_of

__all__ = [
    "Clocks",
    "ComputeProcess",
    "GpuFacts",
    "L2Flusher",
    "Work",
    "clocks",
    "compute_processes",
    "flop_count",
    "gpu_facts",
    "measured_bandwidth",
    "memory_used",
    "probe_gpu",
    "reset_persisting_l2",
]

Device = int | str | torch.device


# ---- care ------------------------------------------------------------------------------------------------------------


class L2Flusher:
    """Drives everything out of a GPU's L2 cache, on the current stream, without waiting for it.

    A buffer of twice the cache, 256 MiB at least, is written and then read, so that what remains is clean: a kernel
    that follows does not wait for lines to be written back.

        flush = L2Flusher("cuda:0")
        flush()
    """

    def __init__(self, device: Device = 0) -> None:
        index = device_index(device)
        cache = getattr(torch.cuda.get_device_properties(index), "L2_cache_size", 0)
        self.size = max(2 * cache, 256 << 20) // 8 * 8
        self._buffer = torch.zeros(self.size // 8, dtype=torch.int64, device=f"cuda:{index}")
        self._sum = torch.zeros((), dtype=torch.int64, device=self._buffer.device)

    def __call__(self) -> None:
        self._buffer.add_(1)
        torch.sum(self._buffer, dim=0, out=self._sum)


def reset_persisting_l2(device: Device = 0) -> bool:
    """Make lines that a program pinned in the L2 cache ordinary again; False where the GPU has no such lines.

    Needs no runtime library: it asks the driver, in the context that torch uses.
    """
    index = device_index(device)
    torch.cuda.init()
    driver = ctypes.CDLL("libcuda.so.1")
    handle, context, popped = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    _require(driver.cuDeviceGet(ctypes.byref(handle), index), "cuDeviceGet")
    _require(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), "cuDevicePrimaryCtxRetain")
    try:
        _require(driver.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent")
        result = driver.cuCtxResetPersistingL2Cache()
        driver.cuCtxPopCurrent_v2(ctypes.byref(popped))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(handle)
    not_supported = 801
    if result not in (0, not_supported):
        _require(result, "cuCtxResetPersistingL2Cache")
    return bool(result == 0)


def _require(result: int, call: str) -> None:
    if result != 0:
        raise RuntimeError(f"{call} failed with CUDA error {result}")


def memory_used(device: Device = 0) -> int | None:
    """Bytes in use on the whole GPU, whoever uses them; None where NVML does not say."""
    found = nvml.memory(device)
    return None if found is None else found.used


def probe_gpu(device: Device = 0, timeout_s: float | None = None) -> str | None:
    """Compute what has one exact answer: None, or what went wrong.

    Args:
        device: which.
        timeout_s: in a process of its own that is killed then, since a GPU that does not answer blocks who asks, and an
            error of a context stays in its process. None: in this process.
    """
    index = device_index(device)
    if timeout_s is None:
        return _probe(torch.device("cuda", index))
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        f"from kernel_coder.judge.gpu.facts import probe_gpu; print(probe_gpu({index}))"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"GPU {index} gave no answer within {timeout_s:g} s"
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return f"the probe of GPU {index} died: {lines[-1]}"
    answer = done.stdout.strip()
    return None if answer == "None" else answer


def _probe(device: torch.device) -> str | None:
    """Small integers: a product of matrices and every sum have one answer, in whatever order and math mode."""
    size = 256
    try:
        with torch.no_grad():
            a = (torch.arange(size * size) * 7 % 15 - 7).view(size, size)
            b = (torch.arange(size * size) * 11 % 13 - 6).view(size, size)
            product = (a.to(device, torch.float32) @ b.to(device, torch.float32)).cpu().to(torch.int64)
            if not torch.equal(product, a @ b):
                wrong = int((product != a @ b).sum())
                return f"a product of matrices has {wrong} wrong elements of {size * size} on {device}"
            count = 1 << 22
            numbers = torch.arange(count, device=device)
            total, expected = int(numbers.sum()), count * (count - 1) // 2
            if total != expected:
                return f"a sum is {total} instead of {expected} on {device}"
            if not torch.equal(numbers.flip(0).cpu(), torch.arange(count).flip(0)):
                return f"a copy came back changed on {device}"
    except Exception as error:
        return f"{device} fails: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    return None


# ---- limits ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What a GPU can do at most, by its maker's data sheet; where it is in no table, generous bounds.

    Attributes:
        name: as the driver calls it.
        uuid: None where NVML does not say.
        memory_bytes: all of it.
        l2_bytes: its last cache.
        multiprocessors: their number.
        capability: the compute capability.
        bandwidth: bytes a second from and to its memory.
        flops: operations a second by precision: fp64, fp32, tf32, fp16, bf16, fp8; dense, on tensor cores where faster.
        is_measured: the bandwidth was measured, and the rest bounded by clock and number of multiprocessors.
    """

    name: str
    uuid: str | None
    memory_bytes: int
    l2_bytes: int
    multiprocessors: int
    capability: tuple[int, int]
    bandwidth: float
    flops: dict[str, float]
    is_measured: bool = False

    def physical_floor_s(self, nbytes: int, flops: float, precision: str) -> float:
        """Seconds that moving so many bytes, and computing so much, take at least.

        `nbytes` are those that cross the border of the device's memory: what is read after a flush of the cache; of
        what is written, only what exceeds `l2_bytes`. Products in fp32 can be had from three in 16 bits, those in tf32
        from one (of as many digits), those in fp64 from many in 8, so the bounds of these are not the data sheet's.

        >>> h200 = GpuFacts("NVIDIA H200", None, 150 << 30, 50 << 20, 132, (9, 0), *PEAKS["NVIDIA H200"])
        >>> 1e3 * h200.physical_floor_s(48 * 10**8, 0, "fp32"), 1e3 * h200.physical_floor_s(0, 989e9, "bf16")
        (1.0, 1.0)
        """
        if precision not in self.flops:
            raise ValueError(f"precision must be one of {', '.join(self.flops)}; got {precision}")
        peak = self.flops[precision]
        if precision == "fp32":
            peak = max(peak, self.flops["tf32"], self.flops["fp16"] / 3)
        if precision == "tf32":
            peak = self.flops["fp16"]
        if precision == "fp64":
            peak = max(peak, self.flops["fp8"] / 8)
        return max(nbytes / self.bandwidth, flops / peak)


def _peaks(
    bandwidth_gb: float, fp64: float, fp32: float, tf32: float, half: float, fp8: float
) -> tuple[float, dict[str, float]]:
    """In GB/s and TFLOP/s."""
    rates = {"fp64": fp64, "fp32": fp32, "tf32": tf32, "fp16": half, "bf16": half, "fp8": fp8}
    return 1e9 * bandwidth_gb, {name: 1e12 * rate for name, rate in rates.items()}


#: By NVIDIA's data sheets: dense, the faster of tensor cores and others, fp16 with fp16 sums where that is faster.
#: Where there is no fp8, the rate of int8. Of cards sold with several memories or coolings, the fastest.
PEAKS: dict[str, tuple[float, dict[str, float]]] = {
    "NVIDIA B200": _peaks(8000, 45, 80, 1250, 2500, 5000),
    "NVIDIA GB200": _peaks(8000, 45, 80, 1250, 2500, 5000),
    "NVIDIA H200": _peaks(4800, 67, 67, 495, 989, 1979),
    "NVIDIA GH200": _peaks(4900, 67, 67, 495, 990, 1979),
    "NVIDIA H100": _peaks(3940, 67, 67, 495, 990, 1979),
    "NVIDIA A100": _peaks(2039, 19.5, 19.5, 156, 312, 624),
    "NVIDIA A10": _peaks(600, 1, 35, 70, 140, 280),
    "NVIDIA A10G": _peaks(600, 1, 35, 70, 140, 280),
    "NVIDIA L40S": _peaks(864, 1.5, 91.6, 183, 366, 733),
    "NVIDIA L40": _peaks(864, 1.5, 90.5, 181, 362, 724),
    "NVIDIA L4": _peaks(300, 0.5, 30.3, 60.6, 121, 243),
    "NVIDIA GeForce RTX 5090": _peaks(1792, 1.7, 105, 210, 420, 840),
    "NVIDIA GeForce RTX 4090": _peaks(1008, 1.3, 82.6, 165, 330, 661),
    "NVIDIA GeForce RTX 3090": _peaks(1008, 0.6, 40, 71, 160, 320),
    "Tesla V100": _peaks(1134, 8.2, 16.4, 16.4, 130, 130),
    "Tesla T4": _peaks(320, 0.3, 8.1, 8.1, 65, 130),
}


@functools.lru_cache(maxsize=16)
def _facts(index: int) -> GpuFacts:
    properties = torch.cuda.get_device_properties(index)
    known = _known_peaks(properties.name)
    if known is None:
        # A multiprocessor of Blackwell does 16384 operations of 8 bits a clock; twice as many is beyond anything known.
        now = clocks(index)
        hertz = 1e6 * now.max_sm if now is not None else 4e9
        each = {"fp64": 512, "fp32": 1024, "tf32": 8192, "fp16": 16384, "bf16": 16384, "fp8": 32768}
        rates = {name: properties.multi_processor_count * hertz * rate for name, rate in each.items()}
        known = 1.25 * measured_bandwidth(index), rates
        measured = True
    else:
        measured = False
    return GpuFacts(
        name=properties.name,
        uuid=nvml.uuid(index),
        memory_bytes=properties.total_memory,
        l2_bytes=getattr(properties, "L2_cache_size", 0),
        multiprocessors=properties.multi_processor_count,
        capability=(properties.major, properties.minor),
        bandwidth=known[0],
        flops=known[1],
        is_measured=measured,
    )


def _known_peaks(name: str) -> tuple[float, dict[str, float]] | None:
    """The entry whose words the name begins with: ``NVIDIA H100 80GB HBM3`` is an ``NVIDIA H100``.

    >>> _known_peaks("NVIDIA A100-SXM4-80GB") is PEAKS["NVIDIA A100"]
    True
    >>> _known_peaks("NVIDIA A1000 Laptop GPU"), _known_peaks("NVIDIA H20")
    (None, None)
    """
    for known in sorted(PEAKS, key=len, reverse=True):
        rest = name.removeprefix(known)
        if rest != name and not rest[:1].isalnum():
            return PEAKS[known]
    return None


def gpu_facts(device: Device = 0) -> GpuFacts:
    """Of one GPU, found once. An unknown one's bandwidth is measured then, so ask before something else runs there."""
    return _facts(device_index(device))


def measured_bandwidth(device: Device = 0, size: int = 1 << 29, tries: int = 10) -> float:
    """Bytes a second of the fastest of some copies within the device; each byte is read and written."""
    place = torch.device("cuda", device_index(device))
    with torch.cuda.device(place):
        source = torch.zeros(size, dtype=torch.uint8, device=place)
        target = torch.empty_like(source)
        best = float("inf")
        for _ in range(tries):
            began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            began.record()
            target.copy_(source)
            ended.record()
            ended.synchronize()
            best = min(best, began.elapsed_time(ended))
    return 2 * size / (best / 1e3)


# ---- work ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Work:
    """What a module does in a call, as it is written.

    Attributes:
        flops: of products of matrices and attention; two for a multiplication with its addition.
        convolution_flops: likewise. Winograd's algorithm needs down to a quarter of them.
        input_bytes: of all tensors that go in. Not all need be read, where a task selects.
        output_bytes: of all that come out, views of an input left aside.
        parameter_bytes: of all parameters and buffers. An embedding reads a part.
    """

    flops: int
    convolution_flops: int
    input_bytes: int
    output_bytes: int
    parameter_bytes: int

    @property
    def least_flops(self) -> float:
        """What an algorithm can hardly do without."""
        return self.flops + self.convolution_flops / 4


def flop_count(module: torch.nn.Module, inputs: Sequence[Any]) -> Work:
    """Call the module once, without gradients, and count. On the meta device nothing is computed.

    >>> flop_count(torch.nn.Linear(4, 5), [torch.zeros(3, 4)])
    Work(flops=120, convolution_flops=0, input_bytes=48, output_bytes=60, parameter_bytes=100)
    """
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        outputs = module(*inputs)
    counts = counter.get_flop_counts().get("Global", {})
    convolutions = sum(count for operator, count in counts.items() if "conv" in str(operator))
    given = tensors_of(list(inputs))
    places = {(one.device, one.untyped_storage()._cdata) for one in given}
    made = [one for one in tensors_of(outputs) if (one.device, one.untyped_storage()._cdata) not in places]
    state = {id(one): one for one in [*module.parameters(), *module.buffers()]}
    return Work(
        flops=sum(counts.values()) - convolutions,
        convolution_flops=convolutions,
        input_bytes=_nbytes(given),
        output_bytes=_nbytes(made),
        parameter_bytes=_nbytes(state.values()),
    )


def _nbytes(tensors: Any) -> int:
    return sum(one.numel() * one.element_size() for one in tensors)
