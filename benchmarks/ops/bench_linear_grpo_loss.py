"""Measures the GRPO loss from hidden states, forward and backward, beside its matrix products and other libraries.

    python benchmarks/ops/bench_linear_grpo_loss.py                    # rows into results/linear_grpo_loss_cuda.csv
    python benchmarks/ops/bench_linear_grpo_loss.py --shapes sweep     # rows into results/linear_grpo_loss_sweep.csv

side_by_side.py explains how contenders are timed. All of them have the same batch, with hidden states and head in
bfloat16: 16 answers of equal length, and DAPO's loss (clipped ratio, mean over tokens). "three products" is the lower
limit of the time: logits, gradient of the hidden states, and gradient of the weight, each as one cuBLAS product over
all rows. They use the real gradient of the loss, since the speed of a GPU at its power limit depends on the numbers.
"two products" is the lower limit for a frozen head. `of_floor` is the time divided by that of the three (two) products,
`of_full` the time divided by that of the same work without masked tokens and zero advantages. `peak_mib` is the memory
without inputs and without the two gradients in bfloat16; `workspace_mib` is the part for logits. "copy" copies the
logits to another tensor.

Errors are against float64. That of the loss is relative to the mean size of the advantages. The others are relative
norms: log-probs, the gradient of 64 rows of the hidden states, and the gradient of the weight for 32 sampled tokens and
for 32 other tokens.

Rivals, each with the loss in plain torch: torch eager and torch.compile with all logits; TRL's chunked log-probs; the
log-probs of cut-cross-entropy with its defaults and with all gradients. By default it leaves tiles of small
probabilities out of the gradient; their number depends on ids and data, and here ids are drawn evenly. Also Liger's
fused linear GRPO loss, with its float32 products in float32 (torch's default) and in TF32. Frozen heads, torch.compile
and different sizes of the workspace are measured at the first two shapes, and not in the sweep.
"""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kernel_coder
import torch
from kernel_coder import ops
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers that all benchmarks share
from rivals import EPSILON, SEQUENCES, SPEC, Batch, eager_logprobs, relative, trl_chunked
from side_by_side import MIB, Contender, Row, compare, measure, median_of, parser_for, varied, version_of

REFERENCE = {
    "tokens": 8192,
    "vocab": 151936,
    "hidden": 2048,
    "masked": 0.0,
    "zero_advantage": 0.0,
    "policy": "off",
}
WIDER = {**REFERENCE, "hidden": 4096}
SMALL = {**REFERENCE, "tokens": 128, "vocab": 1003, "hidden": 64}
WORKSPACES_GIB = (0.3, 0.52, 0.6, 1.2, 2.4)
BF16, FP32 = torch.bfloat16, torch.float32
Loss = Callable[[Tensor, Tensor], Tensor]

SWEEP = {
    "masked": (0.5, 0.9),
    "zero_advantage": (0.5,),
    "policy": ("on",),
    "vocab": (49152, 128256, 262144),
    "hidden": (576, 1024, 4096),
    "tokens": (2048, 32768, 65536),
}
"""Values that are tried one at a time, for --shapes sweep."""


class Case:
    """One batch, what the last contender made of it, and what is exact."""

    def __init__(self, point: Mapping[str, Any], device: str) -> None:
        self.point, self.device = dict(point), device
        tokens, vocab, width = point["tokens"], point["vocab"], point["hidden"]
        rng = torch.Generator(device=device).manual_seed(0)
        self.hidden = torch.randn(tokens, width, device=device, dtype=BF16, generator=rng)
        self.weight = torch.randn(vocab, width, device=device, dtype=BF16, generator=rng) / width**0.5
        self.batch = batch = Batch(
            tokens,
            vocab,
            device,
            masked=point["masked"],
            zero_advantage=point["zero_advantage"],
            off_policy=point["policy"] == "off",
        )
        self.columns = torch.cat([batch.ids[batch.checked[:32]], torch.arange(32, device=device)])
        self.clear()
        self.find_exact()

    def clear(self) -> None:
        self.leaves: list[Tensor] = []
        self.loss: Tensor | None = None
        self.logprobs: Tensor | None = None

    def run(self, loss: Loss, frozen: bool = False) -> None:
        self.leaves = [self.hidden.detach().requires_grad_(), self.weight.detach().requires_grad_(not frozen)]
        found = loss(*self.leaves)
        found.backward()
        self.loss = found.detach()

    def ours(self, on_host: bool = False, **options: Any) -> Loss:
        batch = self.batch
        place = "cpu" if on_host else self.device
        mask = None if batch.mask is None else batch.mask.to(place)
        cu_seqlens, advantages = batch.cu_seqlens.to(place), batch.advantages.to(place)

        def loss(hidden: Tensor, weight: Tensor) -> Tensor:
            out = ops.linear_grpo_loss(
                hidden,
                weight,
                batch.ids,
                advantages,
                SPEC,
                old_logprobs=batch.old,
                mask=mask,
                cu_seqlens=cu_seqlens,
                allow_sync=not on_host,
                **options,
            )
            if not options.get("skip_zero_advantage"):  # or the log-probs of skipped tokens are 0
                self.logprobs = out.logprobs.detach()
            return out.loss

        return loss

    def through(self, logprobs: Loss) -> Loss:
        """The loss as one writes it in torch, of another library's log-probs."""

        def loss(hidden: Tensor, weight: Tensor) -> Tensor:
            found = logprobs(hidden, weight)
            self.logprobs = found.detach()
            return self.batch.loss(found.float())

        return loss

    def eager(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return eager_logprobs(hidden @ weight.T, self.batch.ids)

    def compiled(self) -> Loss:
        batch = self.batch
        return torch.compile(lambda x, w: batch.loss(eager_logprobs(x @ w.T, batch.ids)), dynamic=False)

    def trl(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """As its patched model calls it."""
        mask, ids = self.batch.mask, self.batch.ids
        if mask is not None:
            hidden, ids = hidden[mask], ids[mask]
        logprobs, *_ = trl_chunked()(hidden, weight, None, ids, 1.0, 32768, None, 1.0, ("entropy",))
        return logprobs if mask is None else logprobs.new_zeros(mask.shape).masked_scatter(mask, logprobs)

    def cce(self, **options: Any) -> Loss:
        def logprobs(hidden: Tensor, weight: Tensor) -> Tensor:
            from cut_cross_entropy import linear_cross_entropy

            ids = self.batch.ids if self.batch.mask is None else self.batch.ids.where(self.batch.mask, -100)
            return -linear_cross_entropy(hidden, weight, ids, reduction="none", **options)

        return logprobs

    def liger(self, tf32: bool) -> Loss:
        batch, rows = self.batch, (SEQUENCES, self.batch.length)

        def loss(hidden: Tensor, weight: Tensor) -> Tensor:
            from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

            fused = LigerFusedLinearGRPOLoss(
                beta=0.0, use_ref_model=False, epsilon_low=EPSILON[0], epsilon_high=EPSILON[1], loss_type="dapo"
            )
            old = None if batch.old is None else batch.old.view(rows)
            with float32_products_in_tf32(tf32):
                found, _ = fused(
                    hidden.view(*rows, -1),
                    weight,
                    batch.ids.view(rows),
                    batch.weights.view(rows),
                    batch.advantages,
                    old_per_token_logps=old,
                )
            return found

        return loss

    def find_exact(self) -> None:
        """Every log-prob, then gradients, as many rows at a time as fit."""
        weight, ids, batch = self.weight.double(), self.batch.ids, self.batch
        logprobs = []
        for i in range(0, len(ids), 512):
            log_p = (self.hidden[i : i + 512].double() @ weight.T).log_softmax(-1)
            logprobs.append(log_p.gather(1, ids[i : i + 512, None])[:, 0])
        self.exact_logprobs = torch.cat(logprobs)
        batch.set_old(self.exact_logprobs.float())
        self.exact_loss, by_logprobs = batch.exact(self.exact_logprobs, batch.weights)

        def by_logits(rows: Tensor) -> tuple[Tensor, Tensor]:
            hidden, chosen = self.hidden[rows].double(), ids[rows, None]
            minus_p = (hidden @ weight.T).softmax(-1).neg_()
            one = torch.ones_like(chosen, dtype=torch.float64)
            return hidden, minus_p.scatter_add_(1, chosen, one).mul_(by_logprobs[rows, None])

        self.exact_by_hidden = by_logits(batch.checked)[1] @ weight
        self.exact_by_weight = torch.zeros(len(self.columns), weight.shape[1], device=self.device, dtype=torch.float64)
        for rows in by_logprobs.nonzero()[:, 0].split(512):
            hidden, gradient = by_logits(rows)
            self.exact_by_weight += gradient[:, self.columns].T @ hidden

    def errors(self) -> dict[str, float]:
        assert self.loss is not None
        batch, (hidden, weight) = self.batch, self.leaves
        assert hidden.grad is not None
        found = {
            "loss": batch.error_of_loss(self.loss, self.exact_loss),
            "grad_hidden": relative(hidden.grad[batch.checked], self.exact_by_hidden),
        }
        if weight.grad is not None:
            of_targets = len(self.columns) - 32
            by_weight, wanted = weight.grad[self.columns], self.exact_by_weight
            found["grad_weight"] = relative(by_weight[:of_targets], wanted[:of_targets])
            found["grad_weight_of_others"] = relative(by_weight[of_targets:], wanted[of_targets:])
        if self.logprobs is not None:
            counts = batch.weights > 0
            found["logprobs"] = relative(self.logprobs[counts], self.exact_logprobs[counts])
        return found


@contextlib.contextmanager
def float32_products_in_tf32(allowed: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def products(case: Case, frozen_too: bool) -> Iterator[Contender]:
    hidden, weight, batch, tokens = case.hidden, case.weight, case.batch, case.point["tokens"]
    logits = torch.empty(tokens, case.point["vocab"], device=case.device, dtype=BF16)
    by_logits = torch.empty_like(logits)
    for begin in range(0, tokens, 1024):  # the gradient of the loss, whatever its scale
        rows = slice(begin, min(begin + 1024, tokens))
        p = (hidden[rows] @ weight.T).float().softmax(-1)
        p.scatter_add_(1, batch.ids[rows, None], -torch.ones(p.shape[0], 1, device=case.device))
        by_logits[rows] = (p * batch.by_token[rows, None] / tokens).to(BF16)
    by_hidden, by_weight = torch.empty_like(hidden), torch.empty_like(weight)

    def three(frozen: bool) -> None:
        torch.mm(hidden, weight.T, out=logits)
        torch.mm(by_logits, weight, out=by_hidden)
        if not frozen:
            torch.mm(by_logits.T, hidden, out=by_weight)

    def floor(name: str, run: Callable[[], object]) -> Contender:
        return Contender(name, torch.__version__, run, kind="floor")

    yield floor("three products", lambda: three(False))
    if frozen_too:
        yield floor("two products", lambda: three(True))
        yield floor("copy", lambda: logits.copy_(by_logits))


def contenders(case: Case, quick: bool, table: bool) -> Iterator[Contender]:
    point = case.point

    def contender(name: str, version: str, loss: Loss, frozen: bool = False, **more: Any) -> Contender:
        work = "GRPO loss from hidden states, forward and backward"
        columns = {"work": f"{work}, frozen head" if frozen else work, **more.pop("columns", {})}
        return Contender(
            name,
            version,
            lambda: case.run(loss, frozen),
            prepare=case.clear,
            errors=case.errors,
            output_bytes=2 * (case.hidden.numel() + (0 if frozen else case.weight.numel())),
            columns=columns,
            **more,
        )

    def own(name: str = "kernel_coder", frozen: bool = False, **options: Any) -> Contender:
        logits, sums = options.get("logits_dtype") or FP32, options.get("weight_grad_dtype") or FP32
        columns = {
            "logits_dtype": str(logits).removeprefix("torch."),
            "weight_grad_dtype": "" if frozen else str(sums).removeprefix("torch."),
            "chunk_rows": options.get("chunk_rows", "default"),
            "workspace_mib": f"{workspace_mib(point, logits, options.get('chunk_rows')):.0f}",
        }
        loss = case.ours(**options)
        return contender(name, kernel_coder.__version__, loss, frozen, kind="ours", columns=columns)

    yield own(logits_dtype=BF16)
    if point["zero_advantage"]:
        yield own("kernel_coder, zero advantages skipped", logits_dtype=BF16, skip_zero_advantage=True)
    if quick and table:
        for gib in (0.52, 0.6):
            for sums in (FP32, BF16):
                yield own(logits_dtype=BF16, weight_grad_dtype=sums, chunk_rows=rows_in(point, BF16, gib))
    if not quick:
        yield own("kernel_coder, counts known on the host", logits_dtype=BF16, on_host=True)
        yield own()
        if table:
            yield own(frozen=True, logits_dtype=BF16)
            for logits in (BF16, FP32):
                for sums in (FP32, BF16):
                    for rows in dict.fromkeys(rows_in(point, logits, gib) for gib in WORKSPACES_GIB):
                        yield own(logits_dtype=logits, weight_grad_dtype=sums, chunk_rows=rows)
    if quick and not table:
        return
    eager = case.through(case.eager)
    trl, cce = version_of("trl"), version_of("cut-cross-entropy")
    for frozen in (False, True) if table and not quick else (False,):
        yield contender("TRL", trl, case.through(case.trl), frozen)
        yield contender("cut-cross-entropy", cce, case.through(case.cce()), frozen)
        if not quick:
            yield contender("torch eager", torch.__version__, eager, frozen)
    yield contender("Liger", version_of("liger-kernel"), case.liger(tf32=False))
    if table:
        yield contender("Liger, tf32", version_of("liger-kernel"), case.liger(tf32=True))
    if table and not quick:
        all_gradients = case.through(case.cce(filter_eps=None))
        yield contender("cut-cross-entropy, all gradients", cce, all_gradients)
        yield contender("torch.compile", torch.__version__, case.compiled())  # a graph for each shape takes its time


def rows_in(point: Mapping[str, Any], logits: torch.dtype, gib: float) -> int:
    rows = int(gib * 2**30) // (point["vocab"] * logits.itemsize)
    return max(16, min(rows, point["tokens"]) // 256 * 256)


def workspace_mib(point: Mapping[str, Any], logits: torch.dtype, rows: int | None) -> float:
    """Of the logits that are in memory at a time; by default as many as fit 1.25 GiB."""
    rows = min(point["tokens"], rows_in(point, logits, 1.25) if rows is None else rows)
    return rows * point["vocab"] * logits.itemsize / MIB


def side_by_side(point: Mapping[str, Any], arguments: Namespace) -> list[Row]:
    table = arguments.shapes != "sweep" and point in (REFERENCE, WIDER, SMALL)
    case = Case(point, arguments.device)
    found = compare(
        [*products(case, not arguments.quick), *contenders(case, arguments.quick, table)],
        arguments,
        {"work": "floor", **point},
    )
    three, two = median_of(found, "three products"), median_of(found, "two products")
    for row in found:
        if "median_ms" in row and row["implementation"] != "copy":
            frozen = row["implementation"] == "two products" or row["work"].endswith("frozen head")
            row["of_floor"] = f"{float(row['median_ms']) / (two if frozen else three):.3f}"
    return found


def main() -> None:
    arguments = parser_for(__doc__, runs=15).parse_args()
    arguments.shapes = arguments.shapes or ("reference" if arguments.device == "cuda" else "small")
    partly = [{"masked": 0.5}, {"zero_advantage": 0.5}]
    points = {
        "small": [SMALL, *({**SMALL, **some} for some in partly), {**SMALL, "policy": "on"}],
        "reference": [REFERENCE, WIDER, *({**REFERENCE, **some} for some in partly)],
        "sweep": varied(REFERENCE, SWEEP),
    }
    measure("linear_grpo_loss", arguments, points[arguments.shapes], lambda point: side_by_side(point, arguments))


if __name__ == "__main__":
    main()
