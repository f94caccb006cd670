"""The judge's timing on a simulated GPU that candidates and other programs keep busy.

Another program may slow the reference down while the judge times it alone, before and after the candidate is timed. The
candidate may slow the reference down, too. Neither may make the lower bound of the speedup too high.
"""

from __future__ import annotations

import random
import statistics
from typing import Any

import pytest
from sliced_gpu import Burst, SlicedGpu, SlicedTimer, clock_of

KERNELS = {  # seconds of a call, seconds to copy its outputs, number of calls that fit into memory
    "2 us": (2e-6, 2e-6, 64),
    "10 us": (10e-6, 2e-6, 64),
    "50 us": (50e-6, 5e-6, 9),
    "1.5 ms": (1.5e-3, 0.1e-3, 4),
    "20 ms": (20e-3, 1e-3, 4),
}
NONE: dict[str, Burst] = {}
COMPANY = {
    "none": (NONE, NONE, NONE),
    "one before and after": ({"b": Burst()}, NONE, {"b": Burst()}),
    "one always": ({"b": Burst()},) * 3,
    "three always": ({"b1": Burst(), "b2": Burst(), "b3": Burst()},) * 3,
    "20 of 40 ms, before": ({"b": Burst(0.02, 0.02)}, NONE, NONE),
    "40 of 50 ms, before": ({"b": Burst(0.04, 0.01)}, NONE, NONE),
    "100 of 200 ms, before": ({"b": Burst(0.1, 0.1)}, NONE, NONE),
    "300 of 400 ms, before": ({"b": Burst(0.3, 0.1)}, NONE, NONE),
    "100 of 200 ms, always": ({"b": Burst(0.1, 0.1)},) * 3,
    "40 of 50 ms, always": ({"b": Burst(0.04, 0.01)},) * 3,
}
TIMES = 5


def verdicts(kernel: str, slice_s: float, company: str, **candidate: Any) -> list[dict[str, Any]]:
    found = []
    for number in range(TIMES):
        random.seed(number)
        gpu = SlicedGpu(slice_s)
        parts = [
            {name: burst._replace(from_s=random.random()) for name, burst in part.items()} for part in COMPANY[company]
        ]
        with clock_of(gpu):
            found.append(SlicedTimer(gpu, *KERNELS[kernel], **candidate).verdict(*parts))
    return found


@pytest.mark.parametrize("company", COMPANY)
@pytest.mark.parametrize("slice_s", [1e-3, 2e-3, 8e-3])
@pytest.mark.parametrize("kernel", KERNELS)
def test_candidate_that_loads_the_gpu_between_its_calls_does_not_seem_faster(
    kernel: str, slice_s: float, company: str
) -> None:
    found = verdicts(kernel, slice_s, company, burns=True)
    assert max(one["speedup_low"] for one in found) < 1


WIDTH = {"2 us": 0.25, "10 us": 0.06, "50 us": 0.03}


@pytest.mark.parametrize("kernel", KERNELS)
def test_speedup_of_a_candidate_alone_on_a_gpu_is_right(kernel: str) -> None:
    width = WIDTH.get(kernel, 0.02)
    for factor in (1.0, 0.5, 2.0):
        for one in verdicts(kernel, 2e-3, "none", candidate=factor):
            assert one["speedup_low"] < 1 / factor < one["speedup_high"]
            if factor == 1.0:
                assert 1 - width < one["speedup_low"] < one["speedup_high"] < 1 + width
            assert one["reference_ms"] == pytest.approx(1e3 * KERNELS[kernel][0], rel=0.05)
            assert one["speedup_low"] * factor > (0.65 if kernel == "2 us" else 0.9)


@pytest.mark.parametrize("kernel", KERNELS)
def test_faster_candidate_is_mostly_measured_as_faster_beside_bursts_of_another_program(kernel: str) -> None:
    found = verdicts(kernel, 2e-3, "100 of 200 ms, before", candidate=0.5)
    assert statistics.median(one["speedup_low"] for one in found) > 1.2
    assert statistics.median(one["speedup"] for one in found) == pytest.approx(2.0, rel=0.1)
