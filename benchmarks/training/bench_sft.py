"""Measures one packed supervised update: ours and transformers' Trainer on the same rows.

    python benchmarks/training/bench_sft.py            # SmolLM2-135M's shape, 8 x 2,048 tokens: results/sft_cuda.csv
    python benchmarks/training/bench_sft.py --rivals none

A step is forward, backward, clipping and AdamW, with float32 weights and bfloat16 autocast. Both use the same examples
in the same rows; the loss covers the answers, a share of `learnt` of all tokens. The Trainer gets positions that
restart in each example, from which transformers makes the mask between examples. `of_peak` is the number of operations
of the step (6 per weight and token, attention within examples, the head for learnt tokens) divided by --peak-tflops and
the time. `of_trainer` is the Trainer's time divided by that of the row, either both compiled or both not. Compiled
contenders are measured first; `no graph` is ours without CUDA graphs, whose memory counts in `peak_mib`.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kernel_coder
import numpy as np
import torch
import transformers
from kernel_coder.models.tiny import tiny_tokenizer
from kernel_coder.policy.attention import packed
from kernel_coder.policy.model import Policy
from kernel_coder.sft.compilation import Acceleration, accelerate, compile_layers
from kernel_coder.sft.examples import Example
from kernel_coder.sft.packing import Filled, PackedBatch, best_fit, collate
from kernel_coder.sft.update import UpdateSettings, loss_of, update
from torch import Tensor
from transformers import LlamaForCausalLM, Trainer, TrainingArguments

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers that all benchmarks share

from random_model import random_model
from side_by_side import Contender, compare, measure, median_of, parser_for

MAX_NORM, RATE = 1.0, 1e-5
RIVAL = "transformers Trainer"


@dataclass(frozen=True)
class Shape:
    """The shapes of a Llama and its rows; the defaults are SmolLM2-135M's."""

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
    """Full rows of examples with the proportions of pairs: three sevenths prompt, four sevenths answer."""
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


def needed_operations(shape: Shape, batch: PackedBatch) -> float:
    """Operations of forward and backward: products with weights, attention in examples, the head for learnt tokens."""
    model = shape.model("meta")
    body = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name)
    lengths = batch.cu_seqlens.diff().double()
    attention = 6 * shape.layers * shape.hidden * float((lengths**2).sum())  # causal: half of the square
    return 6 * body * len(batch.ids) + attention + 6 * shape.hidden * shape.vocab * batch.num_targets


def ours(
    shape: Shape, rows: list[list[Example]], device: str, *, compiled: bool = False, graphs: bool = False
) -> tuple[Callable[[], object], int]:
    """The step, and the bytes that it holds between two calls besides the weights and the optimizer's state."""
    model = shape.model(device)
    policy = Policy(model, tiny_tokenizer(), bf16=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    examples = [example for row in rows for example in row]
    lengths = [[len(example) for example in row] for row in rows]
    filled = Filled.of(lengths, shape.rows, shape.length) if compiled else None
    batch = collate(examples, torch.device(device), filled=filled)
    before = reserved(device)
    acceleration = Acceleration()
    if graphs:
        acceleration = accelerate(policy, batch, bf16=True)
    elif compiled and (problem := compile_layers(policy, batch, bf16=True)):
        acceleration = Acceleration(notes=(problem,))
    if acceleration.notes:
        raise RuntimeError(acceleration.notes[0])
    held = reserved(device) - before
    return lambda: update(
        policy,
        optimizer,
        [batch],
        UpdateSettings(lambda number: RATE, MAX_NORM, max_skipped=99, states_of=acceleration.states_of),
        number=0,
        skipped_in_a_row=0,
    ), held


def reserved(device: str) -> int:
    """Bytes of the GPU that cannot be freed."""
    if device != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def trainer(shape: Shape, rows: list[list[Example]], device: str, compiled: bool) -> Callable[[], object]:
    """The body of ``Trainer.train``: its step, accelerate's clipping, its optimizer."""
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
    """The error of ours in bfloat16 against float32 with each example alone."""
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


def contender_of(
    name: str, version: str, build: Callable[[], tuple[Callable[[], object], int]], **more: Any
) -> Contender:
    """A step that its first call builds and compiles. Memory that it holds counts in every call."""
    built: list[Callable[[], object]] = []

    def run() -> object:
        if not built:
            step, held = build()
            built.append(step)
            contender.output_bytes = -held
        return built[0]()

    contender = Contender(name, version, run, **more)
    return contender


def contenders_of(shape: Shape, rows: list[list[Example]], device: str, form: str) -> list[Contender]:
    compiled = form == "compiled"
    trained = f"{RIVAL}, compiled" if compiled else RIVAL
    rival = contender_of(trained, transformers.__version__, lambda: (trainer(shape, rows, device, compiled), 0))

    def mine(name: str, **options: Any) -> Contender:
        more = options.pop("more", {})
        return contender_of(name, kernel_coder.__version__, lambda: ours(shape, rows, device, **options), **more)

    if not compiled:
        errors = {"errors": lambda: loss_error(shape, rows, device)}
        return [mine("kernel_coder", more={"kind": "ours", **errors}), rival]
    kind = {"kind": "ours"}
    return [
        mine("kernel_coder, compiled", compiled=True, graphs=True, more=kind),
        rival,
        mine("kernel_coder, compiled, no graph", compiled=True, more=kind),
    ]


def table_of(shape: Shape, form: str, arguments: Namespace) -> list[dict[str, Any]]:
    device = arguments.device
    rows = rows_of_examples(shape)
    batch = collate([example for row in rows for example in row], torch.device(device))
    operations = needed_operations(shape, batch)
    tokens, learnt = len(batch.ids), batch.num_targets / len(batch.ids)
    point = {**point_of(shape, form), "tokens": tokens, "learnt": f"{learnt:.3f}"}
    table = compare(contenders_of(shape, rows, device, form), arguments, point)
    trained = median_of(table, f"{RIVAL}, compiled" if form == "compiled" else RIVAL)
    for row in table:
        if "median_ms" in row:
            seconds = float(row["median_ms"]) / 1e3
            row["tokens_per_s"] = f"{tokens / seconds:.0f}"
            row["of_peak"] = f"{operations / seconds / (arguments.peak_tflops * 1e12):.3f}"
            row["of_trainer"] = f"{trained / float(row['median_ms']):.3f}"
    return table


def point_of(shape: Shape, form: str) -> dict[str, Any]:
    names = ("rows", "length", "hidden", "layers", "vocab")
    return {"work": "sft step", "form": form, **{name: getattr(shape, name) for name in names}}


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--peak-tflops", type=float, default=989.0, help="peak of dense bfloat16; an H200 has 989")
    arguments = parser.parse_args()
    arguments.shapes = arguments.shapes or ("reference" if arguments.device == "cuda" else "small")
    forms = ("plain",) if arguments.quick else ("compiled", "plain")
    found = {
        tuple(point_of(shape, form).values()): (shape, form) for shape in SHAPES[arguments.shapes] for form in forms
    }
    points: list[Mapping[str, Any]] = [point_of(shape, form) for shape, form in found.values()]
    measure("sft", arguments, points, lambda point: table_of(*found[tuple(point.values())], arguments))


if __name__ == "__main__":
    main()
