"""Measures one update of a large model on one GPU: ours, and the same loop with the heads of other libraries.

    python benchmarks/training/bench_step.py               # Qwen2.5-Coder-3B's shape: results/step_cuda.csv
    python benchmarks/training/bench_step.py --lora        # adapters instead of all weights: results/step_lora_cuda.csv
    python benchmarks/training/bench_step.py --device cpu  # a small shape, to check that everything runs

The weights are random and trained in bfloat16. An update is forward and backward over the batch in several passes,
clipping and AdamW. `dense`: 16 answers of 2,048 tokens with a prompt of one token, all tokens in the loss. `realistic`:
4 groups of 16 answers of 200 to 1,000 tokens, each group with a prompt of 1,000; in two groups all answers have the
same reward. `longest`: one answer that doubles its length until memory or time runs out.

Rivals work as TRL does: every answer padded to the longest of its pass, with its own copy of the prompt, all layers
recomputed in the backward pass (`--micro` answers in a pass); they differ in the head. Ours is the update of training;
further rows leave out one of its parts each. `peak_gib` is all allocated memory, including weights and AdamW's states;
equal `grad_norm` shows that all compute the same. Each row is written as soon as it is measured; --seconds limits the
run.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import kernel_coder
import torch
from kernel_coder import LossSpec
from kernel_coder.models.tiny import tiny_tokenizer
from kernel_coder.policy.model import Policy
from kernel_coder.policy.parts import layers_of
from kernel_coder.policy.recomputation import Recomputation, recompute
from kernel_coder.rollout import Turn
from kernel_coder.train.batch import Batch, Form, denominator, forward_passes
from kernel_coder.train.update import backward, optimizer_step
from torch import Tensor, nn
from transformers import Qwen2ForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers that all benchmarks share

from random_model import random_model
from rivals import EPSILON, eager_logprobs, trl_chunked
from side_by_side import Row, about_this_run, failure, free, version_of, write

SPEC = LossSpec.preset("dapo")
MAX_NORM = 1.0
Update = Callable[[], float]


@dataclass(frozen=True)
class Shape:
    """The shapes of a model and its batches; the defaults are Qwen2.5-Coder-3B's."""

    name: str = "Qwen2.5-Coder-3B"
    vocab: int = 151936
    hidden: int = 2048
    intermediate: int = 11008
    layers: int = 36
    heads: int = 16
    key_heads: int = 2
    answers: int = 16
    length: int = 2048
    groups: int = 4
    prompt: int = 1000
    shortest: int = 200
    longest: int = 1000
    first: int = 8192
    last: int = 1 << 20

    def model(self, device: str) -> Qwen2ForCausalLM:
        return random_model(self, device, kind="qwen2", dtype=torch.bfloat16, positions=1 << 20).train()

    def dense(self) -> Batch:
        return self.batch([(i, 1, self.length - 1, 1.0 + i % 3 if i % 2 else -1.0) for i in range(self.answers)])

    def realistic(self) -> Batch:
        """A batch in which half of the groups have equal rewards."""
        draw = torch.Generator().manual_seed(0)
        lengths = torch.randint(self.shortest, self.longest + 1, (self.groups, self.answers), generator=draw).tolist()
        rows = [
            (g, self.prompt, length, 0.0 if g % 2 else 1.0 - 2.0 * (i % 2))
            for g, group in enumerate(lengths)
            for i, length in enumerate(group)
        ]
        return self.batch(rows)

    def batch(self, rows: list[tuple[int, int, int, float]]) -> Batch:
        """A turn with a prompt and an answer of these lengths, and its advantage."""
        turns = []
        for i, (prompt, before, length, _) in enumerate(rows):
            begun = torch.randint(self.vocab, (before,), generator=torch.Generator().manual_seed(prompt)).tolist()
            said = torch.randint(self.vocab, (length,), generator=torch.Generator().manual_seed(1000 + i)).tolist()
            turns.append(Turn(tuple(begun), tuple(said), (-1.0,) * length, "", "stop"))
        advantages = torch.tensor([row[3] for row in rows], dtype=torch.float64)
        return Batch(tuple(turns), advantages, torch.ones(len(turns), dtype=torch.bool))


SMALL = Shape(
    "small", 512, 64, 96, 3, 4, 2, answers=4, length=32, groups=2, prompt=12, shortest=3, longest=9, first=32, last=64
)


class Run:
    """The model and its optimizer, which all contenders use. The learning rate is 0, so the weights do not change."""

    def __init__(self, shape: Shape, arguments: Namespace) -> None:
        self.shape, self.device, self.micro = shape, arguments.device, arguments.micro
        self.base = shape.model(self.device)
        self.model: nn.Module = with_adapters(self.base) if arguments.lora else self.base
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=0.0, fused=True)
        self.policy = Policy(self.model, tiny_tokenizer(), arguments.lora, can_pack=True, can_share=True)

    def ours(self, batch: Batch, form: Form, *, size: int, chosen: bool = True) -> Update:
        """The update of training. ``chosen``: recompute only as many layers as memory requires, otherwise all."""
        policy = replace(self.policy, recomputation=Recomputation(self.model) if chosen else None)
        passes = forward_passes(batch, SPEC, 1, size)[0]
        total = denominator(batch, SPEC, 1)

        def update() -> float:
            recompute(self.model, 0 if chosen else self.shape.layers)
            self.optimizer.zero_grad(set_to_none=True)
            sums = backward(policy, batch, passes, SPEC, 1.0, total, form)
            return optimizer_step(self.optimizer, self.trained, float(sums[0]), MAX_NORM) or math.nan

        return update

    def theirs(self, batch: Batch, head: Callable[..., Tensor]) -> Update:
        """Padded passes over every answer; ``head`` gives the mean loss of a pass."""
        total = sum(len(turn.completion_ids) for turn in batch.turns)
        weight = self.base.get_output_embeddings().weight

        def update() -> float:
            recompute(self.model, self.shape.layers)
            self.optimizer.zero_grad(set_to_none=True)
            loss_of_all = 0.0
            for start in range(0, len(batch), self.micro):
                rows = Padded(batch, range(start, min(start + self.micro, len(batch))), self.device)
                states = self.base.model(
                    input_ids=rows.ids, attention_mask=rows.attention_mask, use_cache=False
                ).last_hidden_state
                loss = head(states, weight, rows) * (rows.tokens / total)
                loss.backward()
                loss_of_all += float(loss.detach())
            return optimizer_step(self.optimizer, self.trained, loss_of_all, MAX_NORM) or math.nan

        return update


def with_adapters(model: nn.Module) -> nn.Module:
    """LoRA of rank 64 in every linear layer but the head, computed as in our training for all contenders."""
    import peft
    from kernel_coder.policy.adapters import quicken

    settings = peft.LoraConfig(task_type="CAUSAL_LM", r=64, lora_alpha=128, target_modules="all-linear")
    adapted: nn.Module = peft.get_peft_model(model, settings).train()
    quicken(adapted)
    return adapted


class Padded:
    """A pass in TRL's layout: prompts padded on the left, answers on the right."""

    def __init__(self, batch: Batch, indices: range, device: str) -> None:
        turns = [batch.turns[i] for i in indices]
        before, after = max(len(t.prompt_ids) for t in turns), max(len(t.completion_ids) for t in turns)
        ids = [
            [0] * (before - len(t.prompt_ids))
            + [*t.prompt_ids, *t.completion_ids]
            + [0] * (after - len(t.completion_ids))
            for t in turns
        ]
        known = [
            [0] * (before - len(t.prompt_ids))
            + [1] * (len(t.prompt_ids) + len(t.completion_ids))
            + [0] * (after - len(t.completion_ids))
            for t in turns
        ]
        self.ids, self.attention_mask = torch.tensor(ids, device=device), torch.tensor(known, device=device)
        self.begin = before - 1
        self.targets = self.ids[:, before:].contiguous()  # [B, L]
        self.mask = self.attention_mask[:, before:].contiguous()
        self.advantages = batch.advantages[list(indices)].float().to(device)
        self.tokens = sum(len(t.completion_ids) for t in turns)

    def states(self, states: Tensor) -> Tensor:
        """[B L, H]: those that predict an answer's tokens."""
        return states[:, self.begin : -1].flatten(0, 1)

    def loss(self, logprobs: Tensor) -> Tensor:
        """The loss in plain torch, from log-probs [B L]."""
        logprobs = logprobs.float().view_as(self.targets)
        ratio = (logprobs - logprobs.detach()).exp()
        advantages = self.advantages[:, None]
        clipped = ratio.clamp(1 - EPSILON[0], 1 + EPSILON[1])
        losses = -torch.minimum(ratio * advantages, clipped * advantages)
        return (losses * self.mask).sum() / self.mask.sum()


def eager_head(states: Tensor, weight: Tensor, rows: Padded) -> Tensor:
    return rows.loss(eager_logprobs(rows.states(states) @ weight.T, rows.targets.flatten()))


def trl_head(states: Tensor, weight: Tensor, rows: Padded) -> Tensor:
    """The head as Liger's patched model calls it: without padding."""
    known = rows.mask.flatten().bool()
    kept, ids = rows.states(states)[known], rows.targets.flatten()[known]
    logprobs, *_ = trl_chunked()(kept, weight, None, ids, 1.0, 32768, None, 1.0, ("entropy",))
    return rows.loss(logprobs.new_zeros(known.shape).masked_scatter(known, logprobs))


def cce_head(states: Tensor, weight: Tensor, rows: Padded) -> Tensor:
    from cut_cross_entropy import linear_cross_entropy

    ids = rows.targets.where(rows.mask.bool(), -100).flatten()
    return rows.loss(-linear_cross_entropy(rows.states(states).contiguous(), weight, ids, reduction="none"))


def liger_logits_head(states: Tensor, weight: Tensor, rows: Padded) -> Tensor:
    from liger_kernel.ops.grpo_loss import GrpoLossFunction

    logits = states[:, rows.begin :] @ weight.T  # [B, L + 1, V]; the last row is left out
    arguments = (logits, None, None, rows.targets, rows.advantages, rows.mask, 1.0, 0.0, *EPSILON, True, "dapo")
    found, *_ = GrpoLossFunction.apply(*arguments)
    return found


def liger_linear_head(states: Tensor, weight: Tensor, rows: Padded) -> Tensor:
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    fused = LigerFusedLinearGRPOLoss(
        beta=0.0, use_ref_model=False, epsilon_low=EPSILON[0], epsilon_high=EPSILON[1], loss_type="dapo"
    )
    hidden = states[:, rows.begin : -1].contiguous()
    found, _ = fused(hidden, weight, rows.targets, rows.mask, rows.advantages)
    return found


HEADS: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "TRL": ("trl", trl_head),
    "cut-cross-entropy": ("cut-cross-entropy", cce_head),
    "Liger, on logits": ("liger-kernel", liger_logits_head),
    "torch eager": ("torch", eager_head),
    "Liger, linear": ("liger-kernel", liger_linear_head),
}


def contenders(run: Run, work: str, batch: Batch, wanted: str) -> Iterator[tuple[str, str, str, Update]]:
    """(kind, name, version, function) of each contender."""
    version, micro, whole = kernel_coder.__version__, run.micro, Form(packing=True, sharing=True)
    yield "ours", "kernel_coder", version, run.ours(batch, whole, size=16)
    for name, (package, head) in HEADS.items():
        if wanted == "all" or any(part and part.lower() in name.lower() for part in wanted.split(",")):
            yield "rival", name, version_of(package), run.theirs(batch, head)
    if work == "longest":
        return
    yield "ours", "kernel_coder, all layers recomputed", version, run.ours(batch, whole, size=16, chosen=False)
    if work == "realistic":
        packed = run.ours(batch, Form(packing=True), size=16, chosen=False)
        yield "ours", "kernel_coder, all layers recomputed, prompts not shared", version, packed
        padded = run.ours(batch, Form(), size=micro, chosen=False)
        yield "ours", "kernel_coder, all layers recomputed, padded", version, padded
    everything = replace(batch, advantages=batch.advantages.where(batch.advantages != 0, 1e-30))
    unskipped = run.ours(everything, Form(), size=micro, chosen=False)
    yield "ours", "kernel_coder's head, the rest as theirs", version, unskipped


def measured(run: Run, update: Update, runs: int, deadline: float) -> Row:
    cuda = run.device == "cuda"
    times: list[float] = []
    norm, first = math.nan, 0.0
    for number in range(runs + 1):
        if times and time.perf_counter() + times[-1] > deadline:
            break
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        norm = update()
        if cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        if number:
            times.append(seconds)
        else:
            first = seconds
    row: Row = {"first_call_s": f"{first:.2f}", "grad_norm": f"{norm:.4g}"}
    if times:
        row |= {"seconds": f"{statistics.median(times):.4g}", "runs": len(times)}
    if cuda:
        row["peak_gib"] = f"{torch.cuda.max_memory_allocated() / 2**30:.1f}"
        row["recomputed_layers"] = sum(layer.gradient_checkpointing for layer in layers_of(run.model))
    return row


class Table:
    """Prints rows and writes them to a file as soon as they arrive."""

    def __init__(self, arguments: Namespace, out: Path | None) -> None:
        self.about, self.rows, self.out = about_this_run(arguments), list[Row](), out

    def add(self, row: Row) -> None:
        print(*(f"{key}={value}" for key, value in row.items()), flush=True)
        self.rows.append({**row, **self.about})
        best = {
            r["work"]: float(r["seconds"])
            for r in self.rows[::-1]
            if r["implementation"] == "kernel_coder" and "seconds" in r
        }
        for each in self.rows:
            if "seconds" in each and each["work"] in best:
                each["of_ours"] = f"{float(each['seconds']) / best[each['work']]:.3f}"
        if self.out is not None:
            write(self.out, self.rows, last=("failure", *self.about))


def longest(run: Run, table: Table, wanted: str, deadline: float) -> None:
    """For each contender, the longest single answer whose update fits into memory."""
    names = [name for _, name, *_ in contenders(run, "longest", run.shape.batch([(0, 1, 2, 1.0)]), wanted)]
    for name in names:
        for doubling in itertools.count():
            length = run.shape.first << doubling
            if time.perf_counter() > deadline or length > run.shape.last:
                break
            batch = run.shape.batch([(0, 1, length - 1, 1.0)])
            kind, _, version, update = next(
                each for each in contenders(run, "longest", batch, wanted) if each[1] == name
            )
            row: Row = {"model": run.shape.name, "work": "longest", "kind": kind, "implementation": name}
            row |= {"version": version, "tokens": length}
            try:
                row |= measured(run, update, 0, deadline)
            except Exception as error:
                row["failure"] = failure(error)
            del update
            run.optimizer.zero_grad(set_to_none=True)
            free(run.device == "cuda")
            table.add(row)
            if "failure" in row:
                break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--work", default="dense,realistic", help="any of dense, realistic, longest")
    parser.add_argument("--rivals", default="all", help="all, none, or parts of their names: Liger,TRL")
    parser.add_argument("--micro", type=int, default=4, help="number of answers in a padded pass")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--lora", action="store_true", help="train adapters of rank 64 instead of all weights")
    parser.add_argument("--layers", type=int, help="another number of layers, for a trial")
    parser.add_argument("--first", type=int, help="first length for `longest`, in tokens")
    parser.add_argument("--last", type=int, help="highest length for `longest`, in tokens")
    parser.add_argument("--seconds", type=float, default=600.0, help="start no measurement after this many seconds")
    parser.add_argument("--commit", default=os.environ.get("KC_COMMIT"), help="commit in the rows, if there is no git")
    parser.add_argument("--out", type=Path, help="CSV file; default on a GPU: results/step_cuda.csv")
    arguments = parser.parse_args()
    deadline = time.perf_counter() + arguments.seconds
    out = arguments.out
    if out is None and arguments.device == "cuda":
        out = Path(__file__).parents[1] / "results" / ("step_lora_cuda.csv" if arguments.lora else "step_cuda.csv")
    shape = Shape() if arguments.device == "cuda" else SMALL
    others = {name: value for name in ("layers", "first", "last") if (value := getattr(arguments, name)) is not None}
    run = Run(replace(shape, **others), arguments)
    table = Table(arguments, out)
    for work in arguments.work.split(","):
        if work == "longest":
            longest(run, table, arguments.rivals, deadline)
            continue
        batch = getattr(run.shape, work)()
        tokens = sum(len(turn.prompt_ids) + len(turn.completion_ids) for turn in batch.turns)
        for kind, name, version, update in contenders(run, work, batch, arguments.rivals):
            if time.perf_counter() > deadline:
                break
            row: Row = {"model": run.shape.name, "work": work, "kind": kind, "implementation": name}
            row |= {"version": version, "tokens": tokens}
            try:
                row |= measured(run, update, arguments.runs, deadline)
            except Exception as error:  # a rival's failure is a result
                row["failure"] = failure(error)
            del update
            run.optimizer.zero_grad(set_to_none=True)
            free(run.device == "cuda")
            table.add(row)
    if time.perf_counter() > deadline:
        print(f"stopped after {arguments.seconds:.0f} seconds", file=sys.stderr)


if __name__ == "__main__":
    main()
