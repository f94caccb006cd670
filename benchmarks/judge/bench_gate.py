"""Measures the cost and spread of a request to another process on a GPU, with and without a gate before its launches.

    python benchmarks/judge/bench_gate.py            # results/judge_gate_cuda.csv

One process sends requests, two processes with the same code answer in turn, and four more hold idle contexts, as in a
judge. A request copies 1 MiB of inputs to memory that the other process sees, clears the L2 cache, lets the process
call `y.copy_(torch.relu(x))` a number of times, and reads 4,096 random bytes of the output. Without a gate, the process
is asked once the inputs are in place; with a gate, its launches are queued before the clock starts. `call_us` is the
time that a call adds, between 0 and 64 calls; `event_us` is the time of a call by CUDA events in one process.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import sys
import time
import traceback

import torch
from bench_judge import _commit, write
from kernel_coder.judge.gpu.stream_gate import Gate, wait_for, write_later
from kernel_coder.judge.wire.channel import Channel
from kernel_coder.judge.wire.shared_tensors import Arena

ARENA, NUMBER_AT, OUTPUT_AT, FLUSH = 64 << 20, 0, 32 << 20, 256 << 20
INPUT_AT, BYTES = 4096, 1 << 20
CALLS = (0, 1, 8, 32, 64)
DEVICE = torch.device("cuda:0")


def answer(channel: Channel) -> None:
    """The answering process: makes the requested calls, until a negative number ends it."""
    (fd,) = channel.receive_descriptors(1)
    arena = Arena(ARENA, DEVICE, fd)
    x = arena.bytes[INPUT_AT : INPUT_AT + BYTES].view(torch.float32)
    y = arena.bytes[OUTPUT_AT : OUTPUT_AT + BYTES].view(torch.float32)
    scratch = torch.zeros(1, device=DEVICE)
    for _ in range(20):
        y.copy_(torch.relu(x))
    torch.cuda.synchronize()
    channel.send(0)
    while True:
        calls, number, *_ = channel.receive_at_once(timeout_s=3600.0, awake_s=0.05).values
        if calls < 0:
            return
        began = time.perf_counter()
        if number:
            wait_for(arena.bytes.data_ptr() + NUMBER_AT, number, DEVICE)
        if calls == 0:
            scratch.zero_()
        for _ in range(calls):
            y.copy_(torch.relu(x))
        queued = time.perf_counter()
        if number:
            channel.send(0)
        torch.cuda.synchronize()
        channel.send(0, values=(round(1e9 * (queued - began)),))


class Other:
    """The answering process as the asking process sees it."""

    def __init__(self) -> None:
        self.channel, theirs = Channel.pair()
        self.pid = os.fork()
        if self.pid == 0:
            self.channel.close()
            try:
                answer(theirs)
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        theirs.close()

    def begin(self) -> None:
        self.arena = Arena(ARENA, DEVICE)
        self.arena.bytes.zero_()
        torch.cuda.synchronize()
        self.channel.send_descriptors([self.arena.fd])
        self.channel.receive(timeout_s=60.0)

    def end(self) -> None:
        self.channel.send(0, values=(-1,))
        os.waitpid(self.pid, 0)


class Asker:
    def __init__(self) -> None:
        self.gate = Gate(DEVICE)
        self.staged = torch.randint(0, 256, (BYTES,), dtype=torch.uint8, device=DEVICE)
        self.flushed = torch.empty(FLUSH, dtype=torch.uint8, device=DEVICE)
        self.places = torch.randint(0, BYTES, (4096,), device=DEVICE)

    def request(self, other: Other, calls: int, has_gate: bool) -> tuple[float, float]:
        """Microseconds of the request, and of the launches in the answering process."""
        memory, channel = other.arena.bytes, other.channel
        torch.cuda.synchronize()
        if has_gate:
            number = 1 + secrets.randbelow(0xFFFF_FFFF)
            self.gate.shut()
            self._show(memory)
            write_later(memory.data_ptr() + NUMBER_AT, number, DEVICE)
            channel.send(0, values=(calls, number))
            channel.receive_at_once(timeout_s=10.0, awake_s=0.05)
            started = self.gate.open()
        else:
            started = time.perf_counter()
            self._show(memory)
            torch.cuda.synchronize()
            channel.send(0, values=(calls, 0))
        answered = channel.receive_at_once(timeout_s=10.0, awake_s=0.05)
        memory[OUTPUT_AT:][self.places].cpu()
        return 1e6 * (time.perf_counter() - started), answered.values[0] / 1e3

    def _show(self, memory: torch.Tensor) -> None:
        memory[INPUT_AT : INPUT_AT + BYTES].copy_(self.staged)
        self.flushed.zero_()


def call_us() -> float:
    """Microseconds of a call by CUDA events, with many calls queued."""
    x = torch.rand(BYTES // 4, device=DEVICE)
    y, taken = torch.empty_like(x), []
    for _ in range(20):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(2_000_000)
        begin.record()
        for _ in range(64):
            y.copy_(torch.relu(x))
        end.record()
        torch.cuda.synchronize()
        taken.append(1e3 * begin.elapsed_time(end) / 64)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=60, help="number of requests of each kind to each process")
    arguments = parser.parse_args()
    others = [Other() for _ in range(6)]  # forked before this process has a CUDA context
    for one in others:
        one.begin()
    asker, both = Asker(), others[:2]
    facts = {
        "event_us": round(call_us(), 3),
        "device": torch.cuda.get_device_name(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "commit": os.environ.get("KC_COMMIT") or _commit(),
        "command": " ".join(["python", "benchmarks/judge/bench_gate.py", *sys.argv[1:]]),
    }
    rows = []
    for has_gate in (False, True):
        found = {(calls, which): list[tuple[float, float]]() for calls in CALLS for which in range(2)}
        for calls in CALLS:
            for number in range(arguments.requests):
                for which in (0, 1) if number % 2 else (1, 0):
                    found[calls, which].append(asker.request(both[which], calls, has_gate))
        for which in range(2):
            row: dict[str, object] = {"gate": has_gate, "process": which}
            for calls in CALLS:
                times = sorted(taken for taken, _ in found[calls, which][5:])
                row[f"us_{calls}"] = round(statistics.median(times), 1)
                row[f"from_{calls}"] = round(times[len(times) // 10], 1)
                row[f"to_{calls}"] = round(times[-1 - len(times) // 10], 1)
            row["launches_us_64"] = round(statistics.median(taken for _, taken in found[64, which][5:]), 1)
            medians = [statistics.median(taken for taken, _ in found[calls, which][5:]) for calls in (0, 64)]
            row["call_us"] = round((medians[1] - medians[0]) / 64, 3)
            rows.append(row | facts)
            print({name: row[name] for name in row}, flush=True)
    for one in others:
        one.end()
    write(rows, "judge_gate_cuda.csv")


if __name__ == "__main__":
    main()
