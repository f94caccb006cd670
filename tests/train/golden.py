"""The ten-step curve of a tiny run. To rewrite it (say why in the commit): ``python tests/train/golden.py --write``."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from kernel_coder.train.__main__ import main
from tiny_run import flags, records, write_tasks

GOLDEN = Path(__file__).parents[1] / "golden" / "tiny_ten_steps.json"
CURVE = ("loss", "grad_norm", "entropy", "kl", "reward", "completions/mean_length", "clip_ratio/region_mean")


def curve(folder: Path) -> list[dict[str, float]]:
    """Ten steps with KL, two minibatches and two iterations, so that every part of the loss contributes."""
    run_dir = folder / "run"
    changes = {
        "run__max_steps": 10,
        "loss__beta": 0.05,
        "loss__loss_type": "grpo",
        "optim__per_device_train_batch_size": 4,
        "optim__steps_per_generation": 2,
        "optim__num_iterations": 2,
        "optim__learning_rate": 5e-4,
        "rewards": json.dumps([{"name": "tiny_run:letters"}]),
    }
    assert main(flags(write_tasks(folder / "tasks"), run_dir, **changes)) == 0
    return [{name: record[name] for name in CURVE} for record in records(run_dir / "metrics.jsonl")]


if __name__ == "__main__" and "--write" in sys.argv:
    with tempfile.TemporaryDirectory() as folder:
        GOLDEN.write_text(json.dumps(curve(Path(folder)), indent=1) + "\n")
