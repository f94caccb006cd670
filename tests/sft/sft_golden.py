"""The golden curve of a tiny supervised run.

To write it again (say why in the commit): ``python tests/sft/sft_golden.py --write``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from kernel_coder.sft.__main__ import main
from sft_run import flags, records, write_pairs

GOLDEN = Path(__file__).parents[1] / "golden" / "tiny_sft_eight_steps.json"
CURVE = ("epoch", "loss", "grad_norm", "entropy", "learning_rate", "tokens_in_loss", "eval/loss")


def curve(folder: Path) -> list[dict[str, float]]:
    """Eight steps over two epochs. The last step of each epoch is smaller."""
    changes = {"run__max_steps": 8, "eval__num_tasks": 2, "run__eval_steps": 1, "optim__lr_scheduler_type": "cosine"}
    assert main(flags(write_pairs(folder / "pairs"), folder / "run", **changes)) == 0
    return [{name: record[name] for name in CURVE} for record in records(folder / "run" / "metrics.jsonl")]


if __name__ == "__main__" and "--write" in sys.argv:
    with tempfile.TemporaryDirectory() as folder:
        GOLDEN.write_text(json.dumps(curve(Path(folder)), indent=1) + "\n")
