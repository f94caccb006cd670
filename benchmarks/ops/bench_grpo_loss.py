"""Measures the GRPO loss from logits, forward and backward, beside a copy and other libraries.

    python benchmarks/ops/bench_grpo_loss.py                    # rows into results/grpo_loss_cuda.csv
    python benchmarks/ops/bench_grpo_loss.py --shapes sweep     # rows into results/grpo_loss_sweep.csv

side_by_side.py explains how contenders are timed. All of them have the same batch in bfloat16: 16 answers of equal
length, and DAPO's loss (clipped ratio, mean over tokens). The gradient is written to a new tensor, or over the logits
("in place"). "copy" copies the logits to another tensor. `of_bound` is the time that the necessary bytes would take at
the copy's rate, divided by the measured time: each logit is read once and its gradient written once; for a masked row
only the gradient is written. `of_full` is the time divided by that of the same work without masked tokens and zero
advantages.

Errors are against float64. That of the loss is relative to the mean size of the advantages. The others are relative
norms on 64 rows: log-probs, and the gradient of the logits, for the sampled tokens and for all other tokens. Liger's
kernel takes [sequences, length + 1, vocab] and leaves out the last row of each sequence. So it has 16 rows less to do,
and is checked against the loss of the other rows. torch.compile is measured at the first shape only.
"""

from __future__ import annotations

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
from rivals import EPSILON, SEQUENCES, SPEC, Batch, Through, eager_logprobs, relative, trl, verl_logprobs
from side_by_side import Contender, Row, compare, measure, median_of, parser_for, varied, version_of

REFERENCE = {"tokens": 8192, "vocab": 151936, "masked": 0.0, "zero_advantage": 0.0, "policy": "off"}
SMALL = {**REFERENCE, "tokens": 128, "vocab": 1003}
Loss = Callable[[Tensor], Tensor]

SWEEP = {
    "masked": (0.5, 0.9),
    "zero_advantage": (0.5,),
    "policy": ("on",),
    "vocab": (49152, 128256, 262144),
    "tokens": (2048, 32768, 65536),
}
"""Values that are tried one at a time, for --shapes sweep."""


class Case:
    """One batch, what the last contender made of it, and what is exact."""

    def __init__(self, point: Mapping[str, Any], device: str) -> None:
        rng = torch.Generator(device=device).manual_seed(0)
        shape = (point["tokens"], point["vocab"])
        self.original = torch.randn(shape, device=device, dtype=torch.bfloat16, generator=rng)
        self.logits = self.original.clone()
        self.batch = Batch(
            *shape,
            device,
            masked=point["masked"],
            zero_advantage=point["zero_advantage"],
            off_policy=point["policy"] == "off",
        )
        self.exact_logprobs = torch.cat([self.log_softmax(slice(i, i + 256)) for i in range(0, shape[0], 256)])
        self.batch.set_old(self.exact_logprobs.float())
        self.restore()

    def log_softmax(self, rows: slice) -> Tensor:
        log_p = self.original[rows].double().log_softmax(-1)
        return log_p.gather(1, self.batch.ids[rows, None])[:, 0]

    def restore(self) -> None:
        """What ran before may have left a gradient in the logits, and holds its results."""
        self.loss: Tensor | None = None
        self.logprobs: Tensor | None = None
        self.gradient: Tensor | None = None
        self.logits.copy_(self.original)

    def run(self, loss: Loss, inplace: bool = False) -> None:
        leaf = self.logits.detach().requires_grad_()
        found = loss(Through.apply(leaf) if inplace else leaf)
        found.backward()
        self.loss, self.gradient = found.detach(), self.logits if inplace else leaf.grad

    def ours(self, inplace: bool) -> Loss:
        batch = self.batch

        def loss(logits: Tensor) -> Tensor:
            out = ops.grpo_loss(
                logits,
                batch.ids,
                batch.advantages,
                SPEC,
                old_logprobs=batch.old,
                mask=batch.mask,
                cu_seqlens=batch.cu_seqlens,
                inplace=inplace,
            )
            self.logprobs = out.logprobs.detach()
            return out.loss

        return loss

    def through(self, logprobs: Callable[[Tensor, Tensor], Tensor]) -> Loss:
        """The loss as one writes it in torch, of another library's log-probs."""

        def loss(logits: Tensor) -> Tensor:
            found = logprobs(logits, self.batch.ids)
            self.logprobs = found.detach()
            return self.batch.loss(found.float())

        return loss

    def trl(self, logits: Tensor, ids: Tensor) -> Tensor:
        return trl(logits, ids, self.batch.mask)[0]

    def compiled(self) -> Loss:
        batch = self.batch
        return torch.compile(lambda x: batch.loss(eager_logprobs(x, batch.ids)), dynamic=False)

    def liger(self, inplace: bool) -> Loss:
        rows, batch = (SEQUENCES, self.batch.length), self.batch

        def shorter(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.view(rows)[:, :-1].contiguous()

        old, ids, mask = shorter(batch.old), shorter(batch.ids), shorter(batch.weights.int())

        def loss(logits: Tensor) -> Tensor:
            from liger_kernel.ops.grpo_loss import GrpoLossFunction

            found, *_ = GrpoLossFunction.apply(
                logits.view(*rows, -1), old, None, ids, batch.advantages, mask, 1.0, 0.0, *EPSILON, inplace, "dapo"
            )
            return found

        return loss

    def errors(self, without_last: bool = False) -> dict[str, float]:
        assert self.loss is not None
        assert self.gradient is not None
        batch, rows = self.batch, self.batch.checked
        weights = batch.without_last() if without_last else batch.weights
        loss, by_logprobs = batch.exact(self.exact_logprobs, weights)
        ids = batch.ids[rows, None]
        wanted = self.original[rows].double().softmax(-1).neg_()
        wanted.scatter_add_(1, ids, torch.ones_like(ids, dtype=torch.float64))
        wanted *= by_logprobs[rows, None]
        found, target = self.gradient[rows].double(), torch.zeros_like(wanted, dtype=torch.bool).scatter_(1, ids, True)
        errors = {
            "loss": batch.error_of_loss(self.loss, loss),
            "gradient": relative(found, wanted),
            "gradient_of_targets": relative(found[target], wanted[target]),
            "gradient_of_others": relative(found.where(~target, 0), wanted.where(~target, 0)),
        }
        if self.logprobs is not None:
            kept = rows[weights[rows] > 0]
            errors["logprobs"] = relative(self.logprobs[kept], self.exact_logprobs[kept])
        return errors


def contenders(case: Case, quick: bool, compiles: bool) -> Iterator[Contender]:
    torch_version, liger = torch.__version__, version_of("liger-kernel")

    def contender(name: str, version: str, loss: Loss, inplace: bool = False, **more: Any) -> Contender:
        more = {"errors": case.errors, **more}
        size = 0 if inplace else 2 * case.logits.numel()
        return Contender(name, version, lambda: case.run(loss, inplace), case.restore, output_bytes=size, **more)

    def own(name: str, inplace: bool) -> Contender:
        return contender(name, kernel_coder.__version__, case.ours(inplace), inplace, kind="ours")

    def ligers(name: str, inplace: bool) -> Contender:
        columns = {"note": "without the last row of each sequence"}
        return contender(
            name, liger, case.liger(inplace), inplace, errors=lambda: case.errors(without_last=True), columns=columns
        )

    yield Contender("copy", torch_version, lambda: case.logits.copy_(case.original), kind="floor")
    yield own("kernel_coder, in place", inplace=True)
    yield ligers("Liger, in place", inplace=True)
    if quick:
        return
    yield own("kernel_coder", inplace=False)
    yield ligers("Liger", inplace=False)
    yield contender("TRL's log-probs", version_of("trl"), case.through(case.trl))
    yield contender("verl's formula", torch_version, case.through(verl_logprobs))
    if compiles:
        yield contender("torch.compile", torch_version, case.compiled())
    yield contender("torch eager", torch_version, case.through(eager_logprobs))


def side_by_side(point: Mapping[str, Any], arguments: Namespace) -> list[Row]:
    case = Case(point, arguments.device)
    work = {"work": "GRPO loss from logits, forward and backward", **point, "dtype": "bfloat16"}
    compiles = point in (REFERENCE, SMALL)
    rows = compare(contenders(case, arguments.quick, compiles), arguments, work)
    bytes_of_a_logit = 2 * float(case.batch.weights.mean()) + 2
    for row in rows:
        if "median_ms" in row and row["implementation"] != "copy":
            bound = median_of(rows, "copy") / 4 * bytes_of_a_logit
            row["of_bound"] = f"{bound / float(row['median_ms']):.3f}"
    return rows


def main() -> None:
    arguments = parser_for(__doc__).parse_args()
    arguments.shapes = arguments.shapes or ("reference" if arguments.device == "cuda" else "small")
    partly = [{"masked": 0.5}, {"zero_advantage": 0.5}]
    points = {
        "small": [SMALL, *({**SMALL, **some} for some in partly), {**SMALL, "policy": "on"}],
        "reference": [REFERENCE] if arguments.quick else [REFERENCE, *({**REFERENCE, **some} for some in partly)],
        "sweep": varied(REFERENCE, SWEEP),
    }
    measure("grpo_loss", arguments, points[arguments.shapes], lambda point: side_by_side(point, arguments))


if __name__ == "__main__":
    main()
