"""Draws the time line of a run's last steps: the times of each phase."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from markupsafe import Markup, escape

from kernel_coder.report.charts import LEFT, RIGHT, WIDTH, shown
from kernel_coder.report.folder import Run

DRAWN_STEPS = 4
"""Number of steps that are drawn. With more, the bars of a step would be too short to see."""

LANES = {
    "writing answers": ("rollout", "sample"),
    "judging": ("judge",),
    "waiting": ("wait_answers", "wait_verdicts"),
    "learning": ("reward", "logprobs", "update"),
    "held-out tasks": ("eval",),
}
"""The lines of the drawing, and the phases in each."""

COLOURS = (2, 6)
"""Colours of steps with even and odd numbers, of the page's palette."""

LANE, GAP, TOP, BOTTOM = 16.0, 5.0, 4.0, 18.0  # in SVG units
LABELS = 62.0  # width of the lanes' labels, in SVG units


@dataclass(frozen=True)
class Bar:
    """A phase of a step, in seconds on the run's clock."""

    lane: str
    step: int
    begin: float
    end: float


def bars(run: Run) -> list[Bar]:
    """Return the phases of the last steps. Without times in metrics.jsonl there are none."""
    spans: dict[int, dict[str, list[float]]] = {}
    for place, side in enumerate(("from", "until")):
        for name, curve in run.curves.items():
            if name.startswith(f"time/{side}/"):
                for step, value in zip(curve.steps, curve.values, strict=True):
                    spans.setdefault(int(step), {}).setdefault(name.rpartition("/")[2], [0.0, 0.0])[place] = value
    lane_of = {phase: lane for lane, phases in LANES.items() for phase in phases}
    last = sorted(spans)[-DRAWN_STEPS:]
    return [
        Bar(lane_of[phase], step, begin, end)
        for step in last
        for phase, (begin, end) in spans[step].items()
        if phase in lane_of and end > begin
    ]


def timeline(run: Run) -> Markup:
    """Return the SVG element, or nothing without times.

    The clock begins at 0 again when a run is resumed, so steps from before and after that are not drawn together.
    """
    found = bars(run)
    ends = {bar.step: max(other.end for other in found if other.step == bar.step) for bar in found}
    steps = sorted(ends)
    resumed = [later for step, later in itertools.pairwise(steps) if ends[later] < ends[step]]
    found = [bar for bar in found if not resumed or bar.step >= resumed[-1]]
    if not found:
        return Markup("")
    lanes = [lane for lane in LANES if any(bar.lane == lane for bar in found)]
    begin, end = min(bar.begin for bar in found), max(bar.end for bar in found)
    left = LEFT + LABELS - 10
    height = TOP + len(lanes) * (LANE + GAP) + BOTTOM

    def x(at: float) -> float:
        return left + (at - begin) / max(end - begin, 1e-9) * (WIDTH - left - RIGHT)

    parts = []
    for row, lane in enumerate(lanes):
        y = TOP + row * (LANE + GAP)
        parts.append(f'<text class="tick" x="{left - 6:.0f}" y="{y + 12:.0f}" text-anchor="end">{escape(lane)}</text>')
        for bar in found:
            if bar.lane == lane:
                told = f"step {bar.step}, {lane}: {shown(bar.end - bar.begin, 'seconds')}"
                width = max(x(bar.end) - x(bar.begin), 0.6)
                parts.append(
                    f'<rect class="area c{COLOURS[bar.step % 2]}" x="{x(bar.begin):.1f}" y="{y:.0f}" '
                    f'width="{width:.1f}" height="{LANE:.0f}"><title>{escape(told)}</title></rect>'
                )
    bottom = height - 5
    parts.append(f'<text class="tick" x="{left:.0f}" y="{bottom:.0f}">0</text>')
    whole = shown(end - begin, "seconds")
    parts.append(f'<text class="tick" x="{WIDTH - RIGHT:.0f}" y="{bottom:.0f}" text-anchor="end">{whole}</text>')
    return Markup(f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img">{"".join(parts)}</svg>')
