"""Copies the pairs with small inputs from one table to another.

    python benchmarks/training/kernelbench/small_inputs.py data/kernelbench-135m-rl.parquet --out FILE.parquet

Reinforcement learning needs quick verdicts: a step judges a hundred answers and waits for the slowest. A task with
inputs of a gigabyte takes about ten seconds, and a GPU has memory for only a few such tasks at a time. The inputs are
drawn on torch's device ``meta``, which allocates nothing.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from pyarrow import parquet
from torch.utils._pytree import tree_leaves


def elements_of(code: str) -> float:
    """Return the number of elements of a module's inputs; infinity if they cannot be drawn without memory."""
    namespace: dict[str, object] = {"__name__": "task"}
    try:
        exec(compile(code, "task.py", "exec"), namespace)
        with torch.device("meta"):
            inputs = namespace["get_inputs"]()  # type: ignore[operator]
    except Exception:
        return math.inf
    return sum(one.numel() for one in tree_leaves(inputs) if isinstance(one, torch.Tensor))


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs")
    parser.add_argument("--elements", type=int, default=1 << 25, help="limit of the inputs' elements together")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    if not Path(options.pairs).is_file():
        parser.error(f"pairs must be a file; there is no {options.pairs}")
    table = parquet.read_table(options.pairs)
    if "python_code" not in table.column_names:
        parser.error(f"{options.pairs} has no column python_code; its columns are {', '.join(table.column_names)}")
    codes = table["python_code"].to_pylist()
    kept = [at for at, code in enumerate(codes) if elements_of(code) <= options.elements]
    parquet.write_table(table.take(kept), options.out, compression="zstd")
    print(f"{len(kept)} of {len(codes)} pairs have inputs of at most {options.elements} elements")


if __name__ == "__main__":
    main()
