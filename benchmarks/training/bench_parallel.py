"""The update on one and on several GPUs: time, memory of each GPU, and how evenly the ranks are loaded.

    python benchmarks/training/bench_parallel.py --cases all --out one.csv
    torchrun --nproc-per-node 2 benchmarks/training/bench_parallel.py --cases all --out two.csv

Weights and tokens are random, so only time and memory mean anything. The work of an update is the same on any number of
GPUs. ``bench_parallel.sh`` runs both and checks restarts as well. ``--small`` runs every case on the CPU in seconds.

A row is one case on one number of GPUs: the median update of ``--updates`` after one that is not counted, the peak of
allocated memory over these (of the rank with most), the tokens of each rank, and the share by which the rank with most
tokens exceeds the mean.
"""

from __future__ import annotations

import argparse
import csv
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from kernel_coder.ops import LossSpec
from kernel_coder.policy.model import Policy
from kernel_coder.policy.packing import with_packing
from kernel_coder.policy.recomputation import Recomputation
from kernel_coder.rollout import Turn
from kernel_coder.run import distributed
from kernel_coder.run.config import AdamConfig, ParallelConfig
from kernel_coder.run.optimizer import make_optimizer
from kernel_coder.train.batch import Batch
from kernel_coder.train.config import OptimConfig
from kernel_coder.train.update import Learner

SHAPES: dict[str, dict[str, Any]] = {
    "qwen2.5-coder-3b": {
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "qwen2.5-7b": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
    },
    "smollm2-135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
}
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
}


@dataclass(frozen=True)
class Case:
    """One way to update one model.

    Attributes:
        model: name in :data:`SHAPES`.
        batch: ``equal`` sequences or a ``realistic`` batch; ``sft``: packed examples of equal length.
        size: sequences in a forward pass.
        count: sequences of an update.
        dtype: of the weights and of AdamW's states.
        recompute: recompute every layer; None: as few as the memory requires.
        parallel: how ranks work together. It means nothing with one rank.
        alone: whether it also runs on one GPU.
    """

    model: str
    batch: str = "equal"
    size: int = 8
    count: int = 32
    dtype: torch.dtype = torch.bfloat16
    recompute: bool | None = True
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    alone: bool = False


DIVIDED = ParallelConfig(sync_each_pass=True)
WHOLE = ParallelConfig(shard=False)
MASTER = ParallelConfig(sync_each_pass=True, param_dtype="bfloat16")
CASES = {
    "3b": Case("qwen2.5-coder-3b", parallel=DIVIDED, alone=True),
    "3b_64": Case("qwen2.5-coder-3b", count=64, parallel=DIVIDED, alone=True),
    "3b_64_whole_copies": Case("qwen2.5-coder-3b", count=64, parallel=WHOLE),
    "3b_128": Case("qwen2.5-coder-3b", count=128, parallel=DIVIDED, alone=True),
    "3b_sft": Case("qwen2.5-coder-3b", "sft", 8, 64, parallel=DIVIDED, alone=True),
    "3b_sync_once": Case("qwen2.5-coder-3b", parallel=ParallelConfig()),
    "3b_keep_gathered": Case("qwen2.5-coder-3b", parallel=ParallelConfig(sync_each_pass=True, reshard=False)),
    "3b_reduce_bf16": Case("qwen2.5-coder-3b", parallel=ParallelConfig(sync_each_pass=True, reduce_dtype=None)),
    "3b_whole_copies": Case("qwen2.5-coder-3b", parallel=WHOLE),
    "3b_realistic": Case("qwen2.5-coder-3b", "realistic", 8, 64, parallel=DIVIDED, alone=True),
    "3b_realistic_whole_copies": Case("qwen2.5-coder-3b", "realistic", 8, 64, parallel=WHOLE),
    "135m_sft": Case("smollm2-135m", "sft", 16, 64, torch.float32, False, WHOLE, alone=True),
    "135m_sft_divided": Case(
        "smollm2-135m", "sft", 16, 64, torch.float32, False, ParallelConfig(param_dtype="bfloat16")
    ),
    "7b_fp32_weights": Case("qwen2.5-7b", "equal", 2, 16, torch.float32, True, MASTER, alone=True),
}


def make_policy(case: Case, device: torch.device, *, small: bool) -> Policy:
    """A model with random weights. Its tokenizer only names the padding token."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = SHAPES[case.model] | (SMALL if small else {})
    config = Qwen2Config(**shape, max_position_embeddings=32768, attn_implementation="sdpa")
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(case.dtype)
    try:
        with device:
            model: Any = Qwen2ForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    if case.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    recomputation = Recomputation(model) if case.recompute is None else None
    tokenizer: Any = SimpleNamespace(pad_token_id=0)
    bf16 = case.dtype == torch.float32 and (distributed.world().is_alone or case.parallel.param_dtype is None)
    policy = Policy(model.eval(), tokenizer, bf16=bf16 and device.type == "cuda", recomputation=recomputation)
    return replace(policy, parallel=case.parallel)


def make_batch(case: Case, *, small: bool) -> Batch:
    """Sequences with random tokens. The realistic batch has 8 answers to each prompt, and half of the groups flat."""
    draw = random.Random(0)
    scale = 64 if small else 1
    vocabulary = SMALL["vocab_size"] if small else SHAPES[case.model]["vocab_size"]

    def some(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(1, vocabulary) for _ in range(max(count // scale, 2)))

    turns, advantages = [], []
    for i in range(case.count):
        if case.batch == "realistic":
            prompt = some(1024) if i % 8 == 0 else turns[-1].prompt_ids
            answer = some(draw.randint(256, 2048))
            advantages.append(0.0 if i // 8 % 2 else (1.0 if i % 2 else -1.0))
        else:
            prompt, answer = some(512), some(1536)
            advantages.append(1.0 if i % 2 else -1.0)
        turns.append(Turn(prompt, answer, (-1.0,) * len(answer), "", "stop"))
    counted = torch.ones(case.count, dtype=torch.bool)
    return Batch(tuple(turns), torch.tensor(advantages, dtype=torch.float64), counted)


def tokens_of(batch: Batch, passes: list[list[int]]) -> int:
    """Tokens that a rank computes in these passes; a shared prompt counts once in a pass."""
    found = 0
    for indices in passes:
        found += sum(len(batch.turns[i].completion_ids) for i in indices)
        found += sum(map(len, {batch.turns[i].prompt_ids for i in indices}))
    return found


def rl_update(case: Case, policy: Policy, optimizer: Any, *, small: bool) -> tuple[Callable[[], None], int]:
    """A whole update, and the tokens that this rank computes in it."""
    batch = make_batch(case, small=small)
    learner = Learner(
        policy=policy,
        reference=None,
        optimizer=optimizer,
        spec=LossSpec.preset("dapo"),
        config=OptimConfig(per_device_train_batch_size=case.size, gradient_accumulation_steps=case.count // case.size),
        temperature=1.0,
        minibatches=1,
        learning_rate=lambda number: 1e-6,
        max_skipped=1,
    )
    return lambda: learner.update(batch, 0, 0) and None, tokens_of(batch, learner.passes(batch)[0])


def sft_update(case: Case, policy: Policy, optimizer: Any, *, small: bool) -> tuple[Callable[[], None], int]:
    """A whole supervised update, and the tokens that this rank computes in it."""
    import numpy as np
    from kernel_coder.sft.examples import Example
    from kernel_coder.sft.packing import collate
    from kernel_coder.sft.update import UpdateSettings, update

    world, draw = distributed.world(), np.random.default_rng(0)
    length, vocabulary = (32, 512) if small else (2048, SHAPES[case.model]["vocab_size"])
    examples = [
        Example("", draw.integers(1, vocabulary, length).astype(np.int32), np.arange(length) > 0)
        for _ in range(case.count)
    ][world.rank :: world.size]
    batches = [collate(examples[i : i + case.size], policy.device) for i in range(0, len(examples), case.size)]
    settings = UpdateSettings(learning_rate=lambda number: 1e-6, max_grad_norm=1.0, max_skipped=1)

    def run() -> None:
        update(policy, optimizer, batches, settings, number=0, skipped_in_a_row=0)

    return run, len(examples) * length


def timed(run: Callable[[], None], device: torch.device, updates: int) -> Iterator[float]:
    """Seconds of each update, which all ranks begin together. The first one is not counted."""
    for number in range(updates + 1):
        distributed.barrier()
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if number:
            yield time.perf_counter() - start
        elif device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)


def measure(name: str, case: Case, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """A row of the table."""
    world = distributed.world()
    policy = make_policy(case, device, small=options.small)
    if not world.is_alone and case.parallel.shard:
        policy = policy.divided(case.parallel, device)
    policy = with_packing(policy)[0]
    optimizer = make_optimizer(policy.trainable().values(), AdamConfig())
    make = sft_update if case.batch == "sft" else rl_update
    run, tokens = make(case, policy, optimizer, small=options.small)
    seconds = list(timed(run, device, options.updates))
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    found = distributed.gathered((statistics.median(seconds), peak, tokens))
    all_tokens = [tokens for _, _, tokens in found]
    median = max(median for median, _, _ in found)
    return {
        "case": name,
        "model": case.model,
        "ranks": world.size,
        "weights": str(case.dtype).removeprefix("torch."),
        "parallel": "" if world.is_alone else settings_of(case.parallel),
        "update_s": f"{median:.4f}",
        "fastest_s": f"{min(seconds):.4f}",
        "tokens_per_s": f"{sum(all_tokens) / median:.0f}",
        "peak_gib": f"{max(peak for _, peak, _ in found) / 2**30:.2f}",
        "rank_tokens": " ".join(map(str, all_tokens)),
        "imbalance": f"{max(all_tokens) * len(all_tokens) / sum(all_tokens) - 1:.4f}",
    }


def settings_of(config: ParallelConfig) -> str:
    """The settings that differ from the defaults."""
    values = config.model_dump(exclude_defaults=True)
    return " ".join(f"{name}={value}" for name, value in values.items()) or "defaults"


FIELDS = (
    *("case", "model", "ranks", "weights", "parallel", "update_s", "fastest_s", "tokens_per_s", "peak_gib"),
    *("rank_tokens", "imbalance", "failure", "device", "torch", "commit", "command"),
)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="all", help=f"names, separated by commas: {', '.join(CASES)}")
    parser.add_argument("--updates", type=int, default=3, help="timed updates of a case (default 3)")
    parser.add_argument("--small", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument("--out", type=Path, help="CSV file to append to")
    parser.add_argument("--commit", default="", help="commit that is measured")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Runs the cases and returns their rows, which rank 0 also prints and appends to the file."""
    options = parse(arguments)
    names = list(CASES) if options.cases == "all" else options.cases.split(",")
    rows: list[dict[str, Any]] = []
    with distributed.joined(timeout_s=60.0) as world:
        device = torch.device("cpu") if options.small else torch.device("cuda", world.local_rank)
        for name in names:
            case = CASES[name]
            if world.is_alone and not case.alone:
                continue
            row = dict.fromkeys(FIELDS, "") | {"case": name, "model": case.model, "ranks": world.size}
            try:
                row |= measure(name, case, device, options)
            except Exception as error:  # if one rank alone fails, the others end after their longest wait
                row["failure"] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
            row |= {
                "device": "cpu" if options.small else torch.cuda.get_device_name(device),
                "torch": torch.__version__,
                "commit": options.commit,
                "command": f"{Path(sys.argv[0]).name} --cases {name} --updates {options.updates}",
            }
            rows.append(row)
            if world.is_first:
                print({name: value for name, value in row.items() if value != ""}, flush=True)
                write(options.out, row)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
    return rows


def write(path: Path | None, row: dict[str, Any]) -> None:
    """Appends a row to the CSV file, which has the row's columns."""
    if path is None:
        return
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, row)
        if new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
