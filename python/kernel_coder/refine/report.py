"""Writes the report of a search: one self-contained page."""

from __future__ import annotations

from pathlib import Path

from kernel_coder.pages import render
from kernel_coder.refine.config import RefineConfig
from kernel_coder.refine.search import curve
from kernel_coder.refine.trajectory import REPORT, Trajectory
from kernel_coder.tasks import Task

WIDTH, HEIGHT = 640, 160  # of the chart, in CSS pixels


def write_report(config: RefineConfig, task: Task, trajectory: Trajectory, ended: str) -> Path:
    """Writes report.html into the folder of the search."""
    path = config.folder / REPORT
    part = path.with_name(f".{REPORT}.part")
    part.write_text(html(config, task, trajectory, ended), encoding="utf-8", errors="replace")
    part.replace(path)
    return path


def html(config: RefineConfig, task: Task, trajectory: Trajectory, ended: str) -> str:
    """The page: the best kernel, the best speedup after each verdict, and every answer with its verdict."""
    points = list(curve(list(trajectory.attempts.values())))
    top = max((value for _, value in points), default=1.0) or 1.0
    return render(
        __package__,
        "report.html.jinja",
        None,
        config=config,
        task=task,
        ended=ended,
        best=trajectory.best,
        failures=trajectory.failures(),
        rounds=list(trajectory.rounds()),
        tokens=trajectory.tokens,
        evaluations=trajectory.evaluations,
        answers=len(trajectory.attempts),
        size=(WIDTH, HEIGHT),
        # A chart needs at least two points, and one of them above zero.
        line=" ".join(
            f"{WIDTH * count / len(points):.1f},{HEIGHT - (HEIGHT - 12) * value / top:.1f}" for count, value in points
        )
        if len(points) > 1 and trajectory.best is not None
        else "",
        top=top,
    )
