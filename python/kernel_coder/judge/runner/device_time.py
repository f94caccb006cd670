"""Computes the share of a GPU's time that a candidate's own kernels take, from a profile of torch.

A profiler's records say what the GPU did and for how long. Kernels are distinguished by their exact names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class NoDeviceTime(Exception):
    """Raised if the device time cannot be found from the profile. This counts as a failed proof of work."""


class KernelRecord(NamedTuple):
    """One activity of the GPU: a kernel, or a copy or fill by the driver."""

    name: str
    start_ns: int
    duration_ns: int
    is_kernel: bool = True


class DeviceTime(NamedTuple):
    """Device time in nanoseconds and number of records, for the candidate's own kernels and for everything."""

    own_ns: int
    all_ns: int
    own_records: int
    records: int

    @property
    def share(self) -> float:
        """Share of the time that was spent in the candidate's own kernels, 0 to 1."""
        return self.own_ns / self.all_ns


_NO_WORK = frozenset({"user_annotation", "gpu_user_annotation", "overhead", "cuda_sync", "cuda_event"})
"""Types of profiler events that are on the device's timeline but are not work of the device."""


def device_records(profile: Any) -> list[KernelRecord]:
    """Return what a finished ``torch.profiler.profile`` recorded on a CUDA device.

    Ranges that code names itself (``record_function``) are left out: a candidate could give one a kernel's name.
    """
    found = []
    for event in profile.events():
        if event.device_type.name != "CUDA" or getattr(event, "is_user_annotation", False):
            continue
        if getattr(event, "activity_type", None) in _NO_WORK:
            continue
        start, duration = event.time_range.start, event.time_range.elapsed_us()
        is_kernel = not event.name.startswith(("Memcpy ", "Memset "))
        found.append(KernelRecord(event.name, int(1000 * start), round(1000 * duration), is_kernel))
    return found


def kernel_share(
    records: Iterable[KernelRecord], own: Iterable[str], launched: Mapping[str, int] | None = None
) -> DeviceTime:
    """Return the device time of own kernels and of everything. The driver's copies and fills are never own.

    Args:
        records: records of one or more calls.
        own: names of own kernels, from ``OwnKernels.kernel_names``. They are compared exactly.
        launched: number of launches of each own Triton kernel in these calls (``Launches.by_name``). If a library's
            kernel has the same name, that name is recorded more often.

    Raises:
        NoDeviceTime: there are no records, they have no duration, or a name was recorded more often than launched.

    >>> records = [KernelRecord("fused", 0, 300), KernelRecord("gemm", 300, 600), KernelRecord("Memset", 900, 100)]
    >>> kernel_share(records, ["fused"]).share
    0.3
    """
    names, counts = set(own), dict.fromkeys(launched or (), 0)
    own_ns = all_ns = own_records = total = 0
    for record in records:
        if record.duration_ns < 0:
            raise NoDeviceTime(f"{record.name} was recorded with a negative duration")
        total += 1
        all_ns += record.duration_ns
        if record.is_kernel and record.name in names:
            own_ns += record.duration_ns
            own_records += 1
            if record.name in counts:
                counts[record.name] += 1
    if total == 0 or all_ns == 0:
        raise NoDeviceTime("the profiler recorded nothing on the device")
    for name, count in counts.items():
        if count > (launched or {})[name]:
            raise NoDeviceTime(f"{name} was recorded {count} times and launched {(launched or {})[name]} times")
    return DeviceTime(own_ns, all_ns, own_records, total)
