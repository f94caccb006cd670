"""token_logprobs with entropy against torch eager and torch.compile: time, memory and error, side by side.

    python benchmarks/bench_token_logprobs.py                    # rows into results/token_logprobs_cpu.csv
    python benchmarks/bench_token_logprobs.py --device cuda      # rows into results/token_logprobs_cuda.csv

On CUDA Liger's and TRL's kernels and verl's formula take part too, and a copy of the logits: `of_bound` is the time
that the copy's rate allows for the bytes that must move (2 a logit forward, 6 with the gradient) over the time taken;
side_by_side.py says how it is timed there. The rest is about the CPU.

"forward" is log-prob and entropy under no_grad; "forward+backward" also their gradient, into a new tensor. The rivals
are what one writes in torch: log_softmax in float32, gather, -(p log p).sum. The repetitions of the three take turns:
whatever else the machine does falls on all of them. Memory is the peak of the resident set during a call, less what was
resident before it. Errors are against float64 of the same logits, relative to the norm, on the first 32 rows;
"confident" is the log-prob of rows whose token leads by 25 nats.
"""

from __future__ import annotations

import csv
import ctypes
import functools
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kernel_coder
import torch
from kernel_coder import reference
from kernel_coder.ops import token_logprobs
from torch import Tensor

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


def ours(logits: Tensor, ids: Tensor) -> Pair:
    out = token_logprobs(logits, ids, entropy=True)
    assert out.entropy is not None
    return out.logprobs, out.entropy


def eager(logits: Tensor, ids: Tensor) -> Pair:
    log_p = logits.float().log_softmax(-1)
    return log_p.gather(1, ids[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


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


def relative_error(x: Tensor, wanted: Tensor) -> float:
    return float((x.double() - wanted).norm() / wanted.norm())


def errors(function: Function, logits: Tensor, ids: Tensor) -> dict[str, float]:
    logits, ids = logits[:CHECKED_ROWS].clone(), ids[:CHECKED_ROWS]
    logprobs, entropy = scored(function, logits, ids)
    wanted_logprobs, wanted_entropy = reference.token_logprobs(logits, ids, entropy=True)
    assert wanted_entropy is not None
    gradient, _ = differentiated(function, logits, ids)
    wanted_gradient, _ = differentiated(reference_pair, logits.double(), ids)
    confident = logits.scatter(1, ids[:, None], logits.amax(1, keepdim=True) + 25)
    return {
        "error_logprobs": relative_error(logprobs, wanted_logprobs),
        "error_entropy": relative_error(entropy, wanted_entropy),
        "error_gradient": relative_error(gradient, wanted_gradient),
        "error_confident": relative_error(scored(function, confident, ids)[0], reference_pair(confident, ids)[0]),
    }


def reference_pair(logits: Tensor, ids: Tensor) -> Pair:
    logprobs, entropy = reference.token_logprobs(logits, ids, entropy=True)
    assert entropy is not None
    return logprobs, entropy


def measure(tokens: int, vocab: int, dtype: torch.dtype, repetitions: int) -> list[dict[str, object]]:
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
            memory[name] = peak_extra_mib(lambda run=run, function=function: run(function, logits, ids))
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


def measure_on_cuda(tokens: int, vocab: int, arguments: Any) -> list[dict[str, Any]]:
    from rivals import eager, trl_logprobs, verl_formula
    from side_by_side import Contender, compare, median_of, version_of

    rng = torch.Generator(device="cuda").manual_seed(0)
    logits = torch.randn(tokens, vocab, device="cuda", dtype=torch.bfloat16, generator=rng)
    ids = torch.randint(0, vocab, (tokens,), device="cuda", generator=rng)
    implementations: dict[str, tuple[str, Any]] = {"kernel_coder": (kernel_coder.__version__, ours)}
    if version := version_of("liger-kernel"):
        from liger_kernel.ops.grpo_loss import fused_selective_log_softmax

        implementations["Liger, without entropy, all rows but one"] = (
            version,
            lambda x, chosen: (fused_selective_log_softmax(x[None], chosen[None, 1:], 1.0, None)[0], None),
        )
    if (version := version_of("trl")) and (kernel := trl_logprobs()):
        implementations["TRL"] = (version, kernel)
    implementations["verl's formula"] = (torch.__version__, verl_formula)
    if (tokens, vocab) == CUDA_SHAPES[0]:
        implementations["torch.compile"] = (torch.__version__, torch.compile(eager, dynamic=False))
    implementations["torch eager"] = (torch.__version__, eager)
    rows: list[dict[str, Any]] = []
    other = torch.empty_like(logits)
    for phase, bytes_a_logit in (("forward", 2), ("forward+backward", 6)):
        found: dict[str, Pair] = {}

        def run(name: str, function: Any, phase: str = phase, found: dict[str, Pair] = found) -> None:
            if phase == "forward":
                found[name] = scored(function, logits, ids)
            else:
                found[name] = differentiated(function, logits, ids)

        def checked(name: str, function: Any, found: dict[str, Pair] = found) -> dict[str, float]:
            logprobs, entropy = found[name]
            wanted = reference_pair(logits[:CHECKED_ROWS], ids[:CHECKED_ROWS])
            errors = {"error_logprobs": relative_error(logprobs[:CHECKED_ROWS], wanted[0])}
            if entropy is not None:
                errors["error_entropy"] = relative_error(entropy[:CHECKED_ROWS], wanted[1])
            return errors

        def checked_gradient(name: str, function: Any, found: dict[str, Pair] = found) -> dict[str, float]:
            wanted = differentiated(reference_pair, logits[:CHECKED_ROWS].double(), ids[:CHECKED_ROWS])[0]
            return {"error_gradient": relative_error(found[name][0][:CHECKED_ROWS], wanted)}

        contenders: list[Contender] = [Contender("copy", torch.__version__, lambda: other.copy_(logits))]
        for name, (version, function) in implementations.items():
            if name.startswith("Liger"):
                errors = None
                if phase != "forward":
                    continue
            else:
                check = checked if phase == "forward" else checked_gradient
                errors = functools.partial(check, name, function)
            size = 0 if phase == "forward" else 2 * logits.numel()
            contenders.append(
                Contender(name, version, functools.partial(run, name, function), found.clear, errors, size)
            )
        more = {"phase": phase, "tokens": tokens, "vocab": vocab, "dtype": "bfloat16"}
        table = compare(contenders, arguments, more)
        copy = median_of(table, "copy")
        for row in table:
            if "median_ms" in row:
                row["of_bound"] = f"{copy / 4 * bytes_a_logit / float(row['median_ms']):.3f}"
        rows += table
    return rows


CUDA_SHAPES = [(8192, 151936), (8192, 49152), (8192, 128256), (8192, 262144), (2048, 151936), (65536, 151936)]


def main_on_cuda(arguments: Any) -> None:
    from side_by_side import about_this_run, show, write

    about, rows = about_this_run(arguments), []
    shapes = CUDA_SHAPES if arguments.shapes == "sweep" else CUDA_SHAPES[:1]
    for tokens, vocab in shapes:
        for row in measure_on_cuda(tokens, vocab, arguments):
            rows.append({**row, **about})
            show(row)
        torch.cuda.empty_cache()
        write(arguments.out, rows, last=("failure", *about))


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    from side_by_side import parser_for

    parser = parser_for(__doc__, "")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=15)
    args = parser.parse_args()
    if args.out.is_dir():
        args.out = args.out / f"token_logprobs_{args.device}.csv"
    if args.device == "cuda":
        main_on_cuda(args)
        return
    torch.set_num_threads(args.threads)
    torch._dynamo.config.recompile_limit = 64  # a new graph for each case: the shapes are static
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    about = {
        "repetitions": args.repetitions,
        "threads": args.threads,
        "isa": torch.ops.kernel_coder.row_isa_limit("avx512"),
        "machine": cpu_model(),
        "python": platform.python_version(),
        "commit": commit.stdout.strip() or "unknown",
        "command": " ".join(["python benchmarks/bench_token_logprobs.py", *sys.argv[1:]]),
    }
    rows = [row | about for case in CASES for row in measure(*case, args.repetitions)]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
