"""Measures how much memory an op allocates."""

from __future__ import annotations

from collections.abc import Callable

import torch


def allocated_bytes(call: Callable[[], object], device: str = "cpu") -> int:
    """The sum of all torch allocations on the device during a call, also of those that the call frees again."""
    if device == "cuda":
        before = torch.cuda.memory_stats()["allocated_bytes.all.allocated"]
        call()
        return torch.cuda.memory_stats()["allocated_bytes.all.allocated"] - before
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        call()
    return sum(max(0, event.self_cpu_memory_usage) for event in profile.events())
