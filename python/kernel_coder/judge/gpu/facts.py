"""How fast a GPU's memory can be at most, and how large its cache is. Importing this module touches no GPU."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from kernel_coder.judge.gpu.nvml import device_index

Device = int | str | torch.device

BANDWIDTH_GB: dict[str, float] = {
    "NVIDIA B200": 8000,
    "NVIDIA GB200": 8000,
    "NVIDIA H200": 4800,
    "NVIDIA GH200": 4900,
    "NVIDIA H100": 3940,
    "NVIDIA A100": 2039,
    "NVIDIA A10": 600,
    "NVIDIA A10G": 600,
    "NVIDIA L40S": 864,
    "NVIDIA L40": 864,
    "NVIDIA L4": 300,
    "NVIDIA GeForce RTX 5090": 1792,
    "NVIDIA GeForce RTX 4090": 1008,
    "NVIDIA GeForce RTX 3090": 1008,
    "Tesla V100": 1134,
    "Tesla T4": 320,
}
"""Memory bandwidth in GB/s, from NVIDIA's data sheets. Of a card that is sold with several memories, the fastest."""

MEASURED_MARGIN = 1.25
"""Factor on the bandwidth measured on a GPU that is not in the table, since a copy does not reach the full rate."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Limits of one GPU.

    Attributes:
        bandwidth: bytes a second from and to its memory, at most.
        l2_bytes: size of its last-level cache.
        is_measured: whether the bandwidth was measured, since the GPU is not in the table.
    """

    bandwidth: float
    l2_bytes: int
    is_measured: bool = False


def gpu_facts(device: Device = 0) -> GpuFacts:
    """Limits of a GPU, determined once in a process.

    The bandwidth of a GPU that is not in the table is measured at the first call. So make that call while nothing else
    runs on the GPU, and before a candidate could have changed anything there.
    """
    return _facts(device_index(device))


@functools.lru_cache(maxsize=16)
def _facts(index: int) -> GpuFacts:
    properties = torch.cuda.get_device_properties(index)
    known = known_bandwidth(properties.name)
    bandwidth = MEASURED_MARGIN * measured_bandwidth(index) if known is None else known
    return GpuFacts(bandwidth, getattr(properties, "L2_cache_size", 0), is_measured=known is None)


def known_bandwidth(name: str) -> float | None:
    """Bytes a second by the table, which has the first words of a GPU's name; None if it is not there.

    >>> known_bandwidth("NVIDIA A100-SXM4-80GB"), known_bandwidth("NVIDIA A1000 Laptop GPU")
    (2039000000000.0, None)
    """
    for known in sorted(BANDWIDTH_GB, key=len, reverse=True):
        rest = name.removeprefix(known)
        if rest != name and not rest[:1].isalnum():
            return 1e9 * BANDWIDTH_GB[known]
    return None


def measured_bandwidth(device: Device = 0, size: int = 1 << 29, tries: int = 10) -> float:
    """Bytes a second of the fastest of some copies within the device; each byte is read and written.

    Args:
        device: the GPU.
        size: bytes of a copy.
        tries: number of copies.
    """
    place = torch.device("cuda", device_index(device))
    with torch.cuda.device(place):
        source = torch.zeros(size, dtype=torch.uint8, device=place)
        target = torch.empty_like(source)
        best_ms = float("inf")
        for _ in range(tries):
            began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            began.record()
            target.copy_(source)
            ended.record()
            ended.synchronize()
            best_ms = min(best_ms, began.elapsed_time(ended))
    return 2 * size / (best_ms / 1e3)
