"""Device time and memory of a candidate's calls."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity

from kernel_coder.judge.runner.device_time import NoDeviceTime, device_records, kernel_share
from kernel_coder.judge.runner.launch_hooks import record_launches
from kernel_coder.judge.runner.own_kernels import OwnKernels


def profiled(own: OwnKernels, calls: Callable[[], None]) -> tuple[int, ...]:
    """Return nanoseconds of device time in own kernels and in all kernels, the number of records (all 0 if unknown),
    and the bytes that a call allocates at most."""
    peak = most_allocated(calls)
    with record_launches(own) as seen, torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profile:
        calls()
    try:
        time = kernel_share(device_records(profile), own.kernel_names(), seen.by_name)
    except NoDeviceTime:
        return (0, 0, 0, peak)
    return (time.own_ns, time.all_ns, time.records, peak)


def most_allocated(calls: Callable[[], None]) -> int:
    """Return the bytes that the calls allocate on the GPU at most."""
    calls()  # the first call compiles, tunes and allocates, which is not measured
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    calls()
    return torch.cuda.max_memory_allocated() - held
