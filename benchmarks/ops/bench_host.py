"""Measures what a call of an op costs the host, with tensors so small that the device is never the bottleneck.

    python benchmarks/ops/bench_host.py --device cpu       # rows into results/host_cpu.csv
    python benchmarks/ops/bench_host.py                    # results/host_cuda.csv

`call_us` is a call as users write it, without gradient: Python function, checks, outputs, launches. `bare_us` is the
registered op alone, with arguments that are already converted. `facade_us` is the difference: what the Python function
costs. All are medians over `--runs` rounds of 200 calls; `least_us` is the facade in the fastest round of each.
`add_us` is an addition of two tensors, to compare machines.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from kernel_coder import LossSpec, ops
from kernel_coder.ops._inputs import without_autograd

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers that all benchmarks share

from side_by_side import Row, about_this_run, parser_for, write

RESULTS = Path(__file__).parents[1] / "results"
CALLS = 200
"""Calls in a round. A round is timed as a whole, because a clock costs as much as a tenth of a call."""


def round_us(call: Callable[[], Any], device: str) -> float:
    """Host time of a call in microseconds, as the mean of a round. The device is waited for before and not after."""
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - began) / CALLS * 1e6


def contenders(device: str) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Each op by name: a call of its Python function, and of the registered op with the same tensors."""
    tokens, vocab, hidden_size = 8, 64, 16
    spec = LossSpec.preset("grpo")
    logits = torch.randn(tokens, vocab, device=device)
    hidden, weight = torch.randn(tokens, hidden_size, device=device), torch.randn(vocab, hidden_size, device=device)
    ids = torch.randint(0, vocab, (tokens,), device=device)
    advantages = torch.randn(2, device=device)
    bounds = torch.tensor([0, 4, tokens], device=device)
    mask = torch.ones(tokens, dtype=torch.bool, device=device)
    old = torch.full((tokens,), -1.0, device=device)
    rest = {"old_logprobs": old, "mask": mask, "cu_seqlens": bounds}
    one, packed = torch.tensor(1.0), spec.pack()
    numbers = (advantages, old, None, None, mask, bounds)
    registered = torch.ops.kernel_coder

    def in_place() -> Any:
        return ops.grpo_loss(logits, ids, advantages, spec, inplace=True, **rest)

    return {
        "token_logprobs": (
            lambda: ops.token_logprobs(logits, ids, mask=mask),
            lambda: without_autograd(registered.token_logprobs.default, logits, ids, one, mask),
        ),
        "policy_loss": (
            lambda: ops.policy_loss(old, advantages, spec, **rest),
            lambda: without_autograd(registered.policy_loss.default, old, *numbers, None, None, packed),
        ),
        "grpo_loss": (
            lambda: ops.grpo_loss(logits, ids, advantages, spec, **rest),
            lambda: without_autograd(registered.grpo_loss.default, logits, ids, one, *numbers, None, packed),
        ),
        "grpo_loss, in place": (
            in_place,
            lambda: without_autograd(registered.grpo_loss_inplace.default, logits, ids, one, *numbers, None, packed),
        ),
        "group_advantages": (lambda: ops.group_advantages(advantages, 2), lambda: None),
        "linear_grpo_loss": (
            lambda: ops.linear_grpo_loss(hidden, weight, ids, advantages, spec, allow_sync=False, **rest),
            lambda: None,
        ),
    }


def main() -> None:
    arguments = parser_for(__doc__).parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    one = torch.ones(8, device=arguments.device)
    rows: list[Row] = []
    for name, (call, bare) in contenders(arguments.device).items():
        times: dict[str, list[float]] = {"call": [], "bare": [], "add": []}
        for _ in range(arguments.runs):
            for key, run in (("call", call), ("bare", bare), ("add", lambda: one + one)):
                times[key].append(round_us(run, arguments.device))
        middle = {key: statistics.median(values) for key, values in times.items()}
        row: Row = {"op": name, "call_us": f"{middle['call']:.1f}", "add_us": f"{middle['add']:.1f}"}
        if middle["bare"] > 1:  # an op without a bare form is a call of nothing
            row |= {
                "bare_us": f"{middle['bare']:.1f}",
                "facade_us": f"{middle['call'] - middle['bare']:.1f}",
                "least_us": f"{min(times['call']) - min(times['bare']):.1f}",
            }
        print(row, flush=True)
        rows.append(row | about_this_run(arguments))
    write(arguments.out or RESULTS / f"host_{arguments.device}.csv", rows)


if __name__ == "__main__":
    main()
