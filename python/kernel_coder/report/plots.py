"""The charts of the report as PNG files. This needs the optional package matplotlib."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from kernel_coder.report.charts import MIN_SMOOTHED_POINTS, Chart, colour, moving_mean, shown
from kernel_coder.report.contents import sections
from kernel_coder.report.folder import Run

COLUMNS = 3
COLOURS = (
    "#2da44e", "#e3a008", "#d9730d", "#8c6bb1", "#7a8490", "#d1242f",
    "#1f78b4", "#4db6ac", "#6d4c41", "#111111", "#c9d1d9",
)  # fmt: skip
"""The colours of the page in its light scheme."""


def is_available() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def write_plots(run: Run, page: Path) -> list[Path]:
    """Writes a PNG beside the page for each section except the last: ``report-progress.png`` and so on."""
    paths = []
    for section in sections(run):
        if section.key != "others":
            path = page.with_name(f"{page.stem}-{section.key}.png")
            _write(section.charts, path)
            paths.append(path)
    return paths


def _write(charts: Sequence[Chart], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    columns = min(COLUMNS, len(charts))
    rows = -(-len(charts) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.1 * rows), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place >= len(charts):
            axes.axis("off")
            continue
        chart = charts[place]
        axes.set_title(_plain(chart.title), fontsize=10)
        axes.grid(color="#d9dee3", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_xlabel("step", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _, unit=chart.unit: shown(value, unit)))
        lines = [one for one in chart.lines if len(one)]
        colours = [COLOURS[colour(one, number)] for number, one in enumerate(lines)]
        labels = [_plain(one.label) for one in lines]
        if chart.stacked:
            axes.stackplot(lines[0].steps, *(one.values for one in lines), labels=labels, colors=colours)
            axes.set_ylim(0, 1)
        for one, paint, label in zip(lines, colours, labels, strict=True):
            if chart.stacked:
                continue
            noisy = chart.noisy and not one.dots and len(one) >= MIN_SMOOTHED_POINTS
            marker = "o" if one.dots or len(one) <= 12 else None
            axes.plot(
                one.steps, one.values, color=paint, linewidth=1, alpha=0.3 if noisy else 1, marker=marker, markersize=3,
                label=None if noisy else label,
            )  # fmt: skip
            if noisy:
                axes.plot(one.steps, moving_mean(one.values), color=paint, linewidth=1.6, label=label)
            if one.low is not None and one.high is not None:
                axes.fill_between(one.steps, one.low, one.high, color=paint, alpha=0.15, linewidth=0)
        if len(lines) > 1:
            axes.legend(fontsize=7, framealpha=0.6)
    figure.savefig(path)


def _plain(text: str) -> str:
    """Return the text with characters escaped that matplotlib would read as a formula."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text).replace("$", r"\$")
