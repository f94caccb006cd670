"""One supervised update, packed: ours beside transformers' Trainer on the same rows.

    python benchmarks/bench_sft.py                  # SmolLM2-135M's shape, 8 rows of 2,048 tokens: results/sft_cuda.csv
    python benchmarks/bench_sft.py --rivals none

A step is forward, backward, clipping and AdamW on float32 weights with bfloat16 autocast, the same examples in the same
rows; learnt are the answers, `learnt` of all tokens. The Trainer gets positions that begin anew in each example, from
which transformers makes the mask that keeps examples apart. `of_peak` counts what the step needs (6 operations a
weight and token, attention within examples, the head for learnt tokens) over --peak-tflops and the time taken.
"""

from __future__ import annotations

import copy
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import kernel_coder
import numpy as np
import torch
import transformers
from kernel_coder.models.tiny import tiny_tokenizer
from kernel_coder.sft.examples import Example
from kernel_coder.sft.packing import Filled, PackedBatch, best_fit, collate
from kernel_coder.sft.update import loss_of, update
from kernel_coder.train.attention import packed
from kernel_coder.train.memory import layers_of
from kernel_coder.train.model import Policy
from random_model import random_model
from side_by_side import Contender, compare, measure, median_of, parser_for
from torch import Tensor, nn
from transformers import LlamaForCausalLM, Trainer, TrainingArguments

MAX_NORM, RATE = 1.0, 1e-5


@dataclass(frozen=True)
class Shape:
    """A Llama and its rows; the defaults are SmolLM2-135M's."""

    rows: int = 8
    length: int = 2048
    vocab: int = 49152
    hidden: int = 576
    intermediate: int = 1536
    layers: int = 30
    heads: int = 9
    key_heads: int = 3

    def model(self, device: str) -> LlamaForCausalLM:
        return random_model(self, device, positions=2 * self.length)


SHAPES = {
    "small": [Shape(2, 64, 512, 64, 128, 2, 4, 2)],
    "reference": [Shape()],
    "sweep": [Shape(), Shape(rows=16), Shape(rows=32), Shape(rows=4, length=4096)],
}


def rows_of_examples(shape: Shape) -> list[list[Example]]:
    """Full rows of examples like pairs: a prompt of three sevenths, an answer of four."""
    draw = np.random.default_rng(0)
    mean = shape.length // 3
    examples = []
    for number in range(3 * shape.rows + 8):
        length = int(draw.integers(mean // 2, mean * 3 // 2))
        ids = draw.integers(0, shape.vocab, length).astype(np.int32)
        examples.append(Example(str(number), ids, np.arange(length) >= max(1, 3 * length // 7)))
    packs = best_fit([len(example) for example in examples], shape.length)[: shape.rows]
    return [[examples[i] for i in pack] for pack in packs]


def inputs_of_trainer(rows: list[list[Example]], length: int, device: str) -> dict[str, Tensor]:
    """[rows, length]: what is left over in a row is an example of its own that is in no loss."""
    ids = np.zeros((len(rows), length), dtype=np.int64)
    positions, labels = np.zeros_like(ids), np.full_like(ids, -100)
    for r, row in enumerate(rows):
        start = 0
        for example in row:
            end = start + len(example)
            ids[r, start:end], positions[r, start:end] = example.ids, np.arange(len(example))
            labels[r, start:end] = np.where(example.in_loss, example.ids, -100)
            start = end
        positions[r, start:] = np.arange(length - start)
    named = {"input_ids": ids, "position_ids": positions, "labels": labels}
    return {name: torch.from_numpy(values).to(device) for name, values in named.items()}


def needed_operations(shape: Shape, batch: PackedBatch, model: nn.Module) -> float:
    """Of forward and backward: products with weights, attention within examples, the head for learnt tokens."""
    body = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name)
    lengths = batch.cu_seqlens.diff().double()
    attention = 6 * shape.layers * shape.hidden * float((lengths**2).sum())  # causal: half of the square
    return 6 * body * len(batch.ids) + attention + 6 * shape.hidden * shape.vocab * batch.num_targets


def ours(
    shape: Shape, rows: list[list[Example]], device: str, compiled: bool
) -> tuple[Callable[[], object], nn.Module]:
    model = shape.model(device)
    policy = Policy(model, tiny_tokenizer())
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    examples = [example for row in rows for example in row]
    filled = Filled(shape.rows * shape.length, max(map(len, examples))) if compiled else None
    batch = collate(examples, torch.device(device), filled=filled)
    if compiled:
        for layer in layers_of(model):
            layer.compile()
    return lambda: update(
        policy,
        optimizer,
        [batch],
        learning_rate=lambda number: RATE,
        number=0,
        max_grad_norm=MAX_NORM,
        bf16=True,
        skipped_in_a_row=0,
        max_skipped=99,
    ), model


def trainer(shape: Shape, rows: list[list[Example]], device: str, compiled: bool) -> Callable[[], object]:
    """The inside of ``Trainer.train``: its own step, accelerate's clipping, its optimiser."""
    folder = tempfile.mkdtemp()
    settings = TrainingArguments(
        output_dir=folder,
        bf16=True,
        learning_rate=RATE,
        max_steps=10**6,
        report_to=[],
        torch_compile=compiled,
        use_cpu=device == "cpu",
        max_grad_norm=MAX_NORM,
    )
    model = shape.model(device)
    run = Trainer(model=model, args=settings)
    run.create_optimizer_and_scheduler(10**6)
    wrapped, run.optimizer = run.accelerator.prepare(model, run.optimizer)
    wrapped.train()
    batch = inputs_of_trainer(rows, shape.length, device)
    count = (batch["labels"] != -100).sum()

    def step() -> None:
        run.training_step(wrapped, dict(batch), count)
        run.accelerator.clip_grad_norm_(wrapped.parameters(), MAX_NORM)
        run.optimizer.step()
        wrapped.zero_grad()

    return step


def loss_error(shape: Shape, rows: list[list[Example]], device: str) -> dict[str, float]:
    """Ours in bfloat16 against float32, each example alone."""
    model = shape.model(device).eval()
    batch = collate([example for row in rows for example in row], torch.device(device))
    with torch.no_grad(), packed(model):
        found = float(loss_of(model, batch, batch.num_targets, bf16=True).loss)
    total = 0.0
    for example in (example for row in rows for example in row):
        ids = torch.from_numpy(example.ids.astype(np.int64)).to(device)[None]
        learnt = torch.from_numpy(example.in_loss).to(device)[1:]
        with torch.no_grad():
            logprobs = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        total -= float(logprobs.gather(1, ids[0, 1:, None])[:, 0][learnt].sum())
    return {"loss": abs(found - total / batch.num_targets) / (total / batch.num_targets)}


def table_of(shape: Shape, arguments: Namespace) -> list[dict[str, Any]]:
    device = arguments.device
    rows = rows_of_examples(shape)
    batch = collate([example for row in rows for example in row], torch.device(device))
    step, model = ours(shape, rows, device, compiled=False)
    operations = needed_operations(shape, batch, model)
    errors = loss_error(shape, rows, device)
    contenders = [
        Contender("kernel_coder", kernel_coder.__version__, step, kind="ours", errors=lambda: errors),
        Contender("transformers Trainer", transformers.__version__, trainer(shape, rows, device, compiled=False)),
    ]
    if not arguments.quick:
        compiled, _ = ours(shape, rows, device, compiled=True)
        contenders.append(Contender("kernel_coder, compiled", kernel_coder.__version__, compiled, kind="ours"))
        rival = trainer(shape, rows, device, compiled=True)
        contenders.append(Contender("transformers Trainer, compiled", transformers.__version__, rival))
    tokens, learnt = len(batch.ids), batch.num_targets / len(batch.ids)
    table = compare(contenders, arguments, {**point_of(shape), "tokens": tokens, "learnt": f"{learnt:.3f}"})
    for row in table:
        if "median_ms" in row:
            seconds = float(row["median_ms"]) / 1e3
            row["tokens_per_s"] = f"{tokens / seconds:.0f}"
            row["of_peak"] = f"{operations / seconds / (arguments.peak_tflops * 1e12):.3f}"
            row["of_trainer"] = f"{median_of(table, 'transformers Trainer') / float(row['median_ms']):.3f}"
    return table


def point_of(shape: Shape) -> dict[str, Any]:
    names = ("rows", "length", "hidden", "layers", "vocab")
    return {"work": "sft step", **{name: getattr(shape, name) for name in names}}


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--peak-tflops", type=float, default=989.0, help="of bfloat16, dense; an H200 has 989")
    arguments = parser.parse_args()
    arguments.shapes = arguments.shapes or ("reference" if arguments.device == "cuda" else "small")
    shapes = {tuple(point_of(shape).values()): shape for shape in SHAPES[arguments.shapes]}
    points: list[Mapping[str, Any]] = [point_of(shape) for shape in SHAPES[arguments.shapes]]
    measure("sft", arguments, points, lambda point: table_of(copy.copy(shapes[tuple(point.values())]), arguments))


if __name__ == "__main__":
    main()
