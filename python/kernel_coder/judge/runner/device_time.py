"""The share of a GPU's time that a candidate's own kernels take, from a profile of torch.

A profiler's records say what the GPU did and for how long. Kernels are told apart by their exact names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class NoDeviceTime(Exception):
    """The profile allows no statement about device time. The caller must treat this as a failed proof of work."""


class KernelRecord(NamedTuple):
    """One thing that the GPU did: a kernel, or a copy or fill by the driver."""

    name: str
    start_ns: int
    duration_ns: int
    is_kernel: bool = True


class DeviceTime(NamedTuple):
    """Device time in nanoseconds and number of records: of the candidate's own kernels, and of everything."""

    own_ns: int
    all_ns: int
    own_records: int
    records: int

    @property
    def share(self) -> float:
        """Part of the time that was spent in the candidate's own kernels, 0 to 1."""
        return self.own_ns / self.all_ns


_NO_WORK = frozenset({"user_annotation", "gpu_user_annotation", "overhead", "cuda_sync", "cuda_event"})
"""Types of profiler events that stand on the device's timeline and are no work of the device."""


def device_records(profile: Any) -> list[KernelRecord]:
    """What a finished ``torch.profiler.profile`` recorded on a CUDA device.

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
    """The part of the device's time in the candidate's own kernels. Copies and fills by the driver are never its own.

    Args:
        records: of one or more calls.
        own: names of own kernels, as ``OwnKernels.kernel_names`` gives them; compared exactly.
        launched: how often each own Triton kernel was launched meanwhile (``Launches.by_name``). A library's kernel of
            the same name would make a name appear more often than that.

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
