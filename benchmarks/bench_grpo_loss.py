"""token_logprobs and grpo_loss on CUDA against Liger's and TRL's Triton kernels and a copy, in one process.

    python benchmarks/bench_grpo_loss.py        # rows into benchmarks/results/grpo_loss_cuda.csv

A time is the median of --runs launches by CUDA events, forward and backward; p20 and p80 beside it. Each run follows a
copy that restores the logits, so that the device is busy while the host prepares the launches, as in a training step.
`bandwidth_share` is the rate at which the bytes that the work must move are moved (2 an element of bfloat16 to score, 4
for loss and gradient; of all rows, masked or not), against a copy timed in the same run. `peak_mib` is what the call
allocates beside its inputs. `logprob_error` is the largest distance of a log-prob from float64, relative to it. Rivals
that are not installed are left out.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import importlib.util
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kernel_coder
import torch
from kernel_coder import LossSpec, ops, reference
from torch import Tensor

Run = Callable[[], Any]
COLUMNS = [
    *("work", "implementation", "version", "tokens", "vocab", "masked", "zero_advantage"),
    *("median_ms", "p20_ms", "p80_ms", "bandwidth_share", "peak_mib", "logprob_error", "copy_ms"),
    *("device", "torch", "cuda", "commit", "command"),
]


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def milliseconds(run: Run, runs: int, prepare: Run = lambda: None) -> tuple[float, float, float]:
    for _ in range(3):
        prepare()
        run()
    times = []
    for _ in range(runs):
        torch.cuda.synchronize()
        prepare()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    times.sort()
    return times[len(times) // 2], times[len(times) // 5], times[len(times) * 4 // 5]


def peak_mib(run: Run) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


class Case:
    """A batch of answers of equal length; Liger takes it as [sequences, length, vocab]."""

    def __init__(self, tokens: int, vocab: int, masked: float, idle: float) -> None:
        torch.manual_seed(0)
        self.sequences = 16
        self.original = torch.randn(tokens, vocab, device="cuda", dtype=torch.bfloat16)
        self.logits = self.original.clone()
        self.ids = torch.randint(0, vocab, (tokens,), device="cuda")
        self.mask = None if masked == 0 else torch.rand(tokens, device="cuda") >= masked
        self.advantages = torch.randn(tokens, device="cuda")
        self.advantages[torch.rand(tokens, device="cuda") < idle] = 0
        self.old = ops.token_logprobs(self.logits, self.ids).logprobs + 0.1 * torch.randn(tokens, device="cuda")

    def restore(self) -> None:
        """What ran before may have left a gradient in the logits."""
        self.logits.copy_(self.original)

    def ours_inplace(self, logits: Tensor) -> None:
        leaf = logits.detach().requires_grad_()
        # The view is no leaf, so it may be overwritten; its gradient stops at the identity below.
        out = ops.grpo_loss(
            _Through.apply(leaf),
            self.ids,
            self.advantages,
            LossSpec.preset("dapo"),
            old_logprobs=self.old,
            mask=self.mask,
            inplace=True,
        )
        out.loss.backward()

    def ours(self, logits: Tensor) -> None:
        leaf = logits.detach().requires_grad_()
        out = ops.grpo_loss(
            leaf, self.ids, self.advantages, LossSpec.preset("dapo"), old_logprobs=self.old, mask=self.mask
        )
        out.loss.backward()

    def liger(self, logits: Tensor, inplace: bool) -> None:
        from liger_kernel.ops.grpo_loss import GrpoLossFunction

        shape = (self.sequences, len(self.ids) // self.sequences)
        leaf = logits.detach().view(*shape, -1).requires_grad_()
        rows = [x.view(shape)[:, :-1].contiguous() for x in (self.old, self.ids, self._mask())]
        advantages = self.advantages.view(shape)[:, 0].contiguous()
        loss, *_ = GrpoLossFunction.apply(
            _Through.apply(leaf), rows[0], None, rows[1], advantages, rows[2], 1.0, 0.0, 0.2, 0.28, inplace, "dapo"
        )
        loss.backward()

    def _mask(self) -> Tensor:
        return (torch.ones_like(self.ids) if self.mask is None else self.mask.long()).int()


class _Through(torch.autograd.Function):
    """The identity, whose backward drops the gradient: a leaf would copy it, which is no part of what is measured."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> None:
        return None


def trl_kernel() -> Any:
    """TRL's kernel file alone: the package would import its trainers."""
    spec = importlib.util.find_spec("trl")
    path = Path(spec.submodule_search_locations[0]) / "kernels/logprob_entropy.py" if spec else None
    if path is None or not path.exists():
        return None
    module_spec = importlib.util.spec_from_file_location("trl_logprob_entropy", path)
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module.selective_log_softmax_and_entropy


def candidates(case: Case) -> dict[tuple[str, str, str | None], tuple[Run, int, Callable[[], Tensor] | None]]:
    """(work, implementation, version): what to run, bytes an element, log-probs to check."""
    x, ids = case.logits, case.ids
    found: dict[tuple[str, str, str | None], tuple[Run, int, Callable[[], Tensor] | None]] = {}
    ours = kernel_coder.__version__
    score: Run = lambda: ops.token_logprobs(x, ids, mask=case.mask, entropy=True).logprobs  # noqa: E731
    found["logprobs and entropy, forward", "kernel_coder", ours] = (score, 2, score)
    if liger := version_of("liger-kernel"):
        from liger_kernel.ops.grpo_loss import fused_selective_log_softmax

        mask = None if case.mask is None else case._mask()[None]
        rows: Run = lambda: fused_selective_log_softmax(x[None], ids[None, 1:], 1.0, mask)[0]  # noqa: E731
        found["logprobs, forward", "liger", liger] = (rows, 2, None)
    if (trl := version_of("trl")) and (kernel := trl_kernel()):
        found["logprobs and entropy, forward", "trl", trl] = (lambda: kernel(x, ids), 2, lambda: kernel(x, ids)[0])
    for name, run in {"in place": case.ours_inplace, "new gradient": case.ours}.items():
        found[f"grpo_loss, forward and backward, {name}", "kernel_coder", ours] = (lambda run=run: run(x), 4, None)
    if liger:
        for name, inplace in {"in place": True, "new gradient": False}.items():
            found[f"grpo_loss, forward and backward, {name}", "liger", liger] = (
                lambda inplace=inplace: case.liger(x, inplace),
                4,
                None,
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192])
    parser.add_argument("--vocab", type=int, nargs="+", default=[151936])
    parser.add_argument("--commit", default=os.environ.get("KC_COMMIT"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "grpo_loss_cuda.csv")
    arguments = parser.parse_args()
    commit = (
        arguments.commit
        or subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    table = []
    for tokens in arguments.tokens:
        for vocab in arguments.vocab:
            for masked, idle in ((0.0, 0.0), (0.5, 0.0), (0.0, 0.5)):
                case = Case(tokens, vocab, masked, idle)
                other = torch.empty_like(case.logits)
                copy, *_ = milliseconds(lambda other=other, case=case: other.copy_(case.logits), arguments.runs)
                rate = 4 * case.logits.numel() / copy
                del other
                expected, _ = reference.token_logprobs(case.logits[:64], case.ids[:64])
                for (work, name, version), (run, size, logprobs) in candidates(case).items():
                    case.restore()
                    got = logprobs()[:64] if logprobs and case.mask is None else None
                    error = "" if got is None else f"{float(((got - expected) / expected).abs().max()):.1e}"
                    run()
                    case.restore()
                    peak = peak_mib(run)
                    median, low, high = milliseconds(run, arguments.runs, case.restore)
                    share = size * case.logits.numel() / median / rate
                    row = [work, name, version, tokens, vocab, masked, idle]
                    row += [f"{t:.4f}" for t in (median, low, high)]
                    row += [f"{share:.3f}", f"{peak:.0f}", error, f"{copy:.4f}"]
                    table.append([*row, torch.cuda.get_device_name(), torch.__version__, torch.version.cuda, commit])
                    print(*row, sep="\t", flush=True)
                del case
                torch.cuda.empty_cache()
    arguments.out.parent.mkdir(exist_ok=True)
    with arguments.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        chosen = [f"--{name} {' '.join(map(str, getattr(arguments, name)))}" for name in ("tokens", "vocab")]
        command = f"python benchmarks/bench_grpo_loss.py --runs {arguments.runs} " + " ".join(chosen)
        writer.writerows([*row, command] for row in table)


if __name__ == "__main__":
    main()
