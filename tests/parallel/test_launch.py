"""``--nproc`` and torchrun: exit codes, a run that continues after a rank was killed, and the other commands."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kernel_coder.evaluate.answers import Answer
from kernel_coder.evaluate.divided import own_answers
from kernel_coder.judge import example_verdict
from kernel_coder.run import distributed
from kernel_coder.run.errors import EXIT_MISTAKE, UsageError
from kernel_coder.run.launch import nproc_of
from kernel_coder.run.steps import LAG_STEPS, RankTimes
from kernel_coder.train.host_judge import HostJudge, JudgeOfHost
from ranks import on_ranks

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
from tiny_run import flags, records, summary, write_tasks

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1] / "train"), *sys.path]),
    "OMP_NUM_THREADS": "1",
}
RESTARTING: dict[str, Any] = {"run__max_steps": 6, "run__save_steps": 1, "run__save_total_limit": 2}
LIMIT_S = 240
"""Longest time, in seconds, for a short run of two processes; each imports torch and transformers first."""


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Task ids contain the name of their folder, and ids seed the sampling. pytest numbers only the parent folder.
    return write_tasks(tmp_path_factory.mktemp("fixed") / "tasks")


def test_nproc_is_read_and_removed() -> None:
    assert nproc_of(["--nproc=4", "--resume"]) == (4, ["--resume"])
    assert nproc_of(["--resume"]) == (None, ["--resume"])
    with pytest.raises(UsageError, match="--nproc must be a number of processes"):
        nproc_of(["--nproc", "none"])


@pytest.mark.long
def test_nproc_runs_the_command_and_returns_its_exit_code(tasks: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kernel_coder.train", "--nproc", "2"]
    good = [*command, *flags(tasks, tmp_path / "run", run__max_steps=1)]
    done = subprocess.run(good, env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert summary(tmp_path / "run")["processes"] == 2
    assert done.stdout.count("step 1/1") == 1
    bad = [*command, *flags(tasks, tmp_path / "bad", parallel__replicas=3)]
    done = subprocess.run(bad, env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == EXIT_MISTAKE
    assert "parallel.replicas = 3 does not divide the 2 processes" in done.stderr


def test_a_rank_ends_without_python_s_shutdown_and_loses_no_output() -> None:
    code = (
        "import atexit, weakref; from kernel_coder.run.distributed import end_process\n"
        "class Shutdown:\n    def __del__(self): print('shut down')\n"
        "kept = Shutdown(); atexit.register(print, 'exit function'); print('done'); end_process(3)"
    )
    rank = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "",
        "MASTER_PORT": "",
    }
    for more, lines in ((rank, ["done", "exit function"]), ({}, ["done", "exit function", "shut down"])):
        done = subprocess.run([sys.executable, "-c", code], env={**ENVIRONMENT, **more}, capture_output=True, text=True)
        assert done.returncode == 3
        assert done.stdout.splitlines() == lines


@pytest.mark.long
def test_run_under_torchrun_continues_after_a_rank_was_killed(tasks: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", "--monitor-interval", "0.2", "-m", "kernel_coder.train"]
    killed_after = random.Random(0).randrange(2, 4)
    process = subprocess.Popen(
        [*command, *flags(tasks, run_dir, **RESTARTING)], env=ENVIRONMENT, stdout=subprocess.DEVNULL
    )
    began = time.monotonic()
    while not (run_dir / f"checkpoint-{killed_after:08d}").exists():
        assert time.monotonic() - began < LIMIT_S
        time.sleep(0.01)
    os.kill(worker_of(process.pid), signal.SIGKILL)
    assert process.wait(LIMIT_S) == 0
    steps = [record["step"] for record in records(run_dir / "metrics.jsonl")]
    assert steps == [1, 2, 3, 4, 5, 6]
    straight = tmp_path / "straight"
    nproc = [sys.executable, "-m", "kernel_coder.train", "--nproc", "2", *flags(tasks, straight, **RESTARTING)]
    subprocess.run(nproc, env=ENVIRONMENT, check=True, capture_output=True, timeout=LIMIT_S)
    assert summary(run_dir)["weights_sha256"] == summary(straight)["weights_sha256"]


def worker_of(launcher: int) -> int:
    """The process id of a rank that this launcher started."""
    threads = Path(f"/proc/{launcher}/task").iterdir()
    children = [pid for thread in threads for pid in (thread / "children").read_text().split()]
    ranks = [int(pid) for pid in children if b"kernel_coder.train" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return ranks[-1]


class Counting:
    """A judge that repeats its arguments in the verdict."""

    def __init__(self) -> None:
        self.closed = False

    def evaluate(self, task: Any, candidate: str, backend: str | None = None) -> Any:
        if candidate == "fail":
            raise ValueError("no such candidate")
        return example_verdict("wrong_output", reason=f"{task} {candidate} {backend}")

    def close(self, *, wait: bool = True) -> None:
        self.closed = True


def test_the_ranks_of_a_host_share_one_judge() -> None:
    judge = Counting()
    host = HostJudge(judge, alternate=True)
    rank = JudgeOfHost(host.address)
    assert rank.evaluate("task", "code", "triton").reason == "task code triton"  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no such candidate"):
        rank.evaluate("task", "fail")  # type: ignore[arg-type]
    with rank.sampling():
        assert host.turnstile is not None
        assert host.turnstile.counts == {"sampling": 1, "judging": 0}
    assert host.turnstile.counts == {"sampling": 0, "judging": 0}
    host.close()
    assert judge.closed
    rank.close()
    with pytest.raises(RuntimeError, match="the judge of this host"):
        JudgeOfHost(host.address).evaluate("task", "code")  # type: ignore[arg-type]


def compared(seconds: list[float]) -> list[str]:
    times = RankTimes()
    said: list[str] = []
    for _ in range(LAG_STEPS):
        found, notes = times.compare({"time/rollout_s": seconds[distributed.world().rank], "time/wait_s": 100.0})
        said += notes
    assert found["time/slowest_rank"] == 1.0
    assert found["time/rank1/rollout_s"] == seconds[1]
    return said


def test_a_rank_that_lags_is_named() -> None:
    for said in on_ranks(3, compared, [1.0, 2.0, 1.1]):
        assert len(said) == 1
        assert said[0].startswith("rank 1 on ")
        assert "lags: 2.0 s" in said[0]


class Echo:
    def answer(self, requests: list[str], poll: Any) -> Any:
        for request in reversed(requests):
            yield request, Answer(request.upper(), "stop")

    def close(self) -> None: ...


def answered(requests: list[str]) -> list[tuple[int, str]]:
    found = own_answers(Echo(), requests)
    assert not isinstance(found, Exception)
    return [(place, answer.text) for place, answer in found]


def test_evaluation_divides_its_requests() -> None:
    first, second = on_ranks(2, answered, ["a", "b", "c"])
    assert sorted(first) == [(0, "A"), (2, "C")]
    assert second == [(1, "B")]
