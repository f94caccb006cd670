"""Judges pairs at their real sizes on a GPU, and writes those that are right and fast enough.

    python benchmarks/training/kernelbench/verify.py data/kernelbench-135m.parquet --out data/verified.parquet

Each distinct solution is judged once, on the largest of its modules (by the product of the constants), because a
solution never names a size; ``--every`` judges each pair. Verdicts go to ``<out>.verdicts.jsonl`` as they come, so the
same command continues after ``--seconds``. The columns `speedup` and `judged` (the pair's own verdict, or that of
another pair with the same solution) are added. Dropped pairs are counted by outcome.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernel_coder.judge import JudgeConfig
from kernel_coder.judge.supervisor.open import open_judge
from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks.task import Task


def cost(reference: str) -> float:
    """The product of the integers in the module's constants: a rough order of its size.

    >>> cost("N = 8\\nM = 4\\ndef f(): ...")
    32.0
    """
    found = re.findall(r"^\w+ = (\d+)$", reference, re.MULTILINE)
    return float(math.prod(int(each) for each in found))


def chosen(rows: list[dict[str, Any]], every: bool) -> list[dict[str, Any]]:
    """The pairs to judge: all, or the largest one of each solution."""
    if every:
        return rows
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["triton_code"]].append(row)
    return [max(group, key=lambda row: cost(row["python_code"])) for group in groups.values()]


def main() -> int:
    """Runs the command and returns its exit code: 0 done, 75 out of time."""
    import pyarrow as pa
    from pyarrow import parquet

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flag = parser.add_argument
    flag("pairs", type=Path, help="parquet file of data build --families repository")
    flag("--out", type=Path, required=True, help="parquet file to write")
    flag("--device", default="cuda:0", help="device of the judge; cpu judges the small twins in the interpreter")
    flag("--workers", type=int, default=14, help="candidates judged at once")
    flag("--seconds", type=float, default=540.0, help="stop after this many seconds; the same command continues")
    flag("--least", type=float, default=0.2, help="drop solutions whose speedup is below this")
    flag("--timed-calls", type=int, default=10, help="timed calls of each candidate")
    flag("--every", action="store_true", help="judge every pair, not one of each solution")
    options = parser.parse_args()
    began = time.monotonic()
    rows = parquet.read_table(options.pairs).to_pylist()
    log = options.out.with_suffix(".verdicts.jsonl")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    known: dict[str, dict[str, Any]] = {}
    if log.exists():
        lines = log.read_text().splitlines()
        known = {one["solution"]: one for one in map(json.loads, lines)}
    todo = [row for row in chosen(rows, options.every) if _key(row, options.every) not in known]
    print(f"{len(rows):,} pairs, {len(known):,} verdicts known, {len(todo):,} to judge", flush=True)
    is_cpu = options.device == "cpu"
    config = JudgeConfig(
        workers=options.workers,
        checks=3,
        families=("own", "normal"),
        hidden_shapes=False,
        null_candidates=False,
        profile=False,
        timing=not is_cpu,
        timed_calls=options.timed_calls,
        timing_s=1.0,
        timeout_s=60.0,
    )
    sent: list[dict[str, Any]] = []

    def pairs() -> Iterator[tuple[Task, str]]:
        for row in todo:
            if time.monotonic() - began > options.seconds:
                return
            sent.append(row)
            reference = row["small_python_code"] if is_cpu else row["python_code"]
            yield (
                Task(id=str(row["uuid"]), source="pairs", reference=reference, entry_point=row["entry_point"]),
                row["triton_code"],
            )

    with open_judge(options.device, "triton", config=config) as judge, log.open("a") as file:
        for number, verdict in enumerate(judge.evaluate_many(pairs())):
            row = sent[number]
            one = {
                "solution": _key(row, options.every),
                "uuid": row["uuid"],
                "composition": row["composition"],
                "outcome": str(verdict.outcome),
                "reason": (verdict.reason or "")[:300],
                "speedup": verdict.speedup,
                "runtime_ms": verdict.runtime_ms,
            }
            known[one["solution"]] = one
            file.write(json.dumps(one) + "\n")
            file.flush()
    seconds = time.monotonic() - began
    print(f"{len(sent):,} judged in {seconds:.0f} s: {len(sent) / max(seconds, 1e-9):.2f} a second")
    kept, outcomes = [], Counter()
    for row in rows:
        one = known.get(_key(row, options.every))
        if one is None:
            outcomes["not judged"] += 1
            continue
        is_slow = one["speedup"] is not None and one["speedup"] < options.least
        outcomes["slow" if one["outcome"] == "correct" and is_slow else one["outcome"]] += 1
        if one["outcome"] == "correct" and not is_slow:
            own = one["uuid"] == row["uuid"]
            kept.append({**row, "speedup": one["speedup"], "judged": "itself" if own else "another size"})
    for outcome, count in outcomes.most_common():
        print(f"{count:7,} {outcome}")
    parquet.write_table(pa.Table.from_pylist(kept), options.out, compression="zstd")
    print(f"{len(kept):,} pairs: {options.out}")
    return 75 if outcomes["not judged"] else 0


def _key(row: dict[str, Any], every: bool) -> str:
    return sha256_text(row["triton_code"] + (row["python_code"] if every else ""))


if __name__ == "__main__":
    sys.exit(main())
