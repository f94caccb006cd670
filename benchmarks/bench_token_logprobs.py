"""token_logprobs against torch, eager and compiled, on the CPU: log-prob and entropy of every row, and their gradient.

    python benchmarks/bench_token_logprobs.py             # rows into benchmarks/results/token_logprobs_cpu.csv

Times are medians over the repetitions, with p20 and p80. "extra_mb" is what one call adds to the peak of the process's
resident memory, the gradient of the logits included. Errors are norm(x - reference) / norm(reference) against float64.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from kernel_coder import _C, reference
from kernel_coder.ops import token_logprobs
from torch import Tensor

CASES = [
    (torch.float32, 512, 49152),
    (torch.float32, 128, 151936),
    (torch.float32, 2048, 32000),
    (torch.bfloat16, 512, 49152),
]
Rows = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def ours(logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    logprobs, entropy = token_logprobs(logits, ids, entropy=True)
    assert entropy is not None
    return logprobs, entropy


def eager(logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    log_p = logits.float().log_softmax(1)
    return log_p.gather(1, ids[:, None])[:, 0], -(log_p.exp() * log_p).sum(1)


def status_mb(field: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) / 1024


def extra_peak_mb(call: Callable[[], object]) -> float:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak so far
    before = status_mb("VmRSS")
    call()
    return max(0.0, status_mb("VmHWM") - before)


def seconds(call: Callable[[], object], repetitions: int) -> list[float]:
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return times


def relative_error(x: Tensor, wanted: Tensor) -> float:
    return float((x.double() - wanted).norm() / wanted.norm())


def forward_backward(rows: Rows, logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    leaf = logits.detach().requires_grad_()
    logprobs, entropy = rows(leaf, ids)
    (gradient,) = torch.autograd.grad(logprobs.sum() - 0.1 * entropy.sum(), leaf)
    return logprobs.detach(), entropy.detach(), gradient


def forward(rows: Rows, logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return rows(logits, ids)


def reference_rows(logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    logprobs, entropy = reference.token_logprobs(logits, ids, entropy=True)
    assert entropy is not None
    return logprobs, entropy


def measure(
    dtype: torch.dtype, tokens: int, vocab: int, repetitions: int, machine: dict[str, str]
) -> list[dict[str, Any]]:
    rng = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(tokens, vocab, generator=rng)).to(dtype)
    ids = torch.randint(vocab, (tokens,), generator=rng)
    checked = slice(0, 16)  # rows of the float64 reference
    wanted = forward_backward(reference_rows, logits[checked].double(), ids[checked])
    table = []
    for name, rows in (("kernel_coder", ours), ("torch eager", eager), ("torch.compile", torch.compile(eager))):
        got = forward_backward(rows, logits, ids)  # also compiles
        errors = [relative_error(x[checked], y) for x, y in zip(got, wanted, strict=True)]
        del got
        for part, function in (("forward", forward), ("forward and backward", forward_backward)):

            def call(function: Callable = function, rows: Rows = rows) -> object:
                return function(rows, logits, ids)

            call()
            memory = extra_peak_mb(call)
            times = seconds(call, repetitions)
            p20, *_, p80 = statistics.quantiles(times, n=5)
            row: dict[str, Any] = {
                "implementation": name,
                "pass": part,
                "dtype": str(dtype).removeprefix("torch."),
                "tokens": tokens,
                "vocab": vocab,
                "repetitions": repetitions,
                **{"median_ms": statistics.median(times), "p20_ms": p20, "p80_ms": p80},
                "extra_mb": memory,
                **dict(zip(("error_logprobs", "error_entropy", "error_gradient"), errors, strict=True)),
            }
            row |= {key: f"{1e3 * row[key]:.4g}" for key in ("median_ms", "p20_ms", "p80_ms")}
            row |= {key: f"{row[key]:.3g}" for key in row if key.startswith(("extra", "error"))}
            table.append(row | machine)
            print(*row.values(), sep="  ")
    return table


def cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    folder = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=folder / "results" / "token_logprobs_cpu.csv")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True).stdout.strip()
    machine = {
        "cpu": cpu_model(),
        "instruction_set": _C.row_isa_limit("avx512"),
        "threads": str(options.threads),
        "torch": torch.__version__,
        "commit": commit or "unknown",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": " ".join(["python benchmarks/bench_token_logprobs.py", *sys.argv[1:]]),
    }
    table = [row for case in CASES for row in measure(*case, options.repetitions, machine)]
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, table[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


if __name__ == "__main__":
    main()
