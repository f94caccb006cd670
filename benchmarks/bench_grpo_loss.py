"""The GRPO loss from logits, forward and backward, against a copy and other libraries.

    python benchmarks/bench_grpo_loss.py                    # rows into results/grpo_loss_cuda.csv
    python benchmarks/bench_grpo_loss.py --shapes sweep     # rows into results/grpo_loss_sweep.csv

All contenders take the same batch (16 answers of equal length, DAPO's loss: clipped ratio, mean over tokens), bfloat16
logits. "copy" moves the logits from one tensor into another; `of_bound` is the time that the copy's rate allows for 4
bytes a logit, read once and its gradient written once, over the time taken. Errors are relative norms against float64
on 64 rows: log-probs; the gradient of the logits, of the sampled tokens and of all others apart. Liger's kernel takes
[sequences, length + 1, vocab] and leaves out the last row of each sequence: it is given one row less of work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import kernel_coder
import torch
from kernel_coder import ops
from rivals import EPSILON, SEQUENCES, SPEC, Batch, Through, eager_logprobs, relative, trl_logprobs, verl_formula
from side_by_side import Contender, about_this_run, compare, median_of, parser_for, show, version_of, write
from torch import Tensor

REFERENCE = {"tokens": 8192, "vocab": 151936, "masked": 0.0, "zero_advantage": 0.0, "policy": "off"}
CHECKED_ROWS = 64


class Case:
    def __init__(self, point: Mapping[str, Any]) -> None:
        self.point = dict(point)
        rng = torch.Generator(device="cuda").manual_seed(0)
        shape = (point["tokens"], point["vocab"])
        self.original = torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=rng)
        self.logits = self.original.clone()
        self.batch = Batch(
            *shape,
            masked=point["masked"],
            zero_advantage=point["zero_advantage"],
            off_policy=point["policy"] == "off",
        )
        self.batch.set_old(ops.token_logprobs(self.logits, self.batch.ids).logprobs)
        self.gradient: Tensor | None = None
        self.logprobs: Tensor | None = None

    def restore(self) -> None:
        """What ran before may have left a gradient in the logits, and holds its results."""
        self.logprobs = self.gradient = None
        self.logits.copy_(self.original)

    def run(self, loss: Callable[[Tensor], Tensor], inplace: bool = False) -> None:
        leaf = self.logits.detach().requires_grad_()
        loss(Through.apply(leaf) if inplace else leaf).backward()
        self.gradient = self.logits if inplace else leaf.grad

    def ours(self, logits: Tensor, inplace: bool) -> Tensor:
        batch = self.batch
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
        self.logprobs = out.logprobs
        return out.loss

    def through(self, logprobs: Callable[[Tensor, Tensor], Any]) -> Callable[[Tensor], Tensor]:
        def loss(logits: Tensor) -> Tensor:
            found = logprobs(logits, self.batch.ids)
            found = found[0] if isinstance(found, tuple) else found
            self.logprobs = found.detach()
            return self.batch.loss(found.float())

        return loss

    def compiled(self) -> Callable[[Tensor], Tensor]:
        batch = self.batch
        return torch.compile(lambda x: batch.loss(eager_logprobs(x, batch.ids)), dynamic=False)

    def liger(self, inplace: bool) -> Callable[[Tensor], Tensor]:
        from liger_kernel.ops.grpo_loss import GrpoLossFunction

        rows, batch = (SEQUENCES, self.batch.length), self.batch

        def shorter(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.view(rows)[:, :-1].contiguous()

        old, ids, mask = shorter(batch.old), shorter(batch.ids), shorter(batch.weights.int())

        def loss(logits: Tensor) -> Tensor:
            found, *_ = GrpoLossFunction.apply(
                logits.view(*rows, -1), old, None, ids, batch.advantages, mask, 1.0, 0.0, *EPSILON, inplace, "dapo"
            )
            return found

        return loss

    def errors(self) -> dict[str, float]:
        assert self.gradient is not None
        rows = slice(0, CHECKED_ROWS)
        log_p = self.original[rows].double().log_softmax(-1)
        ids = self.batch.ids[rows, None]
        logprobs = log_p.gather(1, ids)[:, 0]
        wanted = log_p.exp().neg_().scatter_add_(1, ids, torch.ones_like(ids, dtype=torch.float64))
        wanted *= self.batch.exact_gradient(logprobs)[:, None]
        found, target = self.gradient[rows].double(), torch.zeros_like(wanted, dtype=torch.bool).scatter_(1, ids, True)
        errors = {
            "error_gradient_of_target": relative(found[target], wanted[target]),
            "error_gradient_of_others": relative(found.where(~target, 0), wanted.where(~target, 0)),
        }
        if self.logprobs is not None:
            counts = self.batch.weights[rows] > 0
            errors["error_logprobs"] = relative(self.logprobs.detach()[rows][counts], logprobs[counts])
        if max(errors.values()) > 0.1:
            raise AssertionError(f"another loss: {errors}")
        return errors


def contenders(case: Case, compiles: bool) -> Iterator[Contender]:
    size = 2 * case.logits.numel()
    other = torch.empty_like(case.logits)
    yield Contender("copy", torch.__version__, lambda: other.copy_(case.original))

    def contender(
        name: str, version: str, loss: Callable[[Tensor], Tensor], inplace: bool = False, errors: bool = True
    ) -> Contender:
        return Contender(
            name,
            version,
            lambda: case.run(loss, inplace),
            prepare=case.restore,
            errors=case.errors if errors else None,
            output_bytes=0 if inplace else size,
        )

    ours = kernel_coder.__version__
    yield contender("kernel_coder, in place", ours, lambda x: case.ours(x, True), inplace=True)
    yield contender("kernel_coder", ours, lambda x: case.ours(x, False))
    if version := version_of("liger-kernel"):
        # Its gradient is that of fewer tokens: compared with ours in the tests of the project, not here.
        yield contender("Liger, in place", version, case.liger(True), inplace=True, errors=False)
        yield contender("Liger", version, case.liger(False), errors=False)
    if (version := version_of("trl")) and (kernel := trl_logprobs()):
        yield contender("TRL's log-prob kernel", version, case.through(kernel))
    yield contender("verl's formula", torch.__version__, case.through(verl_formula))
    if compiles:
        yield contender("torch.compile", torch.__version__, case.compiled())
    yield contender("torch eager", torch.__version__, case.through(eager_logprobs))


def sweep() -> Iterator[dict[str, Any]]:
    for name, values in {
        "vocab": (49152, 128256, 262144),
        "tokens": (2048, 32768, 65536),
        "masked": (0.5, 0.9),
        "zero_advantage": (0.5,),
        "policy": ("on",),
    }.items():
        for value in values:
            yield {**REFERENCE, name: value}


def main() -> None:
    arguments = parser_for(__doc__, "grpo_loss_cuda.csv").parse_args()
    if arguments.shapes == "sweep":
        arguments.out = arguments.out.with_name("grpo_loss_sweep.csv")
    points = list(sweep()) if arguments.shapes == "sweep" else [REFERENCE]
    about, rows = about_this_run(arguments), []
    for point in points:
        case = Case(point)
        found = compare(contenders(case, compiles=point == REFERENCE), arguments, point)
        copy = median_of(found, "copy")
        for row in found:
            if "median_ms" in row:
                row["of_bound"] = f"{copy / float(row['median_ms']):.3f}"
            rows.append({**row, **about})
            show(row)
        del case
        torch.cuda.empty_cache()
        write(arguments.out, rows, last=("failure", *about))


if __name__ == "__main__":
    main()
