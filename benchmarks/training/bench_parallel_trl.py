"""A case of bench_parallel.py with TRL's loss and accelerate's FSDP2: the same model and batch on several GPUs.

    torchrun --nproc-per-node 2 benchmarks/training/bench_parallel_trl.py --wheels FOLDER --out two.csv
    torchrun --nproc-per-node 2 benchmarks/training/bench_parallel_trl.py --wheels FOLDER --small   # on the CPU

GRPOTrainer's own code computes the loss of each pass of `size` answers (its fused head, all layers recomputed), then
come clipping and AdamW. Weights and tokens are random. FOLDER has the wheel of trl, and of accelerate where that is
missing. The rows have the columns of bench_parallel.py.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from bench_parallel import CASES, FIELDS, make_batch, make_policy, timed, write
from bench_trl_step import Accelerator, bare, import_trl


def sharded(model: Any, cpu: bool) -> tuple[Any, Any, Any]:
    """The model and its optimiser as accelerate prepares them for FSDP2, and the accelerator."""
    import accelerate
    from accelerate.utils import FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=True,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Qwen2DecoderLayer"],
    )
    accelerator = accelerate.Accelerator(fsdp_plugin=plugin, cpu=cpu)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=not cpu)
    model, optimizer = accelerator.prepare(model, optimizer)
    return model, optimizer, accelerator


def inputs_of(batch: Any, places: range, device: torch.device, tokens: int) -> dict[str, torch.Tensor]:
    """The answers at these places as GRPOTrainer passes them to its loss."""
    turns = [batch.turns[i] for i in places]
    completions = torch.tensor([turn.completion_ids for turn in turns], device=device)
    prompts = torch.tensor([turn.prompt_ids for turn in turns], device=device)
    return {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": completions,
        "completion_mask": torch.ones_like(completions),
        "advantages": torch.tensor([float(batch.advantages[i]) for i in places], device=device),
        "num_items_in_batch": torch.tensor(float(tokens), device=device),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, help="folder with wheels of trl and accelerate")
    parser.add_argument("--case", default="3b", choices=("3b", "3b_64"), help="name in bench_parallel.py (default 3b)")
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument("--commit", default=os.environ.get("KC_COMMIT", ""))
    parser.add_argument("--out", type=Path, help="CSV file to append to")
    options = parser.parse_args()
    import_trl(options.wheels)
    from accelerate.state import AcceleratorState
    from trl import GRPOTrainer
    from trl.trainer.utils import add_fused_lm_head

    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu") if options.small else torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    case, row = CASES[options.case], dict.fromkeys(FIELDS, "")
    row |= {"case": f"{options.case}, TRL and accelerate", "model": case.model, "ranks": size, "weights": "bfloat16"}
    model = make_policy(case, device, small=options.small).model.train()
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    with patch.dict(os.environ):
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)  # otherwise the configuration makes a process group for CPUs
        trainer = bare(GRPOTrainer, model)
    AcceleratorState._reset_state(reset_partial_state=True)
    model, optimizer, accelerator = sharded(model, options.small)
    trainer.model = model
    trainer.accelerator = Accelerator()
    trainer.accelerator.num_processes = size
    batch = make_batch(case, small=options.small)
    tokens = sum(len(turn.completion_ids) for turn in batch.turns)
    own = range(case.count * rank // size, case.count * (rank + 1) // size)
    passes = [inputs_of(batch, own[i : i + case.size], device, tokens) for i in range(0, len(own), case.size)]

    def update() -> None:
        optimizer.zero_grad(set_to_none=True)
        for inputs in passes:
            accelerator.backward(trainer._compute_loss(model, inputs))
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    seconds = list(timed(update, device, options.updates))
    peak = 0 if options.small else torch.cuda.max_memory_allocated(device)
    found: list[Any] = [None] * size
    torch.distributed.all_gather_object(found, (statistics.median(seconds), peak))
    median, most = (max(values) for values in zip(*found, strict=True))
    all_tokens = sum(len(turn.prompt_ids) + len(turn.completion_ids) for turn in batch.turns)
    row |= {
        "parallel": "FSDP2" if size > 1 else "",
        "update_s": f"{median:.4f}",
        "fastest_s": f"{min(seconds):.4f}",
        "tokens_per_s": f"{all_tokens / median:.0f}",
        "peak_gib": f"{most / 2**30:.2f}",
        "device": "cpu" if options.small else torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "commit": options.commit,
        "command": f"torchrun --nproc-per-node {size} {Path(sys.argv[0]).name} --case {options.case} "
        f"--updates {options.updates}",
    }
    if rank == 0:
        print(row, flush=True)
        write(options.out, row)
    sys.stdout.flush()
    os._exit(0)  # gloo's threads sometimes keep an interpreter that shuts down from ending


if __name__ == "__main__":
    main()
