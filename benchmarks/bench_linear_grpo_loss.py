"""The GRPO loss from hidden states, forward and backward, against the matrix products alone and other libraries.

    python benchmarks/bench_linear_grpo_loss.py                    # rows into results/linear_grpo_loss_cuda.csv
    python benchmarks/bench_linear_grpo_loss.py --shapes sweep     # rows into results/linear_grpo_loss_sweep.csv

All contenders take the same batch (16 answers of equal length, DAPO's loss: clipped ratio, mean over tokens), bfloat16
hidden states and head. "three products" is the floor: logits, gradient of hidden, gradient of weight, each one cuBLAS
product over all rows, with the gradient of the loss as data (a card at its power limit is faster or slower with other
numbers); "two products" is the floor of a frozen head. `of_floor` is time over that of the three (two) products.
`peak_mib` is beyond inputs and the gradients of hidden and weight in bfloat16; `workspace_mib` of it are the logits.
Errors are relative norms against float64: log-probs, the gradient of 64 rows of hidden, of 64 rows of the weight.

rivals: torch eager and torch.compile with all logits; TRL's chunked log-probs; cut-cross-entropy's log-probs; each with
the loss in torch; Liger's fused linear GRPO loss, compiled, as its trainer calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import kernel_coder
import torch
from kernel_coder import ops
from rivals import EPSILON, SEQUENCES, SPEC, Batch, eager_logprobs, relative, trl_chunked
from side_by_side import MIB, Contender, about_this_run, compare, median_of, parser_for, show, version_of, write
from torch import Tensor

REFERENCE = {"tokens": 8192, "vocab": 151936, "hidden": 2048, "masked": 0.0, "zero_advantage": 0.0, "policy": "off"}
BF16, FP32 = torch.bfloat16, torch.float32


class Case:
    def __init__(self, point: Mapping[str, Any]) -> None:
        self.point = dict(point)
        tokens, vocab, width = point["tokens"], point["vocab"], point["hidden"]
        rng = torch.Generator(device="cuda").manual_seed(0)
        self.hidden = torch.randn(tokens, width, device="cuda", dtype=BF16, generator=rng)
        self.weight = torch.randn(vocab, width, device="cuda", dtype=BF16, generator=rng) / width**0.5
        self.batch = Batch(
            tokens,
            vocab,
            masked=point["masked"],
            zero_advantage=point["zero_advantage"],
            off_policy=point["policy"] == "off",
        )
        self.batch.set_old(ops.linear_token_logprobs(self.hidden, self.weight, self.batch.ids).logprobs)
        self.host = {name: getattr(self.batch, name) for name in ("mask", "cu_seqlens", "advantages")}
        self.host = {name: None if x is None else x.cpu() for name, x in self.host.items()}
        self.leaves: list[Tensor] = []
        self.logprobs: Tensor | None = None

    def workspace_mib(self, rows: int | None, dtype: torch.dtype) -> float:
        row = 2 * self.point["vocab"] * (2 if dtype == FP32 else 1)
        if rows is None:  # what the op chooses: even chunks of at most 1.25 GiB
            most = (1280 << 20) // row // 256 * 256
            chunks = -(-self.point["tokens"] // most)
            rows = -(-self.point["tokens"] // chunks // 256) * 256
        return min(rows, self.point["tokens"]) * row / MIB

    def clear(self) -> None:
        self.leaves, self.logprobs = [], None

    def run(self, loss: Callable[[Tensor, Tensor], Tensor], frozen: bool = False) -> None:
        self.leaves = [self.hidden.detach().requires_grad_(), self.weight.detach().requires_grad_(not frozen)]
        loss(*self.leaves).backward()

    def ours(self, hidden: Tensor, weight: Tensor, on_host: bool = False, **options: Any) -> Tensor:
        chosen = self.host if on_host else {name: getattr(self.batch, name) for name in self.host}
        out = ops.linear_grpo_loss(
            hidden,
            weight,
            self.batch.ids,
            chosen["advantages"],
            SPEC,
            old_logprobs=self.batch.old,
            mask=chosen["mask"],
            cu_seqlens=chosen["cu_seqlens"],
            allow_sync=not on_host,
            **options,
        )
        self.logprobs = out.logprobs
        return out.loss

    def eager(self, hidden: Tensor, weight: Tensor) -> Tensor:
        self.logprobs = eager_logprobs(hidden @ weight.T, self.batch.ids)
        return self.batch.loss(self.logprobs)

    def compiled(self) -> Callable[[Tensor, Tensor], Tensor]:
        batch = self.batch
        function = torch.compile(lambda x, w: batch.loss(eager_logprobs(x @ w.T, batch.ids)), dynamic=False)
        return lambda hidden, weight: function(hidden, weight)

    def trl(self, hidden: Tensor, weight: Tensor) -> Tensor:
        mask, ids = self.batch.mask, self.batch.ids
        chosen = (hidden, ids) if mask is None else (hidden[mask], ids[mask])
        apply = trl_chunked()
        assert apply is not None
        logprobs, *_ = apply(chosen[0], weight, None, chosen[1], 1.0, 32768, None, 1.0, ("entropy",))
        self.logprobs = logprobs if mask is None else logprobs.new_zeros(mask.shape).masked_scatter(mask, logprobs)
        return self.batch.loss(self.logprobs)

    def cce(self, hidden: Tensor, weight: Tensor) -> Tensor:
        from cut_cross_entropy import linear_cross_entropy

        ids = self.batch.ids if self.batch.mask is None else self.batch.ids.where(self.batch.mask, -100)
        self.logprobs = -linear_cross_entropy(hidden, weight, ids, reduction="none")
        return self.batch.loss(self.logprobs.float())

    def liger(self) -> Callable[[Tensor, Tensor], Tensor]:
        from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

        loss = LigerFusedLinearGRPOLoss(
            beta=0.0, use_ref_model=False, epsilon_low=EPSILON[0], epsilon_high=EPSILON[1], loss_type="dapo"
        )
        batch, rows = self.batch, (SEQUENCES, self.batch.length)

        def run(hidden: Tensor, weight: Tensor) -> Tensor:
            old = None if batch.old is None else batch.old.view(rows)
            mask = batch.weights.view(rows)
            out, _ = loss(
                hidden.view(*rows, -1), weight, batch.ids.view(rows), mask, batch.advantages, old_per_token_logps=old
            )
            return out

        return run

    # What is exact, on some rows of each result.
    def exact(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if not hasattr(self, "_exact"):
            tokens, step = self.point["tokens"], 512
            weight, ids = self.weight.double(), self.batch.ids
            columns = torch.cat([ids[:32], torch.arange(32, device="cuda")])
            logprobs, by_weight, by_hidden = [], 0.0, None
            for begin in range(0, tokens, step):
                hidden = self.hidden[begin : begin + step].double()
                log_p = (hidden @ weight.T).log_softmax(-1)
                logprobs.append(log_p.gather(1, ids[begin : begin + step, None])[:, 0])
                del log_p
            all_logprobs = torch.cat(logprobs)
            gradient = self.batch.exact_gradient(all_logprobs)
            for begin in range(0, tokens, step):
                hidden = self.hidden[begin : begin + step].double()
                by_logits = (hidden @ weight.T).softmax(-1).neg_()
                chosen = ids[begin : begin + step, None]
                by_logits.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=torch.float64))
                by_logits *= gradient[begin : begin + step, None]
                if by_hidden is None:
                    by_hidden = by_logits[:64] @ weight
                by_weight = by_weight + by_logits[:, columns].T @ hidden
                del by_logits
            assert by_hidden is not None
            self._exact = (all_logprobs, by_hidden, columns, by_weight)
        return self._exact

    def errors(self) -> dict[str, float]:
        logprobs, by_hidden, columns, by_weight = self.exact()
        found = {"error_grad_hidden": relative(self.leaves[0].grad[:64], by_hidden)}
        if self.leaves[1].grad is not None:
            found["error_grad_weight"] = relative(self.leaves[1].grad[columns], by_weight)
        if self.logprobs is not None and len(self.logprobs) == len(logprobs):
            counts = self.batch.weights > 0
            found["error_logprobs"] = relative(self.logprobs.detach()[counts], logprobs[counts])
        if max(found.values()) > 0.1:
            raise AssertionError(f"another loss: {found}")
        return found


def products(case: Case) -> Iterator[Contender]:
    hidden, weight, tokens = case.hidden, case.weight, case.point["tokens"]
    logits = torch.empty(tokens, case.point["vocab"], device="cuda", dtype=BF16)
    by_logits = torch.empty_like(logits)
    for begin in range(0, tokens, 1024):  # the gradient of the loss, whatever its scale
        rows = slice(begin, min(begin + 1024, tokens))
        p = (hidden[rows] @ weight.T).float().softmax(-1)
        p.scatter_add_(1, case.batch.ids[rows, None], -torch.ones(p.shape[0], 1, device="cuda"))
        by_logits[rows] = (p * case.batch.by_token[rows, None] / tokens).to(BF16)
    by_hidden, by_weight = torch.empty_like(hidden), torch.empty_like(weight)

    def three(frozen: bool) -> None:
        torch.mm(hidden, weight.T, out=logits)
        torch.mm(by_logits, weight, out=by_hidden)
        if not frozen:
            torch.mm(by_logits.T, hidden, out=by_weight)

    yield Contender("three products", torch.__version__, lambda: three(False))
    yield Contender("two products", torch.__version__, lambda: three(True))


def contenders(case: Case, rivals: bool, table: bool) -> Iterator[Contender]:
    ours, outputs = kernel_coder.__version__, 2 * (case.hidden.numel() + case.weight.numel())

    def own(name: str, frozen: bool = False, errors: bool = True, **options: Any) -> Contender:
        dtype = options.get("logits_dtype") or FP32
        rows = options.get("chunk_rows")
        sums = options.get("weight_grad_dtype") or FP32
        return Contender(
            name,
            ours,
            lambda: case.run(lambda x, w: case.ours(x, w, **options), frozen),
            prepare=case.clear,
            errors=case.errors if errors else None,
            output_bytes=2 * case.hidden.numel() if frozen else outputs,
            columns={
                "logits_dtype": str(dtype).removeprefix("torch."),
                "weight_grad_dtype": str(sums).removeprefix("torch."),
                "chunk_rows": rows or "default",
                "workspace_mib": f"{case.workspace_mib(rows, dtype):.0f}",
            },
        )

    yield own("kernel_coder, bfloat16 logits", logits_dtype=BF16)
    yield own("kernel_coder, float32 logits")
    yield own("kernel_coder, bfloat16 logits, counts known on the host", logits_dtype=BF16, on_host=True)
    if case.point["zero_advantage"]:
        yield own("kernel_coder, bfloat16 logits, zero advantages skipped", logits_dtype=BF16, skip_zero_advantage=True)
    if table:
        yield own("kernel_coder, frozen head", frozen=True, logits_dtype=BF16)
        for dtype in (BF16, FP32):
            for sums in (FP32, BF16):
                for rows in (1024, 1792, 2048, 4096, 8192):
                    yield own("kernel_coder", logits_dtype=dtype, weight_grad_dtype=sums, chunk_rows=rows)
    if not rivals:
        return

    def rival(name: str, version: str, loss: Callable[[Tensor, Tensor], Tensor]) -> Contender:
        return Contender(name, version, lambda: case.run(loss), case.clear, case.errors, outputs)

    if version := version_of("trl"):
        yield rival("TRL", version, case.trl)
    if version := version_of("cut-cross-entropy"):
        yield rival("cut-cross-entropy", version, case.cce)
    if version := version_of("liger-kernel"):
        yield rival("Liger", version, case.liger())
        yield rival("Liger, float32 products in TF32", version, with_tf32(case.liger()))
    if table:  # a graph for each shape takes its time
        yield rival("torch.compile", torch.__version__, case.compiled())
    yield rival("torch eager", torch.__version__, case.eager)


def with_tf32(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss, with TF32 allowed in its forward, where Liger forms the gradients."""

    def run(hidden: Tensor, weight: Tensor) -> Tensor:
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            return loss(hidden, weight)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    return run


def sweep() -> Iterator[dict[str, Any]]:
    for name, values in {
        "vocab": (49152, 128256, 262144),
        "hidden": (576, 1024, 4096),
        "tokens": (2048, 32768, 65536),
        "masked": (0.5, 0.9),
        "zero_advantage": (0.5,),
        "policy": ("on",),
    }.items():
        for value in values:
            yield {**REFERENCE, name: value}


def main() -> None:
    parser = parser_for(__doc__, "linear_grpo_loss_cuda.csv", runs=15)
    parser.add_argument("--no-rivals", action="store_true")
    arguments = parser.parse_args()
    if arguments.shapes == "sweep":
        arguments.out = arguments.out.with_name("linear_grpo_loss_sweep.csv")
        points = list(sweep())
    else:
        points = [REFERENCE, {**REFERENCE, "hidden": 4096}]
        points += [{**REFERENCE, "masked": 0.5}, {**REFERENCE, "zero_advantage": 0.5}]
    about, rows = about_this_run(arguments), []
    for point in points:
        is_reference = arguments.shapes == "reference" and not (point["masked"] or point["zero_advantage"])
        case = Case(point)
        rivals = not arguments.no_rivals
        found = compare([*products(case), *contenders(case, rivals, table=is_reference)], arguments, point)
        floors = {frozen: median_of(found, f"{'two' if frozen else 'three'} products") for frozen in (False, True)}
        for row in found:
            if "median_ms" in row:
                frozen = row["implementation"] in ("two products", "kernel_coder, frozen head")
                row["of_floor"] = f"{float(row['median_ms']) / floors[frozen]:.3f}"
            rows.append({**row, **about})
            show(row)
        del case
        torch.cuda.empty_cache()
        write(arguments.out, rows, last=("failure", *about))


if __name__ == "__main__":
    main()
