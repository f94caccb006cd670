"""Draw the documents' figures: ``python benchmarks/make_figures.py`` writes docs/images/*.svg.

Plain SVG text, so that a figure is the same on every machine; tests/test_docs.py compares. The learning curve is drawn
from benchmarks/results/nano_curve_cpu.csv. Only the standard library is used.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

BENCHMARKS = Path(__file__).parent
IMAGES = BENCHMARKS.parent / "docs" / "images"

INK, GREY, LINE, BLUE, ORANGE, PALE = "#1f2933", "#52606d", "#9aa5b1", "#2563eb", "#d97706", "#eff4ff"
FONT = "font-family='system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif'"
#: Standard normal quantile of a two-sided 95% interval.
QUANTILE_95 = 1.959964


def svg(width: int, height: int, title: str, *parts: str) -> str:
    """A figure on a white card, so that it is readable on dark pages too."""
    arrow = (
        "<defs><marker id='tip' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='7' markerHeight='7' "
        f"orient='auto-start-reverse'><path d='M0 0 L10 5 L0 10 z' fill='{GREY}'/></marker></defs>"
    )
    card = f"<rect x='0.5' y='0.5' width='{width - 1}' height='{height - 1}' rx='10' fill='white' stroke='#e4e7eb'/>"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' role='img' {FONT}>"
    return "".join([head, f"<title>{title}</title>", arrow, card, *parts, "</svg>\n"])


def text(
    x: float, y: float, words: str, size: int = 16, color: str = INK, anchor: str = "middle", more: str = ""
) -> str:
    return f"<text x='{x:g}' y='{y:g}' font-size='{size}' fill='{color}' text-anchor='{anchor}' {more}>{words}</text>"


def box(x: float, y: float, width: float, height: float, title: str, *lines: str, fill: str = PALE) -> str:
    """A box with a bold title and smaller lines below it."""
    top = y + height / 2 - 10 * len(lines) + 6
    parts = [f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='8' fill='{fill}' stroke='{LINE}'/>"]
    parts.append(text(x + width / 2, top, title, 18, more="font-weight='600'"))
    parts += [text(x + width / 2, top + 21 * (i + 1), line, 14, GREY) for i, line in enumerate(lines)]
    return "".join(parts)


def arrow(x1: float, y1: float, x2: float, y2: float, both: bool = False) -> str:
    start = "marker-start='url(#tip)' " if both else ""
    return f"<path d='M{x1:g} {y1:g} L{x2:g} {y2:g}' stroke='{GREY}' stroke-width='2' {start}marker-end='url(#tip)'/>"


def loop() -> str:
    left, middle, right, upper, lower, width, height = 20, 240, 460, 20, 160, 180, 96
    return svg(
        660,
        276,
        "The training loop",
        box(left, upper, width, height, "1. draw tasks", "PyTorch modules", "tasks"),
        box(middle, upper, width, height, "2. sample", "8 answers to each", "rollout"),
        box(right, upper, width, height, "3. judge", "correct? how fast?", "judge", fill="#fff7e6"),
        box(right, lower, width, height, "4. reward", "format, correct, speed", "rewards"),
        box(middle, lower, width, height, "5. compare", "within the group", "ops.group_advantages"),
        box(left, lower, width, height, "6. update", "fused loss and gradient", "ops.linear_grpo_loss"),
        arrow(left + width + 3, upper + height / 2, middle - 3, upper + height / 2),
        arrow(middle + width + 3, upper + height / 2, right - 3, upper + height / 2),
        arrow(right + width / 2, upper + height + 3, right + width / 2, lower - 3),
        arrow(right - 3, lower + height / 2, middle + width + 3, lower + height / 2),
        arrow(middle - 3, lower + height / 2, left + width + 3, lower + height / 2),
        arrow(left + width / 2, lower - 3, left + width / 2, upper + height + 3),
    )


def judge() -> str:
    return svg(
        660,
        300,
        "The three processes of the judge",
        box(200, 18, 260, 66, "Supervisor", "starts, limits, kills; verdicts"),
        box(20, 126, 250, 90, "Examiner", "reference, seeds, oracle, clock", "never runs a candidate"),
        box(390, 126, 250, 90, "Runner", "one candidate, in a sandbox", "no reference, no seed", fill="#fff7e6"),
        box(140, 244, 380, 40, "shared memory: inputs, outputs", fill="#f5f7fa"),
        arrow(270, 87, 190, 123, both=True),
        arrow(390, 87, 470, 123, both=True),
        arrow(273, 171, 387, 171, both=True),
        text(330, 160, "integers only", 14, GREY),
        arrow(170, 219, 210, 241, both=True),
        arrow(490, 219, 450, 241, both=True),
    )


def wilson(correct: int, tasks: int) -> tuple[float, float]:
    """The 95% Wilson interval of a share.

    >>> [round(bound, 3) for bound in wilson(73, 128)]
    [0.484, 0.653]
    """
    share, square = correct / tasks, QUANTILE_95**2 / tasks
    middle = (share + square / 2) / (1 + square)
    half = QUANTILE_95 * math.sqrt(share * (1 - share) / tasks + square / (4 * tasks)) / (1 + square)
    return middle - half, middle + half


def learning_curve() -> str:
    """Held-out and training rates of one run by step."""
    with (BENCHMARKS / "results" / "nano_curve_cpu.csv").open(newline="") as lines:
        steps = list(csv.DictReader(lines))
    left, right, top, bottom, last = 64, 640, 46, 300, int(steps[-1]["step"])

    def x(step: float) -> float:
        return round(left + (right - left) * step / last, 1)

    def y(share: float) -> float:
        return round(bottom - (bottom - top) * (share - 0.3) / 0.7, 1)

    held_out = [(int(row["step"]), int(row["heldout_correct"]), int(row["heldout_tasks"])) for row in steps
                if row["heldout_correct"]]  # fmt: skip
    training = [(int(row["step"]), float(row["training_correct"])) for row in steps if row["training_correct"]]
    shares = [(step, correct / tasks) for step, correct, tasks in held_out]
    bounds = [(step, *wilson(correct, tasks)) for step, correct, tasks in held_out]
    band = [f"{x(step)} {y(high)}" for step, _, high in bounds]
    band += [f"{x(step)} {y(low)}" for step, low, _ in reversed(bounds)]
    parts = [text(20, 28, "make train: held-out tasks solved, kernel-coder-nano on two CPU cores", 16, anchor="start")]
    for share in (0.4, 0.6, 0.8, 1.0):
        parts.append(f"<path d='M{left} {y(share)} H{right}' stroke='#e4e7eb'/>")
        parts.append(text(left - 8, y(share) + 5, f"{share:.0%}", 14, GREY, "end"))
    parts += [text(x(step), bottom + 22, str(step), 14, GREY) for step in range(0, last + 1, 4)]
    parts.append(text((left + right) / 2, bottom + 44, "step (48 answers each)", 14, GREY))
    parts.append(f"<path d='M{' L'.join(band)} Z' fill='{BLUE}' opacity='0.13'/>")
    parts += [
        f"<circle cx='{x(step)}' cy='{y(share)}' r='3.5' fill='{ORANGE}' opacity='0.7'/>" for step, share in training
    ]
    curve = " L".join(f"{x(step)} {y(share)}" for step, share in shares)
    parts.append(f"<path d='M{curve}' fill='none' stroke='{BLUE}' stroke-width='3'/>")
    parts += [f"<circle cx='{x(step)}' cy='{y(share)}' r='4.5' fill='{BLUE}'/>" for step, share in shares]
    for (step, share), anchor, shift, drop in ((shares[0], "start", 8, 24), (shares[-1], "end", -2, -12)):
        parts.append(text(x(step) + shift, y(share) + drop, f"{share:.1%}", 16, BLUE, anchor, "font-weight='600'"))
    parts.append(f"<circle cx='400' cy='{bottom - 32}' r='4.5' fill='{BLUE}'/>")
    parts.append(text(412, bottom - 27, f"{held_out[0][2]} held-out tasks, 95% interval", 14, GREY, "start"))
    parts.append(f"<circle cx='400' cy='{bottom - 12}' r='3.5' fill='{ORANGE}' opacity='0.7'/>")
    parts.append(text(412, bottom - 7, "answers in training", 14, GREY, "start"))
    return svg(660, 356, "Held-out tasks solved by step", *parts)


FIGURES = {"loop.svg": loop, "judge.svg": judge, "learning_curve.svg": learning_curve}


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for name, draw in FIGURES.items():
        (IMAGES / name).write_text(draw())
