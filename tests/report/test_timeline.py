"""The time line of the last steps in the report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kernel_coder.report.folder import Curve
from kernel_coder.report.timeline import DRAWN_STEPS, bars, timeline


def run_of(steps: dict[int, dict[str, tuple[float, float]]]) -> Any:
    names = {f"time/{side}/{phase}" for spans in steps.values() for phase in spans for side in ("from", "until")}
    curves = {}
    for name in names:
        _, side, phase = name.split("/")
        known = {step: spans[phase][side == "until"] for step, spans in steps.items() if phase in spans}
        curves[name] = Curve(name, list(known), list(known.values()))
    return SimpleNamespace(curves=curves)


def test_bars_are_the_phases_of_the_last_steps() -> None:
    step = {"sample": (0.0, 2.0), "judge": (1.0, 3.0), "wait_verdicts": (2.5, 2.5), "update": (3.0, 4.0)}
    run = run_of({n: {k: (a + 4 * n, b + 4 * n) for k, (a, b) in step.items()} for n in range(1, DRAWN_STEPS + 3)})
    found = bars(run)
    assert {bar.step for bar in found} == set(range(3, DRAWN_STEPS + 3))
    assert {bar.lane for bar in found} == {"writing answers", "judging", "learning"}  # the wait took no time
    drawn = str(timeline(run))
    assert drawn.count("<rect") == 3 * DRAWN_STEPS
    assert "step 4, judging: 2 s" in drawn


def test_only_steps_since_the_last_restart_of_the_clock_are_drawn() -> None:
    run = run_of({1: {"update": (10.0, 11.0)}, 2: {"update": (12.0, 13.0)}, 3: {"update": (1.0, 2.0)}})
    drawn = str(timeline(run))
    assert "step 3" in drawn
    assert "step 2" not in drawn


def test_run_without_times_has_no_time_line() -> None:
    assert str(timeline(run_of({}))) == ""
