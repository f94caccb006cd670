"""Measures token_logprobs with entropy beside other libraries, torch eager and torch.compile: time, memory and error.

    python benchmarks/ops/bench_token_logprobs.py --device cpu  # results/token_logprobs_cpu.csv
    python benchmarks/ops/bench_token_logprobs.py --device cuda                   # ... token_logprobs_cuda.csv
    python benchmarks/ops/bench_token_logprobs.py --device cuda --shapes sweep    # ... token_logprobs_sweep.csv

"forward" computes log-prob and entropy under no_grad. "forward and backward" also computes their gradient, into a new
tensor. torch eager and torch.compile use log_softmax in float32, gather, and -(p log p).sum.

CUDA: the logits are bfloat16; side_by_side.py explains how contenders are timed. Liger's and TRL's kernels, verl's
formula and a copy of the logits are measured as well. `of_bound` is the time that the necessary bytes would take at the
copy's rate, divided by the measured time: 2 bytes a logit forward, 6 with the gradient; for a masked row only those of
the gradient. Only this project, TRL and Liger support a mask. Errors are relative norms against float64 on 64 unmasked
rows.

CPU: the contenders take turns, so that other load on the machine affects all of them. Memory is the largest resident
set during a call minus that before it. Errors are against float64 of the same logits, relative to the norm, on the
first 32 rows. "confident" is the log-prob of rows whose token leads by 25 nats.
"""

from __future__ import annotations

import csv
import ctypes
import functools
import platform
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import kernel_coder
import torch
from kernel_coder import reference
from kernel_coder.ops import token_logprobs
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers that all benchmarks share
from rivals import eager, liger_logprobs, relative, trl, verl
from side_by_side import (
    Contender,
    Row,
    commit_of,
    compare,
    measure,
    median_of,
    parser_for,
    varied,
    version_of,
    words_to_repeat,
)

Pair = tuple[Tensor, Tensor]
Function = Callable[[Tensor, Tensor], Pair]
CASES = [
    (512, 49152, torch.float32),
    (2048, 49152, torch.float32),
    (512, 151936, torch.float32),
    (512, 49152, torch.bfloat16),
    (8, 49152, torch.float32),
]
CHECKED_ROWS = 32


def ours(logits: Tensor, ids: Tensor, mask: Tensor | None = None) -> Pair:
    out = token_logprobs(logits, ids, mask=mask, entropy=True)
    assert out.entropy is not None
    return out.logprobs, out.entropy


IMPLEMENTATIONS: dict[str, tuple[str, Function]] = {
    "kernel_coder": (kernel_coder.__version__, ours),
    "torch.compile": (torch.__version__, torch.compile(eager, fullgraph=True, dynamic=False)),
    "torch eager": (torch.__version__, eager),
}


def scored(function: Function, logits: Tensor, ids: Tensor) -> Pair:
    with torch.no_grad():
        return function(logits, ids)


def differentiated(function: Function, logits: Tensor, ids: Tensor) -> Pair:
    """The gradient of the logits, twice, for the shape of a result."""
    leaf = logits.detach().requires_grad_()
    logprobs, entropy = function(leaf, ids)
    (gradient,) = torch.autograd.grad(logprobs.sum() + 0.1 * entropy.sum(), leaf)
    return gradient, gradient


PHASES = {"forward": scored, "forward+backward": differentiated}


def peak_extra_mib(call: Callable[[], object]) -> float | None:
    """How far a call raises the resident set; None where the system does not tell."""

    def kib(field: str) -> int:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(status.partition(field + ":")[2].split()[0])

    try:
        ctypes.CDLL(None).malloc_trim(0)  # or freed blocks that stayed resident would take the call's without a trace
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # forget the peak so far
        before = kib("VmRSS")
        call()
        return (kib("VmHWM") - before) / 1024
    except (OSError, AttributeError):
        return None


def errors(function: Function, logits: Tensor, ids: Tensor) -> dict[str, float]:
    logits, ids = logits[:CHECKED_ROWS].clone(), ids[:CHECKED_ROWS]
    logprobs, entropy = scored(function, logits, ids)
    wanted_logprobs, wanted_entropy = reference.token_logprobs(logits, ids, entropy=True)
    assert wanted_entropy is not None
    gradient, _ = differentiated(function, logits, ids)
    wanted_gradient, _ = differentiated(reference_pair, logits.double(), ids)
    confident = logits.scatter(1, ids[:, None], logits.amax(1, keepdim=True) + 25)
    return {
        "error_logprobs": relative(logprobs, wanted_logprobs),
        "error_entropy": relative(entropy, wanted_entropy),
        "error_gradient": relative(gradient, wanted_gradient),
        "error_confident": relative(scored(function, confident, ids)[0], reference_pair(confident, ids)[0]),
    }


def reference_pair(logits: Tensor, ids: Tensor) -> Pair:
    logprobs, entropy = reference.token_logprobs(logits, ids, entropy=True)
    assert entropy is not None
    return logprobs, entropy


def measure_on_cpu(tokens: int, vocab: int, dtype: torch.dtype, repetitions: int) -> list[dict[str, object]]:
    rng = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(tokens, vocab, generator=rng)).to(dtype)
    ids = torch.randint(0, vocab, (tokens,), generator=rng)
    rows: list[dict[str, object]] = []
    for phase, run in PHASES.items():
        first_ms, memory = {}, {}
        times: dict[str, list[float]] = {name: [] for name in IMPLEMENTATIONS}
        for name, (_, function) in IMPLEMENTATIONS.items():
            start = time.perf_counter()
            run(function, logits, ids)
            first_ms[name] = 1e3 * (time.perf_counter() - start)
            memory[name] = peak_extra_mib(functools.partial(run, function, logits, ids))
        for _ in range(repetitions):
            for name, (_, function) in IMPLEMENTATIONS.items():
                start = time.perf_counter()
                run(function, logits, ids)
                times[name].append(1e3 * (time.perf_counter() - start))
        our_median = statistics.median(times["kernel_coder"])
        for name, (version, function) in IMPLEMENTATIONS.items():
            ordered, median = sorted(times[name]), statistics.median(times[name])
            mib = memory[name]
            row: dict[str, object] = {
                "phase": phase,
                "tokens": tokens,
                "vocab": vocab,
                "dtype": str(dtype).removeprefix("torch."),
                "implementation": name,
                "version": version,
                "median_ms": f"{median:.4g}",
                "p20_ms": f"{ordered[len(ordered) // 5]:.4g}",
                "p80_ms": f"{ordered[len(ordered) * 4 // 5]:.4g}",
                "first_call_ms": f"{first_ms[name]:.4g}",
                "kernel_coder_is_faster_by": f"{median / our_median:.3g}",
                "peak_extra_mib": "" if mib is None else f"{mib:.1f}",
            }
            if phase == "forward":
                row |= {key: f"{value:.2g}" for key, value in errors(function, logits, ids).items()}
            rows.append(row)
            print(*(f"{key}={value}" for key, value in row.items()), flush=True)
    return rows


SIDE_BY_SIDE = {"tokens": 8192, "vocab": 151936, "masked": 0.0}
SMALL = {"tokens": 128, "vocab": 1003, "masked": 0.0}
Masked = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]

SWEEP = {
    "vocab": (49152, 128256, 262144),
    "tokens": (2048, 32768, 65536),
    "masked": (0.5, 0.9),
}
"""Values that are tried one at a time, for --shapes sweep."""


class Case:
    """One batch, what the last contender made of it, and what is exact on some rows."""

    def __init__(self, point: Mapping[str, Any], device: str) -> None:
        tokens, vocab = point["tokens"], point["vocab"]
        rng = torch.Generator(device=device).manual_seed(0)
        self.logits = torch.randn(tokens, vocab, device=device, dtype=torch.bfloat16, generator=rng)
        self.other = torch.empty_like(self.logits)
        self.ids = torch.randint(0, vocab, (tokens,), device=device, generator=rng)
        share = torch.rand(tokens, device=device, generator=rng)
        self.mask = share >= point["masked"] if point["masked"] else None
        self.weights = torch.ones_like(share) if self.mask is None else self.mask.float()
        self.kept = float(self.weights.mean())
        rows = torch.arange(0, tokens - 1, max(1, tokens // 64), device=device)
        self.rows = rows[self.weights[rows] > 0]
        self.logprobs: Tensor | None = None
        self.entropy: Tensor | None = None
        self.gradient: Tensor | None = None

    def clear(self) -> None:
        self.logprobs = self.entropy = self.gradient = None

    def forward(self, function: Masked) -> None:
        with torch.no_grad():
            self.logprobs, self.entropy = function(self.logits, self.ids, self.mask)

    def forward_and_backward(self, function: Masked) -> None:
        leaf = self.logits.detach().requires_grad_()
        outputs = [x for x in function(leaf, self.ids, self.mask) if x is not None]
        upstream = [scale * self.weights[: len(x)].to(x.dtype) for x, scale in zip(outputs, (1, 0.1), strict=False)]
        (self.gradient,) = torch.autograd.grad(outputs, leaf, upstream)

    def errors(self) -> dict[str, float]:
        logits, ids = self.logits[self.rows].double().requires_grad_(), self.ids[self.rows]
        logprobs, entropy = reference_pair(logits, ids)
        found = {}
        if self.logprobs is not None:
            found["logprobs"] = relative(self.logprobs[self.rows], logprobs.detach())
        if self.entropy is not None:
            found["entropy"] = relative(self.entropy[self.rows], entropy.detach())
        if self.gradient is not None:
            (gradient,) = torch.autograd.grad(logprobs.sum() + 0.1 * entropy.sum(), logits)
            found["gradient"] = relative(self.gradient[self.rows], gradient)
        return found


def side_by_side(point: Mapping[str, Any], arguments: Namespace) -> list[Row]:
    def unmasked(function: Function) -> Masked:
        return lambda logits, ids, mask: function(logits, ids)

    case, torch_version = Case(point, arguments.device), torch.__version__
    implementations: dict[str, tuple[str, Masked]] = {
        "kernel_coder": (kernel_coder.__version__, ours),
        "Liger": (version_of("liger-kernel"), liger_logprobs),
        "TRL": (version_of("trl"), trl),
    }
    if not arguments.quick:
        implementations["verl's formula"] = (torch_version, unmasked(verl))
        if point in (SIDE_BY_SIDE, SMALL):
            implementations["torch.compile"] = (torch_version, unmasked(torch.compile(eager, dynamic=False)))
        implementations["torch eager"] = (torch_version, unmasked(eager))
    rows: list[Row] = []
    for phase in ("forward",) if arguments.quick else ("forward", "forward and backward"):
        backward = phase != "forward"
        run = case.forward_and_backward if backward else case.forward
        contenders = [Contender("copy", torch_version, lambda: case.other.copy_(case.logits), kind="floor")]
        for name, (version, function) in implementations.items():
            if name == "Liger" and backward:
                continue  # it has none
            contenders.append(
                Contender(
                    name,
                    version,
                    functools.partial(run, function),
                    prepare=case.clear,
                    errors=case.errors,
                    output_bytes=2 * case.logits.numel() if backward else 0,
                    kind="ours" if name == "kernel_coder" else "rival",
                    columns={"note": "without entropy; all rows but the last"} if name == "Liger" else {},
                )
            )
        work = {"work": f"log-probs and entropy, {phase}", **point, "dtype": "bfloat16"}
        table = compare(contenders, arguments, work)
        bytes_of_a_logit = 4 * case.kept + 2 if backward else 2 * case.kept
        for row in table:
            if "median_ms" in row and row["implementation"] != "copy":
                bound = median_of(table, "copy") / 4 * bytes_of_a_logit
                row["of_bound"] = f"{bound / float(row['median_ms']):.3f}"
        rows += table
    return rows


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--threads", type=int, default=2, help="CPU table")
    parser.add_argument("--repetitions", type=int, default=15, help="CPU table")
    args = parser.parse_args()
    if args.shapes or args.device == "cuda":
        args.shapes = args.shapes or "reference"
        points = {
            "small": [SMALL, {**SMALL, "masked": 0.5}],
            "reference": [SIDE_BY_SIDE],
            "sweep": varied(SIDE_BY_SIDE, SWEEP),
        }
        measure("token_logprobs", args, points[args.shapes], lambda point: side_by_side(point, args))
        return
    torch.set_num_threads(args.threads)
    torch._dynamo.config.recompile_limit = 64  # a new graph for each case: the shapes are static
    about = {
        "repetitions": args.repetitions,
        "threads": args.threads,
        "isa": torch.ops.kernel_coder.row_isa_limit("avx512"),
        "machine": cpu_model(),
        "python": platform.python_version(),
        "commit": commit_of(args),
        "command": " ".join(["python benchmarks/ops/bench_token_logprobs.py", *words_to_repeat(sys.argv[1:])]),
    }
    rows = [row | about for case in CASES for row in measure_on_cpu(*case, args.repetitions)]
    out = args.out or Path(__file__).parents[1] / "results" / "token_logprobs_cpu.csv"
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
