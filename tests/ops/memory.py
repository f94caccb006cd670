"""How much an op allocates."""

from __future__ import annotations

from collections.abc import Callable

import torch


def allocated_bytes(call: Callable[[], object]) -> int:
    """The sum of torch's CPU allocations during a call, freed again or not."""
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        call()
    return sum(max(0, event.self_cpu_memory_usage) for event in profile.events())
