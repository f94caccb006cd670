"""What `make train` gives: held-out correct rate before and after, for several seeds and two ablations of one budget.

    python benchmarks/bench_nano.py                              # 3 seeds, no-sft, similarity: results/nano_cpu.csv
    python benchmarks/bench_nano.py --variants nano --seeds 0 --flags "--run.max_steps 4"

Each run is a process of its own, as a user starts it. `no-sft` begins from random weights, `similarity`
rewards likeness to the known solution alone (its answers are judged for the log only). Rows are appended as runs end;
the last lines are means over seeds, with the interval of Student's t over them.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import kernel_coder
import torch
from kernel_coder.models.nano import main as nano
from kernel_coder.train.model import NANO_FOLDER

ROOT = Path(__file__).parent.parent
VARIANTS = ("nano", "no-sft", "similarity")
SIMILARITY = json.dumps([{"name": "similarity"}])
RATES = [f"heldout_correct_{name}{end}" for name in ("before", "after", "gain") for end in ("", "_low", "_high")]
COLUMNS = ["variant", "seed", *RATES, "steps", "seconds_train", "device", "cores", "torch", "commit", "command"]
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""97.5% quantiles of Student's t for so many runs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of nano; the ablations take the first")
    parser.add_argument("--flags", default="", help="further flags of every run")
    parser.add_argument("--commit", default=os.environ.get("KC_COMMIT"), help="default: that of the checkout")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "nano_cpu.csv")
    options = parser.parse_args()
    rows = []
    for variant in options.variants:
        for seed in options.seeds if variant == "nano" else options.seeds[:1]:
            rows.append(run(variant, seed, shlex.split(options.flags), options.commit or commit()))
            append(options.out, rows[-1])
            print(", ".join(f"{name} {rows[-1][name]}" for name in COLUMNS[:13]), flush=True)
    for variant in options.variants:
        gains = [row["heldout_correct_gain"] for row in rows if row["variant"] == variant]
        print(variant, "mean gain", summary(gains))


def run(variant: str, seed: int, flags: list[str], commit: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if variant == "no-sft":
            nano(["init", "--tokenizer", str(NANO_FOLDER), "--output", str(folder / "random"), "--seed", str(seed)])
            flags = ["--model.name_or_path", str(folder / "random"), *flags]
        if variant == "similarity":
            flags = ["--rewards", SIMILARITY, *flags]
        config, output = ROOT / "configs" / "nano.yaml", folder / "run"
        command = [sys.executable, "-m", "kernel_coder.train", "--config", str(config)]
        command += ["--run.output_dir", str(output), "--run.seed", str(seed), *flags]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
        found = json.loads((output / "summary.json").read_text())
    return {
        "variant": variant,
        "seed": seed,
        **{name: _short(found[name]) for name in [*RATES, "steps", "seconds_train"]},
        "device": "cpu",
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "commit": commit,
        "command": f"python benchmarks/bench_nano.py --variants {variant} --seeds {seed}"
        + (f" --flags {shlex.quote(shlex.join(flags))}" if flags and variant == "nano" else ""),
    }


def summary(gains: list[float]) -> str:
    """Mean, and the 95% interval over runs where there are several."""
    mean = statistics.fmean(gains)
    if len(gains) not in STUDENT:
        return f"{mean:+.3f} ({len(gains)} run)"
    half = STUDENT[len(gains)] * statistics.stdev(gains) / len(gains) ** 0.5
    return f"{mean:+.3f} (95% interval {mean - half:+.3f} to {mean + half:+.3f}, {len(gains)} runs)"


def append(path: Path, row: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerow(row)


def commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or f"kernel_coder {kernel_coder.__version__}"


def _short(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
