"""Measures a step of TRL's GRPOTrainer on one GPU: with its own loss, and with this project's (FusedGRPOTrainer).

    python benchmarks/training/bench_trl_step.py                   # both shapes: rows in results/trl_step_cuda.csv
    python benchmarks/training/bench_trl_step.py --wheels FOLDER   # trl and accelerate from wheels in a folder
    python benchmarks/training/bench_trl_step.py --device cpu --shape tiny --runs 1    # to check that it runs

A step is the forward and backward pass of TRL's own code over one batch (`answers` answers of at most `completion`
tokens, padded, with prompts of `prompt` tokens; all layers recomputed), clipping and AdamW. Weights are random, in
bfloat16 on a GPU. The two kinds of steps alternate. `step_ms` is the median, `peak_gib` all allocated memory with
weights and AdamW's states. `error` is the largest difference of the two gradients, relative to the largest gradient,
before the first step. On a GPU it is that of bfloat16.

Only the loss is measured, so the trainers are made without a data set, and the packages datasets and pandas are
replaced by empty ones where they are not installed.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))

from random_model import random_model  # noqa: E402
from side_by_side import version_of  # noqa: E402

os.environ.setdefault("HF_HUB_OFFLINE", "1")
RESULTS = HERE.parents[1] / "results"


@dataclass(frozen=True)
class Shape:
    """A model and its batch."""

    kind: str
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    answers: int
    prompt: int
    completion: int


SHAPES = {
    "SmolLM2-135M": Shape("llama", 49152, 576, 1536, 30, 9, 3, 32, 256, 768),
    "Qwen2.5-Coder-3B": Shape("qwen2", 151936, 2048, 11008, 36, 16, 2, 8, 512, 1024),
    "tiny": Shape("llama", 1024, 64, 128, 2, 4, 2, 4, 16, 32),
}


UNUSED = {"datasets": ("datasets.fingerprint", "datasets.iterable_dataset", "datasets.distributed"), "pandas": ()}
"""Packages that trl imports and its loss does not use, with their modules. Missing ones are replaced by empty ones."""


def import_trl(wheels: Path | None) -> None:
    """Make ``import trl`` possible."""
    if wheels is not None:
        folder = tempfile.mkdtemp(prefix="bench-trl-")
        for wheel in wheels.glob("*.whl"):
            with zipfile.ZipFile(wheel) as opened:
                opened.extractall(folder)
        sys.path.append(folder)
    for package, modules in UNUSED.items():
        if find_spec(package) is None:
            for name in (package, *modules):
                empty: Any = ModuleType(name)
                empty.__path__, empty.__spec__, empty.__version__ = [], ModuleSpec(name, None), "0"
                empty.__getattr__ = any_class
                sys.modules[name] = empty


def any_class(name: str) -> type:
    """An empty class for any name that trl imports from the replaced package."""
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


class Accelerator:
    """One process."""

    num_processes = 1
    is_main_process = True
    sync_gradients = True

    def autocast(self) -> Any:
        return nullcontext()

    def reduce(self, values: Tensor, reduction: str = "sum") -> Tensor:
        return values

    def gather(self, values: Tensor) -> Tensor:
        return values


def bare(kind: Any, model: Any) -> Any:
    """A trainer with what its loss looks at, and nothing else."""
    from kernel_coder import LossSpec
    from trl import GRPOConfig

    made = object.__new__(kind)
    args = GRPOConfig(output_dir=tempfile.gettempdir(), report_to=[], use_cpu=True, bf16=False)
    made.args, made.model, made.accelerator = args, model, Accelerator()
    made.loss_type, made.beta, made.temperature = args.loss_type, args.beta, 1.0
    made.epsilon_low, made.epsilon_high = args.epsilon, args.epsilon_high or args.epsilon
    made.importance_sampling_level = args.importance_sampling_level
    made.top_entropy_quantile, made.off_policy_mask_threshold = 1.0, None
    made.use_vllm = made.vllm_importance_sampling_correction = False
    made.aux_loss_enabled = made._entropy_bonus_enabled = made.use_adaptive_entropy = False
    made.current_gradient_accumulation_steps = 1
    args.steps_per_generation = 1
    made.max_completion_length = args.max_completion_length
    made._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    made.state = SimpleNamespace(global_step=0)
    made.spec = LossSpec.from_trl(args)
    return made


def batch(shape: Shape, device: str) -> dict[str, Tensor]:
    """Answers of different lengths, half of them better than their group's mean."""
    drawn = torch.Generator().manual_seed(0)
    ids = torch.randint(1, shape.vocab, (shape.answers, shape.prompt + shape.completion), generator=drawn)
    lengths = torch.randint(shape.completion // 4, shape.completion + 1, (shape.answers,), generator=drawn)
    mask = (torch.arange(shape.completion) < lengths[:, None]).long()
    made = {
        "prompt_ids": ids[:, : shape.prompt],
        "prompt_mask": torch.ones(shape.answers, shape.prompt, dtype=torch.long),
        "completion_ids": ids[:, shape.prompt :],
        "completion_mask": mask,
        "advantages": torch.randn(shape.answers, generator=drawn),
        "num_items_in_batch": mask.sum().float(),
    }
    return {name: one.to(device).contiguous() for name, one in made.items()}


def measure(name: str, device: str, runs: int) -> list[dict[str, Any]]:
    """A row for each loss."""
    from kernel_coder.integrations.trl_trainer import FusedGRPOTrainer, _add_policy_loss
    from trl import GRPOTrainer
    from trl.trainer.utils import add_fused_lm_head

    shape = SHAPES[name]
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    positions = shape.prompt + shape.completion
    model = random_model(shape, device, kind=shape.kind, dtype=dtype, positions=positions)
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    _add_policy_loss(model)
    trainers = {"TRL": bare(GRPOTrainer, model), "ours": bare(FusedGRPOTrainer, model)}
    inputs = batch(shape, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=device == "cuda")
    gradients: dict[str, list[Tensor]] = {}
    times: dict[str, list[float]] = {"TRL": [], "ours": []}
    peaks: dict[str, float] = {}

    def step(kind: str, updates: bool = True) -> float:
        optimizer.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        began = time.perf_counter()
        trainers[kind]._compute_loss(model, inputs).backward()
        if not updates:
            gradients[kind] = [one.grad.detach().float().cpu() for one in model.parameters()]
            return 0.0
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
            peaks[kind] = torch.cuda.max_memory_allocated() / 2**30
        return time.perf_counter() - began

    for kind in trainers:
        step(kind, updates=False)
    largest = max(float(one.abs().max()) for one in gradients["TRL"])
    apart = max(float((a - b).abs().max()) for a, b in zip(gradients["TRL"], gradients["ours"], strict=True))
    gradients.clear()
    for turn in range(runs + 1):
        for kind in trainers:
            seconds = step(kind)
            if turn:  # the first one makes AdamW's states
                times[kind].append(seconds)
    return [
        {
            "shape": name,
            "loss": kind,
            "step_ms": round(1e3 * statistics.median(times[kind]), 1),
            "fastest_ms": round(1e3 * min(times[kind]), 1),
            "peak_gib": round(peaks[kind], 3) if kind in peaks else "",
            "error": f"{apart / largest:.2g}",
            "answers": shape.answers,
            "prompt": shape.prompt,
            "completion": shape.completion,
            "runs": runs,
        }
        for kind in trainers
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", choices=sorted(SHAPES), action="append")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--wheels", type=Path, help="folder with wheels of trl, and of accelerate where it is missing")
    parser.add_argument("--out", type=Path, help="default: results/trl_step_DEVICE.csv; rows are added to it")
    options = parser.parse_args()
    import_trl(options.wheels)
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    facts = {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "transformers": version_of("transformers"),
        "trl": version_of("trl"),
        "commit": os.environ.get("KC_COMMIT") or done.stdout.strip(),
        "command": " ".join(["python benchmarks/training/bench_trl_step.py", *sys.argv[1:]]),
    }
    path = options.out or RESULTS / f"trl_step_{options.device}.csv"
    for name in options.shape or ("SmolLM2-135M", "Qwen2.5-Coder-3B"):
        rows = measure(name, options.device, options.runs)
        for row in rows:
            print(row, flush=True)
        is_new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0], *facts])
            if is_new:
                writer.writeheader()
            writer.writerows(row | facts for row in rows)


if __name__ == "__main__":
    main()
