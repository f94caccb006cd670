"""Limits of a GPU: bandwidth, size of the cache and arithmetic. Importing this module touches no GPU."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from kernel_coder.judge.gpu.nvml import device_index

Device = int | str | torch.device
Entry = TypeVar("Entry")

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
"""Memory bandwidth in GB/s, from NVIDIA's data sheets; of several memories of a card, the fastest."""

MEASURED_MARGIN = 1.25
"""Factor on the measured bandwidth of a GPU that is not in the table, because a copy does not reach the full rate."""

TERAFLOPS: dict[str, dict[str, float]] = {
    name: dict(zip(("fp64", "fp32", "tf32", "fp16", "bf16"), rates, strict=True))
    for name, rates in {
        "NVIDIA B200": (45, 80, 1250, 2500, 2500),
        "NVIDIA GB200": (45, 80, 1250, 2500, 2500),
        "NVIDIA H200": (67, 67, 495, 989, 989),
        "NVIDIA GH200": (67, 67, 495, 990, 990),
        "NVIDIA H100": (67, 67, 495, 990, 990),
        "NVIDIA A100": (19.5, 19.5, 156, 312, 312),
        "NVIDIA A10": (1, 35, 70, 140, 140),
        "NVIDIA A10G": (1, 35, 70, 140, 140),
        "NVIDIA L40S": (1.5, 91.6, 183, 366, 366),
        "NVIDIA L40": (1.5, 90.5, 181, 362, 362),
        "NVIDIA L4": (0.5, 30.3, 60.6, 121, 121),
        "NVIDIA GeForce RTX 5090": (1.7, 105, 210, 420, 420),
        "NVIDIA GeForce RTX 4090": (1.3, 82.6, 165, 330, 330),
        "NVIDIA GeForce RTX 3090": (0.6, 40, 71, 160, 160),
        "Tesla V100": (8.2, 16.4, 16.4, 130, 130),
        "Tesla T4": (0.3, 8.1, 8.1, 65, 65),
    }.items()
}
"""10^12 operations a second by precision, from NVIDIA's data sheets: dense, and on tensor cores if these are faster."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Limits of one GPU.

    Attributes:
        bandwidth: upper limit of the bytes a second from and to its memory.
        l2_bytes: size of its last-level cache in bytes.
        is_measured: whether the bandwidth was measured, because the GPU is not in the table.
        teraflops: 10^12 operations a second by precision; None for a GPU that is not in the table.
    """

    bandwidth: float
    l2_bytes: int
    is_measured: bool = False
    teraflops: Mapping[str, float] | None = None

    def floor_s(self, size: int, flops: int, precision: str) -> float | None:
        """Return the shortest time, in seconds, for so many bytes and operations; None if the rates are unknown.

        >>> h100 = GpuFacts(4e12, 50 << 20, teraflops=TERAFLOPS["NVIDIA H100"])
        >>> 1e3 * h100.floor_s(4 * 10**9, 67 * 10**9, "fp32"), GpuFacts(4e12, 0).floor_s(1, 1, "fp32")
        (1.0, None)
        """
        if self.teraflops is None:
            return None
        return max(size / self.bandwidth, flops / (1e12 * self.teraflops[precision]))


def gpu_facts(device: Device = 0) -> GpuFacts:
    """Return the limits of a GPU, determined once in a process.

    The bandwidth of a GPU that is not in the table is measured at the first call. So make that call while nothing else
    runs on the GPU, and before a candidate could have changed anything there.
    """
    return _facts(device_index(device))


@functools.lru_cache(maxsize=16)
def _facts(index: int) -> GpuFacts:
    properties = torch.cuda.get_device_properties(index)
    known = known_bandwidth(properties.name)
    bandwidth = MEASURED_MARGIN * measured_bandwidth(index) if known is None else known
    return GpuFacts(
        bandwidth, getattr(properties, "L2_cache_size", 0), known is None, _entry(TERAFLOPS, properties.name)
    )


def known_bandwidth(name: str) -> float | None:
    """Return a GPU's bytes a second from the table, whose keys are the first words of names; None if it is not there.

    >>> known_bandwidth("NVIDIA A100-SXM4-80GB"), known_bandwidth("NVIDIA A1000 Laptop GPU")
    (2039000000000.0, None)
    """
    found = _entry(BANDWIDTH_GB, name)
    return None if found is None else 1e9 * found


def _entry(table: Mapping[str, Entry], name: str) -> Entry | None:
    """Return the entry whose words a GPU's name begins with."""
    for known in sorted(table, key=len, reverse=True):
        rest = name.removeprefix(known)
        if rest != name and not rest[:1].isalnum():
            return table[known]
    return None


def measured_bandwidth(device: Device = 0, size: int = 1 << 29, tries: int = 10) -> float:
    """Return the bytes a second of the fastest of several copies within the device. Each byte is read and written.

    Args:
        device: the GPU.
        size: bytes of each copy.
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
