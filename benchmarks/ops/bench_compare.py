"""Measures ``compare`` beside the same comparison in plain torch, on a GPU: time, and memory without the inputs.

    python benchmarks/ops/bench_compare.py                    # rows into results/compare_cuda.csv
    python benchmarks/ops/bench_compare.py --shapes sweep     # more sizes and dtypes

"copy" copies 256 Mi float32 from one tensor to another. `of_bound` is the time that reading output and expected values
once would take at the copy's rate, divided by the measured time. torch.allclose only says yes or no, and waits for the
device. "torch eager" finds all that ``compare`` finds except the first wrong element. In a strided case the output is
transposed and the expected values are contiguous. In a wrong case every element misses the tolerance.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import kernel_coder
import torch
from kernel_coder import ops
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers that all benchmarks share
from side_by_side import Contender, compare, measure, median_of, parser_for

RTOL = ATOL = 1e-2
COPIED = 1 << 28
BFLOAT16, FLOAT16, FLOAT32, FLOAT64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
Case = tuple[int, torch.dtype, torch.dtype, str]
# elements, output, expected, case
SMALL = [(1 << 12, FLOAT32, FLOAT32, "matching"), (1 << 12, BFLOAT16, FLOAT64, "strided")]
REFERENCE = [
    (1 << 28, FLOAT32, FLOAT32, "matching"),
    (1 << 28, BFLOAT16, BFLOAT16, "matching"),
    (1 << 28, FLOAT32, FLOAT64, "matching"),
]
SWEEP = [
    *REFERENCE,
    (1 << 28, BFLOAT16, FLOAT64, "matching"),
    (1 << 28, FLOAT16, FLOAT32, "matching"),
    (1 << 28, FLOAT32, FLOAT32, "wrong"),
    (1 << 28, FLOAT32, FLOAT32, "strided"),
    (1 << 24, FLOAT32, FLOAT32, "matching"),
    (1 << 16, FLOAT32, FLOAT32, "matching"),
]


def tensors(elements: int, output: torch.dtype, expected: torch.dtype, case: str, device: str) -> tuple[Tensor, Tensor]:
    rows = 1 << elements.bit_length() // 2
    y = torch.randn(rows, elements // rows, device=device).to(output)
    x = y
    if case == "wrong":
        x = x + 1
    if case == "strided":
        x = x.t().contiguous().t()
    return x, (y.float() * 1.001).to(expected)


def eager(x: Tensor, y: Tensor) -> Tensor:
    x, y = x.double(), y.double()
    error = (x - y).abs()
    misses = ~(error <= ATOL + RTOL * y.abs())
    numbers = [error.max(), (error / y.abs().clamp_min(1e-38)).max(), misses.sum(), x.isnan().sum(), y.isnan().sum()]
    return torch.stack([*numbers, x.isinf().sum(), y.isinf().sum(), error.norm(), y.norm()])


def rows_of(case: Case, arguments: Namespace) -> list[dict[str, Any]]:
    device = arguments.device
    x, y = tensors(*case, device=device)
    copied = COPIED if device == "cuda" else 1 << 20
    a, b = torch.empty(2, copied, device=device)
    contenders = [
        Contender("copy", torch.__version__, lambda: b.copy_(a), kind="floor"),
        Contender(
            "kernel_coder", kernel_coder.__version__, partial(ops.compare, x, y, rtol=RTOL, atol=ATOL), kind="ours"
        ),
        Contender("torch eager", torch.__version__, lambda: eager(x, y)),
    ]
    if x.dtype == y.dtype:
        contenders.append(
            Contender("torch.allclose", torch.__version__, lambda: torch.allclose(x, y, rtol=RTOL, atol=ATOL))
        )
    table = compare(contenders, arguments, point_of(case))
    bound_ms = median_of(table, "copy") / (8 * copied) * x.numel() * (x.element_size() + y.element_size())
    for row in table:
        if "median_ms" in row and row["implementation"] != "copy":
            row["of_bound"] = f"{bound_ms / float(row['median_ms']):.3f}"
    return table


def point_of(case: Case) -> dict[str, Any]:
    output, expected = (str(dtype).removeprefix("torch.") for dtype in case[1:3])
    return {"work": "compare", "elements": case[0], "output": output, "expected": expected, "case": case[3]}


def main() -> None:
    arguments = parser_for(__doc__).parse_args()
    arguments.shapes = arguments.shapes or ("reference" if arguments.device == "cuda" else "small")
    cases = {"small": SMALL, "reference": REFERENCE, "sweep": SWEEP}[arguments.shapes]
    by_point = {tuple(point_of(case).values()): case for case in cases}
    points = [point_of(case) for case in cases]
    measure("compare", arguments, points, lambda point: rows_of(by_point[tuple(point.values())], arguments))


if __name__ == "__main__":
    main()
