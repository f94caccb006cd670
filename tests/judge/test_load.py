"""The load probe: how much longer work takes on a shared GPU than alone. GPU, clock and events are simulated."""

from __future__ import annotations

import time
from typing import Protocol

import pytest
import torch
from kernel_coder.judge.gpu import contention as load
from kernel_coder.judge.gpu.contention import PROBE_STEPS, LoadProbe
from sliced_gpu import Burst, SlicedGpu

STEP_S, HOST_S = 64e-6, 30e-6


class Record(Protocol):
    at_s: float


class Fake:
    """A simulated GPU behind a gate. Its clock advances when the gate opens and when the probe waits for the GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, has_gate: bool = True) -> None:
        self.gpu, self.said, self.line = SlicedGpu(2e-3), list[str](), list[Record | float]()
        self.step_s = STEP_S
        fake = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                assert "shut" not in fake.said  # creating an event may wait for the GPU

            def record(self) -> None:
                fake.line.append(self)

            def elapsed_time(self, other: Event) -> float:
                return 1e3 * (other.at_s - self.at_s)

            at_s = 0.0

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        monkeypatch.setattr(load, "gate_of", lambda device: self if has_gate else None)
        monkeypatch.setattr(time, "perf_counter", lambda: self.gpu.now)

    def shut(self) -> None:
        assert not self.line
        self.said.append("shut")

    def open(self) -> float:
        self.said.append("open")
        self.gpu.idle(1e-4)  # launching takes this long
        return self.gpu.now

    def synchronize(self, device: object = None) -> None:
        for one in self.line:
            if isinstance(one, float):
                self.gpu.work("examiner", one)
            else:
                one.at_s = self.gpu.now
        self.line.clear()
        self.gpu.idle(HOST_S)

    def step(self) -> None:
        self.line.append(self.step_s)


def test_load_is_close_to_one_if_no_other_program_uses_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(monkeypatch)
    found = LoadProbe(torch.device("cpu"))
    found.now(fake.step)
    loads = [found.now(fake.step) for _ in range(5)]
    assert loads == pytest.approx([1 + HOST_S / (PROBE_STEPS * STEP_S)] * 5)
    assert fake.said == ["shut", "open"] * 6


@pytest.mark.parametrize("slice_s", [0.5e-3, 2e-3, 12e-3])
def test_probe_notices_another_program_for_slices_of_any_length(
    monkeypatch: pytest.MonkeyPatch, slice_s: float
) -> None:
    """The probe waits for a slice of the other program, before its first step or between steps."""
    fake = Fake(monkeypatch)
    fake.gpu = SlicedGpu(slice_s)
    fake.gpu.burners["other"] = Burst()
    found = LoadProbe(torch.device("cpu"))
    loads = []
    for number in range(20):
        fake.gpu.idle(number * slice_s / 7)
        loads.append(found.now(fake.step))
    assert found.step_s == pytest.approx(STEP_S)
    assert sum(one >= load.LOADED for one in loads) >= 14


def test_slowdown_of_all_steps_counts_as_load(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(monkeypatch)
    found = LoadProbe(torch.device("cpu"))
    found.now(fake.step)
    fake.step_s = 2 * STEP_S
    assert found.now(fake.step) == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize("has_gate", [True, False])
def test_gate_opens_even_if_a_step_fails(monkeypatch: pytest.MonkeyPatch, has_gate: bool) -> None:
    fake = Fake(monkeypatch, has_gate)
    found = LoadProbe(torch.device("cpu"))
    assert found.now(fake.step) == pytest.approx(1.0, abs=0.25)
    fake.said.clear()

    asked: list[list[str]] = []

    def step() -> None:
        asked.append(fake.said.copy())
        if len(asked) > 1:
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        found.now(step)
    assert asked[0] == []  # the gate is still open, because a kernel's first launch may wait for the GPU
    assert asked[1] == ["shut"] * has_gate
    assert fake.said == ["shut", "open"] * has_gate
