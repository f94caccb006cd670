"""Compares sequence_similarity with difflib and cydifflib on one core: Python files, and difflib's worst case.

    python benchmarks/ops/bench_sequence_similarity.py        # benchmarks/results/sequence_similarity.csv

The texts are from the middle of the first files of CPython's standard library, by name, that have 64,000 characters.
"edited" compares a text with a copy in which an eighth of the lines were changed, "unrelated" with the next file. A
time is the median over pairs of the median CPU time of the repetitions; p20 and p80 are over pairs. The speedup is the
median of the pairs' speedups. The results are compared, too: a rival that returns another ratio ends the run.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import importlib.metadata
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cydifflib
import kernel_coder
from kernel_coder.ops import sequence_similarity

SIZES = [250, 1000, 4000, 16000, 64000]
Ratio = Callable[[str, str], float]
IMPLEMENTATIONS: dict[str, tuple[str, Ratio]] = {
    "kernel_coder": (kernel_coder.__version__, sequence_similarity),
    "cydifflib": (
        importlib.metadata.version("cydifflib"),
        lambda a, b: cydifflib.SequenceMatcher(None, a, b, False).ratio(),
    ),
    "difflib": (platform.python_version(), lambda a, b: difflib.SequenceMatcher(None, a, b, False).ratio()),
}


def stdlib_files(count: int, size: int) -> list[str]:
    folder = Path(difflib.__file__).parent
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))]
    texts = [text for text in texts if len(text) >= size][:count]
    if len(texts) < count:
        raise SystemExit(f"only {len(texts)} files of {size} characters in {folder}")
    return texts


def middle(text: str, size: int) -> str:
    begin = (len(text) - size) // 2
    return text[begin : begin + size]


def edited(text: str, seed: int) -> str:
    rng = random.Random(seed)
    lines = text.split("\n")
    for _ in range(max(1, len(lines) // 8)):
        k = rng.randrange(len(lines))
        change = rng.choice(["delete", "repeat another", "rename"])
        if change == "delete" and len(lines) > 1:
            del lines[k]
        elif change == "repeat another":
            lines.insert(k, rng.choice(lines))
        else:
            lines[k] = lines[k].replace("self", "this").replace("e", "ee", 1)
    return "\n".join(lines)[: len(text)]


def worst_cases(size: int) -> dict[str, tuple[str, str]]:
    rng = random.Random(1)
    half = size // 2
    return {
        "one character, equal": ("a" * size, "a" * size),
        "one character, last differs": ("a" * size, "a" * (size - 1) + "b"),
        "one character, middle differs": ("a" * size, "a" * half + "b" + "a" * (size - half - 1)),
        "no common character": ("".join(rng.choices("abcd", k=size)), "".join(rng.choices("efgh", k=size))),
        "every other character": ("a?" * half, "a!" * half),
        "periodic": (("ab" * size)[:size], ("abb" * size)[:size]),
        "two letters at random": ("".join(rng.choices("ab", k=size)), "".join(rng.choices("ab", k=size))),
        "two letters, one of them rare": tuple("".join(rng.choices("ab", (99, 1), k=size)) for _ in range(2)),  # type: ignore[dict-item]
    }


def seconds_of(ratio: Ratio, a: str, b: str) -> tuple[float, float]:
    """The median CPU time of a call, which other processes on the machine do not lengthen, and its result.

    Short calls are timed some thousand at once: the clock takes a fraction of a microsecond. Repeated for a fifth of a
    second.
    """
    start = time.process_time()
    result = ratio(a, b)
    first = time.process_time() - start
    if first > 0.1:
        return first, result
    calls = max(1, round(2e-3 / max(first, 1e-6)))
    times: list[float] = []
    while len(times) < 5 or sum(times) * calls < 0.2:
        start = time.process_time()
        for _ in range(calls):
            ratio(a, b)
        times.append((time.process_time() - start) / calls)
    return statistics.median(times), result


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))]


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


class Bench:
    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.rows: list[dict[str, object]] = []
        commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
        self.about = {
            "machine": f"{cpu_model()}, one core",
            "python": platform.python_version(),
            "commit": commit.stdout.strip() or "unknown",
            "command": " ".join(["python", *sys.argv]),
        }

    def measure(self, case: str, size: int, pairs: list[tuple[str, str]], skipped: dict[str, str]) -> dict[str, float]:
        """One row for each implementation; the median seconds of those that were not skipped."""
        ours: list[float] = []
        results: list[float] = []
        medians = {}
        for name, (version, ratio) in IMPLEMENTATIONS.items():
            row: dict[str, object] = {"case": case, "characters": size, "implementation": name, "version": version}
            if name in skipped:
                row["note"] = skipped[name]
            else:
                timed = [seconds_of(ratio, a, b) for a, b in pairs]
                times = [seconds for seconds, _ in timed]
                if not ours:
                    ours, results = times, [result for _, result in timed]
                if [result for _, result in timed] != results:
                    raise SystemExit(f"{name} gives other ratios than kernel_coder: {case}, {size} characters")
                medians[name] = statistics.median(times)
                row |= {
                    "pairs": len(pairs),
                    "median_ms": f"{1e3 * medians[name]:.4g}",
                    "p20_ms": f"{1e3 * quantile(times, 0.2):.4g}",
                    "p80_ms": f"{1e3 * quantile(times, 0.8):.4g}",
                    "kernel_coder_is_faster_by": f"{statistics.median(map(lambda x, y: x / y, times, ours)):.4g}",
                }
            self.rows.append(row | self.about)
            print(*(f"{key}={value}" for key, value in row.items()), flush=True)
        return medians

    def files(self, count: int) -> None:
        texts = stdlib_files(count, max(SIZES))
        for case in ("edited", "unrelated"):
            skipped: dict[str, str] = {}
            for size in SIZES:
                cut = [middle(text, size) for text in texts]
                if case == "edited":
                    pairs = [(text, edited(text, seed)) for seed, text in enumerate(cut)]
                else:
                    pairs = list(zip(cut, cut[1:] + cut[:1], strict=True))
                for name, seconds in self.measure(f"Python files, {case}", size, pairs, skipped).items():
                    next_size = size * 4
                    expected = seconds * 16 * len(pairs)  # their time grows at least with the square of the size
                    if expected > self.limit:
                        skipped[name] = (
                            f"skipped above {size} characters: {next_size} would take {expected:.0f} s or more"
                        )

    def worst(self) -> None:
        skipped = dict.fromkeys(("cydifflib", "difflib"), "skipped: minutes to days at this size")
        for size in (1000, 64000):
            for case, pair in worst_cases(size).items():
                self.measure(case, size, [pair], skipped if size > 1000 else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--limit", type=float, default=120, help="time limit for a row of a rival, in seconds")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results/sequence_similarity.csv")
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    bench = Bench(args.limit)
    bench.files(args.files)
    bench.worst()
    fields = ["case", "characters", "implementation", "version", "pairs", "median_ms", "p20_ms", "p80_ms",
              "kernel_coder_is_faster_by", "note", *bench.about]  # fmt: skip
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(bench.rows)


if __name__ == "__main__":
    main()
