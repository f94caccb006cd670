"""Runs every pair at its small sizes on a GPU, in processes that keep going, and writes the pairs that are right.

    python benchmarks/training/kernelbench/check_small.py data/kernelbench-135m.parquet --out data/checked.parquet

The build verifies each distinct solution once in the interpreter; this also catches a module that is spelt wrongly. The
code must be trusted, as that of the generator is: it runs without a sandbox. Triton keeps compiled kernels on disk, and
most pairs share theirs, so a pair takes milliseconds. Tolerance and check are those of ``kernel_coder.tasks.verify``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any


def check_some(part: tuple[list[dict[str, Any]], str]) -> list[tuple[int, str | None]]:
    """For each row its number and why it is wrong; None: it is right."""
    import torch
    from kernel_coder.tasks.verify import check

    rows, device = part
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False
    found: list[tuple[int, str | None]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, row in enumerate(rows):
            place = Path(folder) / str(number)
            place.mkdir()
            try:
                result = check(
                    row["entry_point"],
                    row["small_python_code"],
                    row["triton_code"],
                    place,
                    device,
                    new_name="ModelNew",
                    with_nan=False,
                    evaluation=False,
                )
                found.append((row["number"], result.reason))
            except Exception as error:  # a pair can raise anything
                text = str(error).strip().splitlines() or [""]
                found.append((row["number"], f"{type(error).__name__}: {text[-1][:200]}"))
    return found


def main() -> int:
    """Runs the command and returns its exit code."""
    import pyarrow as pa
    from pyarrow import parquet

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="parquet file to write")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="cpu needs TRITON_INTERPRET=1")
    parser.add_argument("--processes", type=int, default=12)
    options = parser.parse_args()
    began = time.monotonic()
    rows = parquet.read_table(options.pairs).to_pylist()
    numbered = [{**row, "number": number} for number, row in enumerate(rows)]
    parts = [(numbered[at : at + 50], options.device) for at in range(0, len(numbered), 50)]
    reasons: dict[int, str | None] = {}
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for found in pool.imap_unordered(check_some, parts):
            reasons.update(found)
            for number, reason in found:
                if reason is not None:
                    print(f"{rows[number]['composition']}: {reason}", flush=True)
    kept = [row for number, row in enumerate(rows) if reasons[number] is None]
    parquet.write_table(pa.Table.from_pylist(kept), options.out, compression="zstd")
    seconds = time.monotonic() - began
    print(f"{len(kept):,} of {len(rows):,} pairs are right; {seconds:.0f} s, {len(rows) / seconds:.1f} a second")
    worst = Counter(" + ".join(rows[number]["composition"]) for number, reason in reasons.items() if reason)
    print(worst.most_common(10))
    return 0


if __name__ == "__main__":
    sys.exit(main())
