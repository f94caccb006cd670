"""Measures the ops beside other libraries at the vocabularies of common models, with one command and one table.

    python benchmarks/ops/bench_ops.py                          # rows into results/ops_cuda.csv
    python benchmarks/ops/bench_ops.py --rivals none            # ours and the bounds alone
    python benchmarks/ops/bench_ops.py --rivals Liger,TRL       # these rivals only

Vocabularies: Llama 2 (32,000), SmolLM2 (49,152), Llama 3 (128,256), Qwen (151,936), Gemma (262,144), with 8,192 tokens.
This script calls bench_token_logprobs.py, bench_grpo_loss.py and bench_linear_grpo_loss.py. These explain their rows
and how contenders are timed. `of_bound` is the share of a copy's bandwidth, `of_floor` the time divided by that
of three matrix products. A rival that is not installed has a row with the failure.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers that all benchmarks share
import bench_grpo_loss
import bench_linear_grpo_loss
import bench_token_logprobs
from side_by_side import Row, measure, parser_for

VOCABS = (32000, 49152, 128256, 151936, 262144)
HEADS = ((49152, 576), (151936, 2048))  # vocabulary and hidden size: SmolLM2-135M, Qwen2.5-3B
BENCHES = {"logprobs": bench_token_logprobs, "grpo": bench_grpo_loss, "linear": bench_linear_grpo_loss}


def points(shapes: str) -> Iterator[dict[str, Any]]:
    if shapes == "small":
        for name, bench in BENCHES.items():
            yield {"bench": name, **bench.SMALL}
        return
    for vocab in VOCABS:
        yield {"bench": "logprobs", **bench_token_logprobs.SIDE_BY_SIDE, "vocab": vocab}
        yield {"bench": "grpo", **bench_grpo_loss.REFERENCE, "vocab": vocab}
    for vocab, hidden in HEADS:
        yield {"bench": "linear", **bench_linear_grpo_loss.REFERENCE, "vocab": vocab, "hidden": hidden}


def rows_of(point: Mapping[str, Any], arguments: Namespace) -> list[Row]:
    rest = {name: value for name, value in point.items() if name != "bench"}
    rows = BENCHES[point["bench"]].side_by_side(rest, arguments)
    for row in rows:
        if "median_ms" in row:
            share = row.get("of_bound") or row.get("of_floor") or ""
            name = f"{row['implementation']} {row.get('logits_dtype', '')}".strip()
            print(
                f"| {row['work'][:44]:44} | {rest['vocab']:7} | {name:52} | {row['median_ms']:>7} ms | {share:>6} |",
                flush=True,
            )
    return rows


def main() -> None:
    arguments = parser_for(__doc__, runs=15).parse_args()
    arguments.shapes = arguments.shapes or ("sweep" if arguments.device == "cuda" else "small")
    # "sweep" leaves out the tables of workspaces and the compiled rivals, which are measured at one shape only.
    if arguments.out is None and arguments.shapes != "small":
        arguments.out = Path(__file__).parents[1] / "results" / f"ops_{arguments.device}.csv"
    measure("ops", arguments, points(arguments.shapes), lambda point: rows_of(point, arguments))


if __name__ == "__main__":
    main()
