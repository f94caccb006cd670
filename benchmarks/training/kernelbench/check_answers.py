"""Checks the answers of an evaluation on KernelBench without a GPU: in Triton's interpreter, at small sizes.

    python benchmarks/training/kernelbench/check_answers.py runs/evaluate --kernelbench DIR --out FILE.csv

Every size that a problem assigns at its top level is halved until it is at most ``--max-size``. An answer is right if
its outputs are close to the problem's, with two seeds, as for the generator's pairs. This says nothing of speed, of
offsets beyond 32 bits or of a GPU's arithmetic, so it is no verdict; it shows in minutes what a model gets wrong. A row
is an answer. The model's code runs in this user's processes, outside of the judge's sandbox.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

LIMIT_S = 60
"""Time limit for one answer, in seconds. It stops an answer that has an endless loop."""


def outcome_of(job: tuple[str, str, int]) -> tuple[str, str]:
    """Return ``correct``, ``format``, ``wrong`` or the name of an exception, and the reason."""
    import torch
    from kernel_coder.ops import parse_response
    from kernel_coder.tasks.verify import check

    text, reference, max_size = job
    torch.set_num_threads(1)
    code = parse_response(text).code
    if not code:
        return "format", "the answer holds no code block"
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(LIMIT_S)
    try:
        with tempfile.TemporaryDirectory() as folder:
            small = small_problem(reference, max_size)
            found = check(
                "Model", small, code, Path(folder), "cpu", new_name="ModelNew", with_nan=False, evaluation=False
            )
    except Exception as error:  # a model's code can raise anything
        return type(error).__name__, " ".join(str(error).split())[:200]
    finally:
        signal.alarm(0)
    return ("correct", "") if found.reason is None else ("wrong", found.reason[:200])


def small_problem(reference: str, max_size: int) -> str:
    """Return the problem with sizes of at most `max_size`, or twice or four times that if the problem needs it: an
    image must be larger than the kernel of its convolution."""
    import torch
    from kernel_coder.data.sizes import shrunk

    for size in (max_size, 2 * max_size):
        small = shrunk(reference, size)
        namespace: dict[str, Any] = {"__name__": "problem"}
        try:
            exec(compile(small, "problem.py", "exec"), namespace)
            with torch.no_grad():
                namespace["Model"](*namespace["get_init_inputs"]())(*namespace["get_inputs"]())
        except Exception:
            continue
        return small
    return shrunk(reference, 4 * max_size)


def _out_of_time(*_: Any) -> None:
    raise TimeoutError(f"it takes longer than {LIMIT_S} s")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evaluation", type=Path, help="output folder of `kernel-coder evaluate`")
    parser.add_argument("--kernelbench", type=Path, required=True, help="copy of KernelBench's tasks")
    parser.add_argument("--max-size", type=int, default=24)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    options = parser.parse_args()
    os.environ["TRITON_INTERPRET"] = "1"
    samples = options.evaluation / "samples.jsonl"
    if not samples.is_file() or not (answers := [json.loads(line) for line in samples.read_text().splitlines()]):
        parser.error(f"{samples} has no answers: name the output folder of `kernel-coder evaluate`")
    problems = {f"{path.parent.name}/{path.stem}": path.read_text() for path in options.kernelbench.glob("*/*.py")}
    if missing := sorted({one["task"] for one in answers} - set(problems)):
        parser.error(f"--kernelbench {options.kernelbench} has no problem {missing[0]}")
    jobs = [(one["text"], problems[one["task"]], options.max_size) for one in answers]
    rows = []
    with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=10) as pool:
        for one, (outcome, reason) in zip(answers, pool.imap(outcome_of, jobs), strict=True):
            rows.append({"task": one["task"], "sample": one["sample"], "outcome": outcome, "reason": reason})
            print(f"{one['task']}: {outcome} {reason}", flush=True)
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    counts = Counter(row["outcome"] for row in rows)
    print(f"{counts['correct']} of {len(rows)} correct; {counts.most_common()}")


if __name__ == "__main__":
    sys.exit(main())
