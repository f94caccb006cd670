"""Writes the report of a search: one self-contained page."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernel_coder.pages import render
from kernel_coder.refine.archive import Archive, cell_of
from kernel_coder.refine.config import RefineConfig
from kernel_coder.refine.search import curve
from kernel_coder.refine.trajectory import REPORT, Attempt, Key, Trajectory
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
    """Return the page: the best kernel, the best speedup after each verdict, and every answer with its verdict."""
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
        cells=cells(config, trajectory) if config.strategy == "evolve" else [],
        tree=list(tree(trajectory)) if config.strategy == "evolve" else [],
        diff=diff_to_parent(trajectory),
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """A row of the page's table of the archive."""

    values: tuple[str, ...]  # one for each axis
    elite: Attempt
    answers: int  # judged answers of this cell
    children: int  # number of answers with the elite as a parent


def cells(config: RefineConfig, trajectory: Trajectory) -> list[Cell]:
    """Return the cells of all islands' archives together, the best one first."""
    attempts = list(trajectory.attempts.values())
    archive = Archive.of(attempts, config.axes)
    sizes = Counter(cell_of(one, config.axes) for one in attempts if one.code is not None and one.is_judged)
    children = Counter(parent for one in attempts for parent in one.parents)
    by_elite = {one.key: values for values, one in archive.cells.items()}
    return [Cell(by_elite[one.key], one, sizes[by_elite[one.key]], children[one.key]) for one in archive.elites]


def tree(trajectory: Trajectory) -> Iterator[tuple[int, Attempt]]:
    """Yield every answer with its depth, each below its last parent, which is the one that its prompt ended with."""
    below: dict[Key | None, list[Attempt]] = {}
    for one in sorted(trajectory.attempts.values(), key=lambda one: one.key):
        below.setdefault(one.parents[-1] if one.parents else None, []).append(one)
    waiting = [(0, one) for one in reversed(below.get(None, []))]
    while waiting:
        depth, one = waiting.pop()
        yield depth, one
        waiting += [(depth + 1, child) for child in reversed(below.get(one.key, []))]


def diff_to_parent(trajectory: Trajectory) -> str:
    """Return the changes from the best kernel's last parent to it; empty if it has none."""
    best = trajectory.best
    if best is None or not best.parents:
        return ""
    parent = trajectory.attempts[best.parents[-1]]
    before, after = (f"round {one.turn}, answer {one.sample}" for one in (parent, best))
    old, new = ((one.code or "").splitlines() for one in (parent, best))
    return "\n".join(difflib.unified_diff(old, new, before, after, lineterm=""))
