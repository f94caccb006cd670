"""Measures on how many of torch's streams a missing wait is detected, by the number of hardware queues of a context.

    python benchmarks/judge/bench_streams.py            # results/judge_streams_cuda.csv

There is a process for each number of queues (CUDA_DEVICE_MAX_CONNECTIONS). On each of the 64 streams of torch's pool it
queues a delay of 4 million cycles and then the write of a number, which the default stream copies without waiting. The
missing wait is detected if the copy holds the old number. With one queue, streams run in the order in which they were
filled, so that little is detected. That is why a candidate whose source mentions streams gets the default of eight
queues (`judge/runner/side_streams.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

import torch
from bench_judge import _commit, write

QUEUES = (1, 2, 8, 32)
STREAMS = 32
"""Number of streams of each priority in torch's pool."""

WAITED = 4_000_000
"""Delay on each stream, in GPU cycles: about 2 ms."""


def measured() -> list[dict[str, object]]:
    """Measures in this process, with the number of queues in its environment."""
    began = time.perf_counter()
    number = torch.zeros(1 << 16, device="cuda")
    copied = torch.zeros_like(number)
    torch.cuda.synchronize()
    context_s, threads = time.perf_counter() - began, len(os.listdir("/proc/self/task"))
    rows: list[dict[str, object]] = []
    for is_warm in (False, True):
        for priority in (0, -1):
            seen = 0
            for _ in range(STREAMS):
                number.fill_(0)
                copied.fill_(2)
                side = torch.cuda.Stream(priority=priority)
                torch.cuda.synchronize()
                with torch.cuda.stream(side):
                    torch.cuda._sleep(WAITED)
                    number.fill_(1)
                copied.copy_(number)
                torch.cuda.synchronize()
                seen += copied[0].item() == 0
            if is_warm:
                row = {"priority": priority, "streams": STREAMS, "seen": seen}
                rows.append({**row, "context_s": round(context_s, 3), "threads": threads})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().measure:
        print(json.dumps(measured()))
        return
    facts = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "commit": os.environ.get("KC_COMMIT") or _commit(),
        "command": "python benchmarks/judge/bench_streams.py",
    }
    rows = []
    for queues in QUEUES:
        environment = {**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": str(queues)}
        done = subprocess.run(
            [sys.executable, __file__, "--measure"], capture_output=True, text=True, check=False, env=environment
        )
        if done.returncode:
            raise SystemExit(f"{queues} queues: {(done.stdout + done.stderr)[-500:]}")
        for row in json.loads(done.stdout.splitlines()[-1]):
            rows.append({"queues": queues, **row, **facts})
            print({name: rows[-1][name] for name in rows[-1] if name not in facts}, flush=True)
    write(rows, "judge_streams_cuda.csv")


if __name__ == "__main__":
    main()
