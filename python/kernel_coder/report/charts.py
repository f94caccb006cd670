"""Draws charts as inline SVG. A :class:`Chart` holds the data; all charts are drawn in the same way.

Text scales with the chart. It has the size of the page's text when the chart is as wide as a phone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import orjson
from markupsafe import Markup, escape

from kernel_coder.pages import visible
from kernel_coder.report.folder import Curve

WIDTH, HEIGHT = 360.0, 190.0  # of the chart, in SVG units
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 10.0, 24.0  # margins, in SVG units

MAX_POINTS = 400
"""Upper limit for the points of a line, about one for each SVG unit; a longer curve is drawn as means of neighbours."""

MAX_DOTS = 60
"""Upper limit for the dots on a line; more would touch each other."""

PALETTE = (6, 2, 0, 3, 7, 1, 5, 8, 4, 9, 10)
"""Colours of lines without a colour of their own, in order."""

MIN_SMOOTHED_POINTS = 30
"""Number of points from which a noisy line is drawn pale, with its moving mean on top."""

Unit = Literal["number", "share", "seconds", "speedup"]
Scale = Callable[[float], float]
Path = Callable[[Sequence[tuple[float, float]]], str]


@dataclass(frozen=True)
class Line:
    """A named line; ``low`` and ``high`` are a band around it."""

    label: str
    steps: Sequence[float]
    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    dots: bool = False  # draw a dot at each value, for values that are not measured in every step
    colour: int | None = None  # default: by the line's position in the chart

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True)
class Chart:
    """The data of a chart. In a stacked chart the lines have the same steps and their values add up."""

    title: str
    caption: str
    lines: tuple[Line, ...]
    unit: Unit = "number"
    stacked: bool = False
    from_zero: bool = False
    noisy: bool = True  # draw long lines pale, with their moving mean

    @property
    def is_zero(self) -> bool:
        return not any(value for one in self.lines for value in one.values)

    @property
    def thinned(self) -> int:
        """The number of steps that a drawn point averages over."""
        return max((_per_point(len(line)) for line in self.lines), default=1)


def line(curve: Curve, label: str, *, dots: bool = False, colour: int | None = None) -> Line:
    return Line(label, curve.steps, curve.values, dots=dots, colour=colour)


def shown(value: float, unit: Unit = "number") -> str:
    """Return a value with its unit.

    >>> shown(0.1234, "share"), shown(1234.5), shown(0.00012345), shown(75.2, "seconds"), shown(2, "speedup"), shown(0)
    ('12.3%', '1,234', '1.23e-4', '75.2 s', '2x', '0')
    """
    if unit == "share":
        return f"{100 * value:,.0f}%" if abs(value) >= 10 else f"{100 * value:.3g}%"
    if 0 < abs(value) < 0.001:
        digits, _, power = f"{value:.2e}".partition("e")
        text = f"{float(digits):g}e{int(power)}"
    else:
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return text + {"number": "", "seconds": " s", "speedup": "x"}[unit]


def svg(chart: Chart) -> Markup:
    """Return the SVG element: axes, lines or areas, and a cursor that the page's script moves."""
    lines = [_thin(one) for one in chart.lines if len(one)]
    if not lines:
        return Markup("")
    bands = _stack(lines) if chart.stacked else []
    steps = [step for one in lines for step in one.steps]
    x_low, x_high = min(steps), max(steps)
    y_low, y_high, ticks = _range(chart, lines)

    def x(step: float) -> float:
        part = (step - x_low) / (x_high - x_low) if x_high > x_low else 0.5
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        part = (min(max(value, y_low), y_high) - y_low) / (y_high - y_low)
        return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)

    def path(points: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{x(step):.1f} {y(value):.1f}" for step, value in points)

    parts = []
    for tick in ticks:
        at = y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        label = escape(shown(tick, chart.unit))
        parts.append(f'<text class="tick" text-anchor="end" x="{LEFT - 5}" y="{at + 3.5:.1f}">{label}</text>')
    for tick, anchor in zip(*_step_ticks(x_low, x_high), strict=True):
        place = f'text-anchor="{anchor}" x="{x(tick):.1f}" y="{HEIGHT - 7}"'
        parts.append(f'<text class="tick" {place}>{"step " if tick == x_low else ""}{tick:,.0f}</text>')
    if chart.stacked:
        for number, (one, below, above) in enumerate(bands):
            up = list(zip(one.steps, above, strict=True))
            down = list(zip(one.steps, below, strict=True))[::-1]
            if len(up) == 1:  # draw a single step as a bar
                parts.append(_bar(x(up[0][0]), y(up[0][1]), y(down[0][1]), colour(one, number)))
            else:
                parts.append(f'<path class="area c{colour(one, number)}" d="{path(up + down)}Z"/>')
    else:
        for number, one in enumerate(lines):
            parts += _drawn(one, colour(one, number), chart.noisy, path, x, y)
    parts.append(f'<line class="cursor" x1="0" x2="0" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
    title = escape(visible(f"{chart.title}, by step"))
    return Markup(
        f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label="{title}" tabindex="0" '
        f'data-chart="{escape(_data(chart, lines, x_low, x_high))}">{"".join(parts)}</svg>'
    )


def _drawn(one: Line, number: int, noisy: bool, path: Path, x: Scale, y: Scale) -> list[str]:
    """Return the SVG elements of a line: its band, the line, its moving mean and its dots."""
    parts = []
    points = list(zip(one.steps, one.values, strict=True))
    if one.low is not None and one.high is not None:
        if len(points) > 1:
            around = [*zip(one.steps, one.high, strict=True), *list(zip(one.steps, one.low, strict=True))[::-1]]
            parts.append(f'<path class="band c{number}" d="{path(around)}Z"/>')
        else:
            ends = f'y1="{y(one.low[0]):.1f}" y2="{y(one.high[0]):.1f}"'
            parts.append(
                f'<line class="whisker c{number}" x1="{x(one.steps[0]):.1f}" x2="{x(one.steps[0]):.1f}" {ends}/>'
            )
    pale = noisy and not one.dots and len(points) >= MIN_SMOOTHED_POINTS
    if len(points) > 1:
        parts.append(f'<path class="line c{number}{" pale" if pale else ""}" d="{path(points)}"/>')
    if pale:
        smooth = list(zip(one.steps, moving_mean(one.values), strict=True))
        parts.append(f'<path class="line c{number}" d="{path(smooth)}"/>')
    if (one.dots and len(points) <= MAX_DOTS) or len(points) <= 12:
        parts += [f'<circle class="dot c{number}" cx="{x(s):.1f}" cy="{y(v):.1f}" r="2.6"/>' for s, v in points]
    return parts


def _bar(x: float, top: float, bottom: float, number: int) -> str:
    return f'<rect class="area c{number}" x="{x - 20:.1f}" width="40" y="{top:.1f}" height="{bottom - top:.1f}"/>'


def moving_mean(values: Sequence[float]) -> list[float]:
    """Return the mean over a window of a tenth of the curve around each value; the window is cut off at the ends.

    >>> moving_mean([0.0, 3.0, 0.0])
    [1.5, 1.0, 1.5]
    """
    reach = max(1, len(values) // 20)
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    means = []
    for place in range(len(values)):
        begin, end = max(0, place - reach), min(len(values), place + reach + 1)
        means.append((sums[end] - sums[begin]) / (end - begin))
    return means


def legend(chart: Chart) -> list[tuple[int, str]]:
    """Return the colours and labels of the lines; empty for a single line, which the title names."""
    lines = [one for one in chart.lines if len(one)]
    return [(colour(one, number), one.label) for number, one in enumerate(lines)] if len(lines) > 1 else []


def colour(one: Line, number: int) -> int:
    return PALETTE[number % len(PALETTE)] if one.colour is None else one.colour


def _per_point(points: int) -> int:
    return -(-points // MAX_POINTS)


def _thin(one: Line) -> Line:
    per = _per_point(len(one))
    if per == 1:
        return one

    def means(values: Sequence[float]) -> list[float]:
        parts = [values[i : i + per] for i in range(0, len(values), per)]
        return [sum(part) / len(part) for part in parts]

    low, high = (None if bound is None else means(bound) for bound in (one.low, one.high))
    steps = [one.steps[min(i + per // 2, len(one) - 1)] for i in range(0, len(one), per)]
    return Line(one.label, steps, means(one.values), low, high, one.dots, one.colour)


def _stack(lines: Sequence[Line]) -> list[tuple[Line, list[float], list[float]]]:
    below = [0.0] * len(lines[0])
    found = []
    for one in lines:
        above = [a + b for a, b in zip(below, one.values, strict=True)]
        found.append((one, below, above))
        below = above
    return found


def _range(chart: Chart, lines: Sequence[Line]) -> tuple[float, float, list[float]]:
    """Return the lowest and highest value of the y axis, and its grid lines."""
    values = [
        value for one in lines for bound in (one.values, one.low, one.high) if bound is not None for value in bound
    ]
    if chart.stacked and chart.unit == "share":
        return 0.0, 1.0, [0.0, 0.25, 0.5, 0.75, 1.0]
    if chart.stacked:
        values = [0.0, *(value for _, _, above in _stack(lines) for value in above)]
    low, high = min(values), max(values)
    if chart.from_zero or chart.unit == "share":
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-9 * max(abs(high), abs(low)):  # too small a range would round all ticks to the same number
        spare = abs(high) / 2 or (1.0 if chart.unit != "share" else 0.01)
        low, high = (0.0, high + spare) if low == 0 else (low - spare, high + spare)
    every = _nice((high - low) / 4)
    first, last = math.floor(low / every + 1e-9), math.ceil(high / every - 1e-9)
    digits = 12 - math.floor(math.log10(every))
    ticks = [round(number * every, digits) for number in range(first, last + 1)]
    return ticks[0], ticks[-1], ticks


def _nice(size: float) -> float:
    """Rounds up to 1, 2, 2.5 or 5 times a power of ten.

    >>> _nice(0.3), _nice(7), _nice(21)
    (0.5, 10.0, 25.0)
    """
    power = 10.0 ** math.floor(math.log10(size))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= size * (1 - 1e-9))


def _step_ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    if high == low:
        return [low], ["middle"]
    middle = round((low + high) / 2)
    return ([low, middle, high], ["start", "middle", "end"]) if low < middle < high else ([low, high], ["start", "end"])


def _data(chart: Chart, lines: Sequence[Line], x_low: float, x_high: float) -> str:
    """Return the data that the page's script shows at the pointer, as JSON."""
    record = {
        "x": [x_low, x_high],
        "left": LEFT / WIDTH,
        "right": 1 - RIGHT / WIDTH,
        "unit": chart.unit,
        "lines": [
            {
                "label": visible(one.label),
                "steps": list(one.steps),
                "values": [float(f"{value:.5g}") for value in one.values],
            }
            for one in lines
        ],
    }
    return orjson.dumps(record).decode()
