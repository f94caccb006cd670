"""The report over the rounds of a loop: report.html and rounds.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_coder.loop.config import LoopConfig
from kernel_coder.pages import NO_VALUE, percent, render, times

REPORT, TABLE = "report.html", "rounds.md"


@dataclass(frozen=True, slots=True)
class Round:
    """The facts of a round's finished stages. Round 0 is the evaluation of the starting policy."""

    number: int
    rl: dict[str, Any] | None = None
    keep: dict[str, Any] | None = None
    sft: dict[str, Any] | None = None
    evaluate: dict[str, Any] | None = None

    @property
    def seconds(self) -> float:
        return sum(one["seconds"] for one in (self.rl, self.keep, self.sft, self.evaluate) if one is not None)


def rows(rounds: Sequence[Round]) -> list[list[str]]:
    """Return the header of the table and a row for each round."""
    ks = sorted({int(k) for one in rounds if one.evaluate for k in one.evaluate["pass"]})
    header = ["round", "answers judged", "correct", "different", "kept", "reasoning, characters"]
    header += [*(f"pass@{k}" for k in ks), "different answers", "correct texts a task", "speedup", "seconds"]
    found = [header]
    for one in rounds:
        row = [str(one.number)]
        row += (
            [f"{one.rl['answers']}", percent(one.rl["correct"] / max(one.rl["answers"], 1))]
            if one.rl
            else [NO_VALUE] * 2
        )
        row += [percent(one.rl["different"] / max(one.rl["answers"], 1))] if one.rl else [NO_VALUE]
        row += (
            [f"{one.keep['kept']} of {one.keep['correct']}", f"{one.keep['thinking']:.0f}"]
            if one.keep
            else [NO_VALUE] * 2
        )
        known = one.evaluate
        row += [interval(known["pass"].get(str(k), [None] * 3), percent) if known else NO_VALUE for k in ks]
        row += [percent(known["different"]), f"{known['different_correct']:.1f}"] if known else [NO_VALUE] * 2
        row += [interval(known["speedup"], times) if known else NO_VALUE, f"{one.seconds:.0f}"]
        found.append(row)
    return found


def interval(values: Sequence[float | None], shown: Any) -> str:
    """Return a value with its interval.

    >>> interval([0.5, 0.25, 0.75], percent), interval([None, None, None], percent)
    ('50.0% (25.0% to 75.0%)', '–')
    """
    value, low, high = values
    if value is None:
        return NO_VALUE
    return str(shown(value)) + (f" ({shown(low)} to {shown(high)})" if low is not None else "")


def write_report(folder: Path, config: LoopConfig, rounds: Sequence[Round]) -> None:
    """Writes the page and the table."""
    header, *body = rows(rounds)
    lines = [f"| {' | '.join(header)} |", f"|{' --: |' * len(header)}", *(f"| {' | '.join(row)} |" for row in body)]
    page = render(__package__, "report.html.jinja", None, config=config, settings=config.to_yaml(), table=rows(rounds))
    for name, text in ((TABLE, "\n".join([*lines, ""])), (REPORT, page)):
        part = folder / f".{name}.part"
        part.write_text(text, encoding="utf-8", errors="replace")
        part.replace(folder / name)
