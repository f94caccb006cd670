"""What is left of a search for a person: one page that needs nothing else."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from kernel_coder.pages import visible
from kernel_coder.refine.config import RefineConfig
from kernel_coder.refine.search import curve
from kernel_coder.refine.trajectory import REPORT, Trajectory
from kernel_coder.tasks import Task

WIDTH, HEIGHT = 640, 160


def write_report(config: RefineConfig, task: Task, trajectory: Trajectory, ended: str) -> Path:
    """Writes report.html into the folder of the search."""
    path = config.folder / REPORT
    part = path.with_name(f".{REPORT}.part")
    part.write_text(html(config, task, trajectory, ended), encoding="utf-8", errors="replace")
    part.replace(path)
    return path


def html(config: RefineConfig, task: Task, trajectory: Trajectory, ended: str) -> str:
    """The page: what was found, how the best one came about, and every answer with what was said to it."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["visible"] = visible
    source = resources.files("kernel_coder.refine").joinpath("report.html.jinja").read_text(encoding="utf-8")
    points = list(curve(list(trajectory.attempts.values())))
    top = max((value for _, value in points), default=1.0) or 1.0
    return environment.from_string(source).render(
        config=config,
        task=task,
        ended=ended,
        best=trajectory.best,
        rounds=list(trajectory.rounds()),
        tokens=trajectory.tokens,
        evaluations=trajectory.evaluations,
        answers=len(trajectory.attempts),
        size=(WIDTH, HEIGHT),
        line=" ".join(
            f"{WIDTH * count / len(points):.1f},{HEIGHT - (HEIGHT - 12) * value / top:.1f}" for count, value in points
        ),
        top=top,
    )
