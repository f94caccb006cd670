"""What `make train` gives: held-out correct rate before and after, for several seeds and two ablations of one budget.

    python benchmarks/training/bench_nano.py  # 3 seeds, no-sft, similarity: results/nano_cpu.csv
    python benchmarks/training/bench_nano.py --variants nano --seeds 0 --flags "--run.max_steps 4"

Each run is a process of its own, as a user starts it. `no-sft` begins from random weights, `similarity`
rewards likeness to the known solution alone (its answers are judged for the log only). Rows are appended as runs end;
the last lines are means over seeds, with the interval of Student's t over them.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from kernel_coder.models.nano import main as nano
from kernel_coder.policy.model import NANO_FOLDER

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers that all benchmarks share
from trials import RESULTS, ROOT, append, commit, over_seeds

VARIANTS = ("nano", "no-sft", "similarity")
SIMILARITY = json.dumps([{"name": "similarity"}])
RATES = [f"heldout_correct_{name}{end}" for name in ("before", "after", "gain") for end in ("", "_low", "_high")]
COLUMNS = ["variant", "seed", *RATES, "steps", "seconds_train", "device", "cores", "torch", "commit", "command"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of nano; the ablations take the first")
    parser.add_argument("--flags", default="", help="further flags of every run")
    parser.add_argument("--commit", default=os.environ.get("KC_COMMIT"), help="default: that of the checkout")
    parser.add_argument("--out", type=Path, default=RESULTS / "nano_cpu.csv")
    options = parser.parse_args()
    rows = []
    for variant in options.variants:
        for seed in options.seeds if variant == "nano" else options.seeds[:1]:
            rows.append(run(variant, seed, shlex.split(options.flags), options.commit or commit()))
            append(options.out, rows[-1])
            print(", ".join(f"{name} {_short(rows[-1][name])}" for name in COLUMNS[:13]), flush=True)
    for variant in options.variants:
        gains = [row["heldout_correct_gain"] for row in rows if row["variant"] == variant]
        print(variant, "mean gain", over_seeds(gains))


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
        **{name: found[name] for name in [*RATES, "steps", "seconds_train"]},
        "device": "cpu",
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "commit": commit,
        "command": f"python benchmarks/training/bench_nano.py --variants {variant} --seeds {seed}"
        + (f" --flags {shlex.quote(shlex.join(flags))}" if flags and variant == "nano" else ""),
    }


def _short(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
