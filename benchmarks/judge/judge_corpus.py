"""Judges the whole corpus of the judge's tests, with a row for every candidate; continues a run of the same commit.

    python benchmarks/judge/judge_corpus.py --device cuda                  # results/judge_corpus_cuda.csv
    python benchmarks/judge/judge_corpus.py --device cuda --seconds 540    # as many candidates as fit into this time
    python benchmarks/judge/judge_corpus.py --shard 0/3 --out PATH         # a third, for one of several GPUs
    python benchmarks/judge/judge_corpus.py --beside 3                     # with three workers for compiled candidates

The limits are those of tests/judge/test_corpus.py. `good` is true if a hostile candidate failed to cheat, or an honest
one is correct. Failures of the harness are counted, and the next run judges these candidates again.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from kernel_coder.judge import Judge, Outcome, Verdict
from kernel_coder.judge.supervisor.batching import askers, parallel

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "results"
sys.path.insert(0, str(HERE.parent / "tests" / "judge"))
os.environ["KC_CORPUS"] = "all"

import corpus  # noqa: E402 (needs the path and the variable above)
from test_corpus import accepted, chosen, limits, pairs  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="start no candidate after this many seconds"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="only candidates with this text in their names")
    parser.add_argument("--shard", default="0/1", metavar="I/N", help="every Nth candidate, from the Ith on")
    parser.add_argument(
        "--beside",
        type=int,
        default=0,
        metavar="N",
        help="number of workers for compiled candidates; 0: judge these last",
    )
    parser.add_argument("--out", type=Path, help="default: results/judge_corpus_DEVICE.csv")
    arguments = parser.parse_args()
    device = arguments.device
    if arguments.beside < 0:
        parser.error(f"--beside must be 0 or more; got {arguments.beside}")
    first, _, shards = arguments.shard.partition("/")
    if not (first.isdecimal() and shards.isdecimal() and int(first) < int(shards)):
        parser.error(f"--shard must be I/N with 0 <= I < N; got {arguments.shard}")
    facts = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "cores": str(len(os.sched_getaffinity(0))),
        "torch": torch.__version__,
        "commit": os.environ.get("KC_COMMIT") or _commit(),
    }
    command = f"python benchmarks/judge/judge_corpus.py --device {device}"
    if arguments.beside:
        command += f" --beside {arguments.beside}"
    if arguments.only:
        command += f" --only {arguments.only}"
    if shards != "1":
        command += f" --shard {arguments.shard}"
    path = arguments.out or RESULTS / f"judge_corpus_{device}.csv"
    rows: list[dict[str, Any]] = []
    if path.exists():
        with path.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if all(row[name] == value for name, value in facts.items())]
    known = {row["candidate"] for row in rows}
    candidates = chosen(corpus.hostile(), device) + chosen(corpus.honest(), device)
    candidates = [one for one in candidates if arguments.only in one.name]
    if not candidates:
        parser.error(f"--only must be a part of a candidate's name; got {arguments.only!r}")
    random.Random(0).shuffle(candidates)
    candidates = candidates[int(first) :: int(shards)]
    left = [one for one in candidates if one.name not in known]
    until = time.monotonic() + arguments.seconds
    failures: list[str] = []
    writing = threading.Lock()

    def take(one: corpus.Candidate, verdict: Verdict) -> None:
        if verdict.outcome is Outcome.HARNESS_FAILED:
            failures.append(f"{one.name}: {verdict.reason}")
            return
        good = not accepted(one, verdict) if one.is_hostile else verdict.correct
        rows.append(
            {
                "candidate": one.name,
                "kind": "hostile" if one.is_hostile else "honest",
                "backend": one.backend,
                "outcome": verdict.outcome.value,
                "good": good,
                "speedup_low": verdict.speedup_low,
                "seconds": round(verdict.stage_s.get("all", 0.0), 2),
                "waited": round(verdict.stage_s.get("wait", 0.0), 2),
                "stages": " ".join(f"{stage} {seconds:.1f}" for stage, seconds in verdict.stage_s.items()),
                "command": command,
                **facts,
            }
        )
        if not good:
            print(f"{one.name}: {verdict.outcome.value}: {verdict.reason}", flush=True)
        write(path, rows)

    def judge_all(is_built: bool, workers: int | None) -> None:
        for settings in dict.fromkeys(one.settings for one in left if bool(one.slow) == is_built):
            judge_some(is_built, workers, settings)

    def judge_some(is_built: bool, workers: int | None, settings: tuple[tuple[str, Any], ...]) -> None:
        some = [one for one in left if bool(one.slow) == is_built and one.settings == settings]
        config = limits(device, is_built).model_copy(update={"workers": workers, **dict(settings)})

        def judge_one(one: corpus.Candidate) -> None:
            if time.monotonic() < until:
                verdict = judge.evaluate(*next(iter(pairs([one]))))
                with writing:
                    take(one, verdict)

        with Judge(device, config=config) as judge, ThreadPoolExecutor(askers(device, config)) as threads:
            for _ in threads.map(judge_one, some):  # a row is written when its verdict is there, whatever the order
                pass

    if arguments.beside:
        others = max(1, parallel(device, limits(device, False)) - arguments.beside)
        with ThreadPoolExecutor() as threads:
            for done in [threads.submit(judge_all, True, arguments.beside), threads.submit(judge_all, False, others)]:
                done.result()
    else:
        for is_built in (False, True):
            judge_all(is_built, None)
    found = Counter((row["kind"], str(row["good"]) == "True") for row in rows)
    for kind in ("hostile", "honest"):
        of = sum(one.is_hostile == (kind == "hostile") for one in candidates)
        print(f"{kind}: {found[kind, True] + found[kind, False]} of {of} judged, {found[kind, False]} wrongly")
    for failure in failures:
        print(f"the harness failed: {failure}")
    return 1 if failures or any(not good for _, good in found) else 0


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes the file atomically, so that a killed run loses no rows."""
    beside = path.with_suffix(".tmp")
    with beside.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    beside.replace(path)


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
