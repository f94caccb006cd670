"""Measures the HTTP service: a load of many clients, clients that misbehave, restarts, and real verdicts through it.

    python benchmarks/judge/bench_serve.py                 # load, misuse, restarts: results/serve_cpu.csv
    python benchmarks/judge/bench_serve.py --real 200      # also 200 real candidates, beside a judge in this process

The service runs in a process of its own. Columns: `part` is what was done, `requests` how many requests, `failed` how
many got another answer than the one that was due, `rate` requests a second, `p50_ms` and `p99_ms` the time from a
request to its answer, `rss_first_mb` and `rss_last_mb` the memory of the service after a tenth of the requests and at
the end, `fds_before` and `fds_after` its open descriptors before, and five seconds after the last request.

The stub judge needs `--cost-ms` for a verdict and has `--workers`, so the best possible rate is their quotient.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import hashlib
import itertools
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from bench_judge import _commit

RESULTS = Path(__file__).parents[1] / "results"
COLUMNS = (
    *("part", "requests", "failed", "rate", "p50_ms", "p99_ms", "rss_first_mb", "rss_last_mb"),
    *("fds_before", "fds_after", "cores", "commit", "command"),
)
STUB = Path(__file__).parents[2] / "tests" / "serve"
TOKEN = "a secret of the benchmark"
REFERENCE = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ..."


def body(candidate: str) -> dict[str, Any]:
    return {"task": {"reference": REFERENCE, "id": "stub", "backend": "torch"}, "candidate": candidate}


def serve(port: int, cost_ms: float, workers: int) -> None:
    """Run the service over the stub judge in this process, until a signal."""
    sys.path.insert(0, str(STUB))
    import uvicorn
    from kernel_coder.serve.app import create_app
    from kernel_coder.serve.guard import HeaderTimeoutProtocol
    from kernel_coder.serve.service import ServiceLimits
    from stub_service import StubJudge

    class Judge(StubJudge):
        judged = type("Forgets", (), {"append": lambda self, one: None})()

        def __init__(self) -> None:
            super().__init__(cost_ms / 1000, workers)
            del self.judged  # the stub's list would grow with the load

    app = create_app(Judge(), token=TOKEN, limits=ServiceLimits(drain_s=2.0, max_body_s=3.0, max_kept=1000))
    protocol = type("Protocol", (HeaderTimeoutProtocol,), {"max_header_s": 3.0})
    uvicorn.run(app, host="127.0.0.1", port=port, http=protocol, log_level="critical", access_log=False)


class Service:
    """The service in a process of its own."""

    def __init__(self, options: argparse.Namespace) -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = int(one.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [sys.executable, __file__, "--serve", str(self.port)]
        self._command += ["--cost-ms", str(options.cost_ms), "--workers", str(options.workers)]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command)
        until = time.monotonic() + 120
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return
            if time.monotonic() > until or self.process.poll() is not None:
                raise SystemExit("the service did not start")
            time.sleep(0.1)

    def stop(self, by: int = signal.SIGTERM) -> None:
        self.process.send_signal(by)
        self.process.wait(60)

    @property
    def rss_mb(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return 0.0

    @property
    def fds(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def authorised() -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120, limits=limits)


async def load(service: Service, requests: int, clients: int) -> dict[str, Any]:
    """`clients` clients send `requests` different candidates, each client one after another."""
    numbers, times, failed, memory = iter(range(requests)), list[float](), [0], list[float]()

    async def client(name: int) -> None:
        async with authorised() as http:
            for number in numbers:
                candidate, began = f"# {number}", time.perf_counter()
                try:
                    answer = await http.post(
                        f"{service.url}/v1/judge", json=body(candidate), headers={"X-Client-Id": str(name)}
                    )
                    right = answer.status_code == 200 and answer.json()["outcome"] == "correct"
                except httpx.HTTPError:
                    right = False
                failed[0] += not right
                times.append(time.perf_counter() - began)
                if len(times) % (requests // 10) == 0:
                    memory.append(service.rss_mb)

    before, began = service.fds, time.perf_counter()
    await asyncio.gather(*(client(name) for name in range(clients)))
    took = time.perf_counter() - began
    await asyncio.sleep(5)
    return {
        "part": f"load of {clients} clients",
        **{"requests": requests, "failed": failed[0] + requests - len(times), "rate": round(requests / took, 1)},
        **{
            "p50_ms": round(1e3 * statistics.median(times), 1),
            "p99_ms": round(1e3 * sorted(times)[-requests // 100], 1),
        },
        **{"rss_first_mb": round(memory[0], 1), "rss_last_mb": round(memory[-1], 1)},
        **{"fds_before": before, "fds_after": service.fds},
    }


# ---- clients that misbehave: each returns whether it got the answer that is due


async def slow_headers(service: Service, _: int) -> bool:
    """A byte a second: the connection is closed after the limit."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    began = time.monotonic()
    with contextlib.suppress(ConnectionError):
        for one in b"POST /v1/judge HTTP/1.1\r\nX: ":
            writer.write(bytes([one]))
            await writer.drain()
            with contextlib.suppress(TimeoutError):
                if await asyncio.wait_for(reader.read(1), 0.5) == b"":
                    break
    writer.close()
    return time.monotonic() - began < 8


async def slow_body(service: Service, _: int) -> bool:
    """Headers at once, then a byte a second: 408."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    head = f"POST /v1/judge HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 1000\r\n\r\n"
    writer.write(head.encode())
    answer = b""
    with contextlib.suppress(ConnectionError):
        for _ in range(16):
            writer.write(b"x")
            await writer.drain()
            with contextlib.suppress(TimeoutError):
                answer = await asyncio.wait_for(reader.read(100), 0.5)
                break
    writer.close()
    return b" 408 " in answer


async def huge_body(service: Service, number: int) -> bool:
    """100 MB, with and without a length: 413, or the connection is closed while the client still sends."""

    async def pieces() -> Any:
        for _ in range(100):
            yield b"x" * 1_000_000

    async with authorised() as http:
        try:
            if number % 2:
                answer = await http.post(f"{service.url}/v1/judge", content=b"x" * 100_000_000)
            else:
                answer = await http.post(f"{service.url}/v1/judge", content=pieces())
        except (httpx.WriteError, httpx.RemoteProtocolError, httpx.ReadError):
            return True
        return answer.status_code == 413


async def malformed(service: Service, number: int) -> bool:
    """Bodies that are no JSON, or the wrong JSON: 422."""
    bad = (b"{", b"[1, 2", b"\xff\xfe", b"null", b'{"task": 1}', b'{"candidate": "x"}', json.dumps([[]] * 99).encode())
    async with authorised() as http:
        answer = await http.post(
            f"{service.url}/v1/judge",
            content=bad[number % len(bad)],
            headers={"content-type": "application/json"},
        )
        return answer.status_code in (400, 422) and "detail" in answer.json()


async def wrong_token(service: Service, number: int) -> bool:
    """No token, a wrong one, another scheme: 401."""
    headers = ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"})[number % 3]
    async with httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(f"{service.url}/v1/judge", json=body("x"), headers=headers)
        return answer.status_code == 401


async def vanishes(service: Service, number: int) -> bool:
    """Sends a whole request and closes the connection without reading."""
    sent = json.dumps(body(f"# gone {number} {random.random()}")).encode()
    head = f"POST /v1/judge HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {len(sent)}\r\n"
    _, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + sent)
    await writer.drain()
    writer.transport.abort()
    return True


async def misuse(service: Service, kind: Any, count: int, at_once: int) -> dict[str, Any]:
    """`count` clients of one kind, `at_once` at a time. Then the service must still judge, and have let go of all."""
    before, rss, gate = service.fds, service.rss_mb, asyncio.Semaphore(at_once)

    async def one(number: int) -> bool:
        async with gate:
            try:
                return bool(await kind(service, number))
            except (httpx.HTTPError, OSError, ValueError):
                return False

    began = time.perf_counter()
    found = await asyncio.gather(*(one(number) for number in range(count)))
    took = time.perf_counter() - began
    await asyncio.sleep(5)
    async with authorised() as http:
        answer = await http.post(f"{service.url}/v1/judge", json=body(f"# after {kind.__name__}"))
        lives = answer.status_code == 200
        health = (await http.get(f"{service.url}/health")).json()
    await asyncio.sleep(0.2)
    return {
        "part": kind.__name__.replace("_", " "),
        **{"requests": count, "failed": count - sum(found) + (not lives) + health["queued"] + health["running"]},
        **{"rate": round(count / took, 1), "rss_first_mb": round(rss, 1), "rss_last_mb": round(service.rss_mb, 1)},
        **{"fds_before": before, "fds_after": service.fds},
    }


def restarts(service: Service, requests: int, kills: int) -> dict[str, Any]:
    """The project's own client sends requests while the service is killed and started again."""
    from kernel_coder.judge import Client

    found: list[Any] = []
    os.environ["KERNEL_CODER_TOKEN"] = TOKEN
    with Client(service.url, "torch", patience_s=300) as client:
        pairs = [(REFERENCE, f"# restart {number}") for number in range(requests)]
        began = time.perf_counter()
        worker = threading.Thread(target=lambda: found.extend(client.evaluate_many(pairs)))
        worker.start()
        for kill in range(kills):
            due = requests * (kill + 1) // (kills + 1)
            while len(found) < due and worker.is_alive():
                time.sleep(0.01)
            service.stop(signal.SIGKILL)
            time.sleep(0.5)
            service.start()
        worker.join()
        took = time.perf_counter() - began
    wanted = [hashlib.sha256(candidate.encode()).hexdigest() for _, candidate in pairs]
    failed = sum(one.outcome.value != "correct" for one in found) + ([v.candidate_hash for v in found] != wanted)
    return {"part": f"killed {kills} times", "requests": requests, "failed": failed, "rate": round(requests / took, 1)}


def real(count: int, workers: int) -> dict[str, Any]:
    """Candidates of the packaged tasks, right and wrong, directly and through the service: the same verdicts."""
    from kernel_coder.judge import Client, Judge, JudgeConfig

    pairs = list(real_pairs(count))
    flags = ["--workers", str(workers), "--checks", "2", "--timing", "false"]
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable,
        "-m",
        "kernel_coder.serve",
        "--device",
        "cpu",
        "--backend",
        "triton",
        "--port",
        str(port),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "KERNEL_CODER_TOKEN"}
    process = subprocess.Popen([*command, *flags], env=environment)
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            time.sleep(0.2)
        os.environ.pop("KERNEL_CODER_TOKEN", None)
        began = time.perf_counter()
        with Client(url, "triton") as client:
            through = list(client.evaluate_many(pairs))
        took = time.perf_counter() - began
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    config = JudgeConfig(workers=workers, checks=2, timing=False)
    with Judge("cpu", "triton", config=config) as judge:
        directly = list(judge.evaluate_many(pairs))
    same = [same_verdict(one, other) for one, other in zip(through, directly, strict=True)]
    for (_, candidate), one, other, is_same in zip(pairs, through, directly, same, strict=True):
        if not is_same:
            print("differ:", one.outcome, one.reason, "|", other.outcome, other.reason, "|", candidate[:60])
    outcomes = {outcome: sum(one.outcome == outcome for one in directly) for outcome in {v.outcome for v in directly}}
    told = ", ".join(f"{number} {outcome.value}" for outcome, number in sorted(outcomes.items()))
    return {
        "part": f"real candidates: {told}",
        **{"requests": len(pairs), "failed": len(pairs) - sum(same), "rate": round(len(pairs) / took, 2)},
    }


def same_verdict(one: Any, other: Any) -> bool:
    """Equal in all that does not depend on the seeds and the clock."""
    names = ("outcome", "compiled", "correct", "task_hash", "candidate_hash", "backend", "interpreted")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def real_pairs(count: int) -> Iterator[tuple[Any, str]]:
    """Packaged solutions, and after each one a spoilt copy of it."""
    from kernel_coder.tasks import load_tasks

    spoil = (
        lambda text: text.replace("tl.load(", "0.5 * tl.load(", 1),
        lambda text: text + "\nraise ValueError('spoilt')\n",
        lambda text: text.replace("class ModelNew", "class Other"),
        lambda text: text.replace("def forward", "def forwards"),
    )
    tasks = [task for name in ("pointwise", "generated") for task in load_tasks(f"packaged:{name}") if task.solution]
    pairs = ((task, text) for n, task in enumerate(tasks) for text in (task.solution, spoil[n % 4](task.solution)))
    yield from itertools.islice(pairs, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--cost-ms", type=float, default=20.0, help="time that the stub judge takes for a verdict")
    parser.add_argument("--workers", type=int, default=16, help="verdicts that the stub judge gives at a time")
    parser.add_argument("--misuse", type=int, default=200, help="clients of each kind that misbehave")
    parser.add_argument("--real", type=int, default=0, metavar="N", help="also judge N real candidates")
    parser.add_argument("--only-real", action="store_true")
    parser.add_argument("--out", default="serve_cpu.csv", help="file in benchmarks/results; rows are added to it")
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve, options.cost_ms, options.workers)
        return
    rows: list[dict[str, Any]] = []
    if not options.only_real:
        service = Service(options)
        try:
            rows.append(asyncio.run(load(service, options.requests, options.clients)))
            print(rows[-1], flush=True)
            for kind in (slow_headers, slow_body, huge_body, malformed, wrong_token, vanishes):
                count, at_once = (options.misuse // 10, 2) if kind is huge_body else (options.misuse, options.misuse)
                rows.append(asyncio.run(misuse(service, kind, max(count, 2), at_once)))
                print(rows[-1], flush=True)
            rows.append(restarts(service, options.requests // 10, 3))
            print(rows[-1], flush=True)
        finally:
            service.stop()
    if options.real:
        rows.append(real(options.real, 2))
        print(rows[-1], flush=True)
    command = " ".join(["python benchmarks/judge/bench_serve.py", *sys.argv[1:]])
    facts = {"cores": len(os.sched_getaffinity(0)), "commit": _commit(), "command": command}
    path = RESULTS / options.out
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if is_new:
            writer.writeheader()
        writer.writerows({name: (row | facts).get(name, "") for name in COLUMNS} for row in rows)


if __name__ == "__main__":
    main()
