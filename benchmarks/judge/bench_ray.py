"""Measures judging on a Ray cluster: the rate against the number of actors, losses, and verdicts beside one judge's.

    python benchmarks/judge/bench_ray.py --rate 1,2,4,16,64          # rows into results/ray_cpu.csv
    python benchmarks/judge/bench_ray.py --kill 500 --hostile 60     # also on this machine's cores, with real judges

`rate`: a simulated judge that takes one second for a verdict, one actor for each of so many pretended GPUs; `of_ideal`
is the rate divided by the number of actors. `kill`: a local cluster of three machines judges candidates of the packaged
tasks; meanwhile two actors and one machine are killed by SIGKILL. `differ` counts candidates whose verdict differs from
that of one judge in this process, `lost` those without exactly one verdict. `hostile`: every Nth candidate of the
corpus; `differ` counts those that were accepted.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
TESTS = HERE.parents[2] / "tests"
RESULTS = HERE.parents[1] / "results"
sys.path[:0] = [str(TESTS / "integrations"), str(TESTS / "judge"), str(HERE.parent)]
os.environ["KC_CORPUS"] = "all"

import kernel_coder  # noqa: E402
import ray  # noqa: E402
from bench_judge import _commit  # noqa: E402
from bench_serve import real_pairs, same_verdict  # noqa: E402
from kernel_coder.judge import Judge, JudgeConfig, Outcome, RayJudge  # noqa: E402
from slow_judge import SlowJudge  # noqa: E402

PATHS = [str(Path(kernel_coder.__file__).parents[1]), str(TESTS / "integrations")]
REFERENCE = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ..."
ACTOR_BYTES = 200 << 20
"""Memory that an actor needs for itself, about; with less available, fewer are started and the row is left out."""


@contextmanager
def cluster(nodes: int, **options: Any) -> Iterator[Any]:
    """A local cluster of Ray with so many machines."""
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = os.pathsep.join(PATHS)
    made = Cluster(initialize_head=True, head_node_args=options)
    made.others = [made.add_node(**options) for _ in range(nodes - 1)]
    ray.init(address=made.address, log_to_driver=False, include_dashboard=False)
    made.wait_for_nodes()
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def rate(actors: int, seconds: float) -> dict[str, Any]:
    """Verdicts a second of a simulated judge."""
    count = int(actors * seconds)
    with (
        cluster(1, num_cpus=1, num_gpus=actors),
        RayJudge("cuda", config=JudgeConfig(workers=1), make_judge=SlowJudge) as judge,
    ):
        assert judge.at_once == actors
        pairs = [(REFERENCE, f"# {number} # cost 1.0") for number in range(count)]
        began = time.perf_counter()
        found = list(judge.evaluate_many(pairs))
        took = time.perf_counter() - began
    assert {one.outcome for one in found} == {Outcome.CORRECT}
    return {
        "part": "rate",
        "actors": actors,
        "candidates": count,
        "lost": count - len({one.candidate_hash for one in found}),
        "seconds": round(took, 2),
        "rate": round(count / took, 3),
        "of_ideal": round(count / took / actors, 4),
    }


CONFIG = JudgeConfig(workers=1, checks=1, timing=False, null_candidates=False)


def kill(count: int) -> dict[str, Any]:
    """Judges real candidates on three machines. One machine is killed meanwhile, and two actors of the others."""
    pairs = list(real_pairs(count))
    with cluster(3, num_cpus=1) as machines, RayJudge("cpu", "triton", config=CONFIG) as judge:
        until = time.monotonic() + 240
        while judge.at_once < 3:
            assert time.monotonic() < until, "the actors did not open"
            time.sleep(0.1)
        found: list[Any] = []
        worker = threading.Thread(target=lambda: found.extend(judge.evaluate_many(pairs)))
        began = time.perf_counter()
        worker.start()
        killed = 0
        while killed < 3:
            while len(found) < count * (killed + 1) // 5 and worker.is_alive():
                time.sleep(0.05)
            if killed == 2:
                machines.remove_node(machines.others[1], allow_graceful=False)
            else:
                pid = ray.get(judge._members[0].actor.pid.remote())
                os.kill(pid, signal.SIGKILL)
            killed += 1
            print(f"killed {killed} after {len(found)} verdicts", flush=True)
        worker.join()
        took = time.perf_counter() - began
    with Judge("cpu", "triton", config=CONFIG) as one:
        directly = list(one.evaluate_many(pairs))
    differ = [pair for pair, a, b in zip(pairs, found, directly, strict=True) if not same_verdict(a, b)]
    for (_, candidate), a, b in zip(pairs, found, directly, strict=True):
        if not same_verdict(a, b):
            print("differ:", a.outcome, a.reason, "|", b.outcome, b.reason, "|", candidate[:60])
    return {
        "part": "two actors and a machine killed",
        "actors": 3,
        "candidates": count,
        "lost": count - len(found) + sum(not one.is_scored for one in found),
        "differ": len(differ),
        "seconds": round(took, 1),
        "rate": round(count / took, 2),
    }


def hostile(count: int) -> dict[str, Any]:
    """Every Nth hostile candidate of the corpus on two machines."""
    import corpus
    from test_corpus import accepted, chosen, limits, pairs

    quick = [one for one in chosen(corpus.hostile(), "cpu") if not one.slow]
    some = quick[:: max(len(quick) // count, 1)][:count]
    with cluster(2, num_cpus=1), RayJudge("cpu", config=limits("cpu").model_copy(update={"workers": 1})) as judge:
        began = time.perf_counter()
        found = list(judge.evaluate_many(pairs(some)))
        took = time.perf_counter() - began
    wrong = [one.name for one, verdict in zip(some, found, strict=True) if accepted(one, verdict)]
    lost = [one.name for one, verdict in zip(some, found, strict=True) if not verdict.is_scored]
    print("accepted:", wrong, "not scored:", lost)
    return {
        "part": f"hostile, {len(some)} of {len(quick)} that need no compiler",
        "actors": 2,
        "candidates": len(some),
        "lost": len(lost),
        "differ": len(wrong),
        "seconds": round(took, 1),
        "rate": round(len(some) / took, 2),
    }


def available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", help="numbers of actors, as in 1,2,4,16,64")
    parser.add_argument("--seconds", type=float, default=10.0, help="ideal duration of each measurement of the rate")
    parser.add_argument("--kill", type=int, default=0, metavar="N", help="judge N real candidates with losses")
    parser.add_argument("--hostile", type=int, default=0, metavar="N", help="judge N hostile candidates")
    parser.add_argument("--out", default="ray_cpu.csv", help="file in benchmarks/results; rows are added to it")
    options = parser.parse_args()
    facts = {
        "cores": len(os.sched_getaffinity(0)),
        "ray": ray.__version__,
        "commit": _commit(),
        "command": " ".join(["python benchmarks/judge/bench_ray.py", *sys.argv[1:]]),
    }
    for actors in map(int, (options.rate or "").split(",") if options.rate else ()):
        if available_bytes() < actors * ACTOR_BYTES:
            print(f"{actors} actors need more memory than this machine has now")
            continue
        append(options.out, {**rate(actors, options.seconds), **facts})
    if options.kill:
        append(options.out, {**kill(options.kill), **facts})
    if options.hostile:
        append(options.out, {**hostile(options.hostile), **facts})


COLUMNS = ("part", "actors", "candidates", "lost", "differ", "seconds", "rate", "of_ideal")


def append(name: str, row: dict[str, Any]) -> None:
    """Add a row to the file."""
    print(json.dumps(row), flush=True)
    path = RESULTS / name
    columns = [*COLUMNS, "cores", "ray", "commit", "command"]
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns)
        if is_new:
            writer.writeheader()
        writer.writerow({column: row.get(column, "") for column in columns})


if __name__ == "__main__":
    main()
