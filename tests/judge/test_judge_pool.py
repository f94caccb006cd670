"""One judge over several devices."""

from __future__ import annotations

import inspect
import threading
import time
from typing import Any

import kernel_coder.judge.supervisor.open
import kernel_coder.judge.supervisor.pool
import pytest
from kernel_coder.judge import JudgeConfig, JudgePool, Outcome, Verdict, example_verdict, open_judge
from kernel_coder.judge.supervisor.batching import devices_of, parallel
from kernel_coder.judge.supervisor.pool import OUT_OF_SERVICE

CONFIG = JudgeConfig(workers=2)


class Slow:
    """A fake judge. A candidate is the number of seconds that judging it takes. ``lost`` names the devices that are out
    of service.
    """

    lost: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()

    def __init__(self, device: str, backend: str | None, config: JudgeConfig) -> None:
        if device in self.broken:
            raise ValueError(f"{device} is not there")
        self.device, self.backend, self.config, self.profile = device, backend, config, "profile of " + device
        self.versions: dict[str, str] = {}
        self.judged: list[str] = []
        self.most = self.running = 0
        self.closed: list[bool] = []
        self.given_up = 0
        self.lock = threading.Lock()

    def evaluate(self, task: Any, candidate: str, backend: str | None = None) -> Verdict:
        with self.lock:
            self.judged.append(candidate)
            self.running += 1
            self.most = max(self.most, self.running)
        if self.device in self.lost:
            with self.lock:
                self.running -= 1
            return example_verdict(
                "harness_failed", reason=f"{self.device} {OUT_OF_SERVICE}: it failed a probe 3 times"
            )
        time.sleep(float(candidate))
        with self.lock:
            self.running -= 1
        return example_verdict("correct", task=candidate, device=self.device, backend=backend or "triton")

    def admit(self, task: Any) -> str:
        return self.device

    def give_up_waiting(self) -> None:
        self.given_up += 1

    def close(self, *, wait: bool = True) -> None:
        self.closed.append(wait)

    def __enter__(self) -> Slow:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pool(devices: list[str], **changes: Any) -> JudgePool:
    return JudgePool(devices, "triton", config=CONFIG, make_judge=type("Made", (Slow,), changes))


def test_verdicts_come_in_order_and_every_device_is_used() -> None:
    delays = ["0.05", "0.0", "0.03", "0.01"] * 6
    with pool(["cuda:1", "cuda:2", "cuda:3"]) as judge:
        found = list(judge.evaluate_many(("task", delay) for delay in delays))
    assert [verdict.task for verdict in found] == delays
    assert {verdict.device for verdict in found} == {"cuda:1", "cuda:2", "cuda:3"}
    assert [one.closed for one in judge.judges] == [[True]] * 3  # type: ignore[attr-defined]


def test_candidate_goes_to_the_device_with_the_fewest_running_candidates() -> None:
    with pool(["cuda:1", "cuda:2"]) as judge:
        slow = threading.Thread(target=judge.evaluate, args=("task", "0.5"))
        slow.start()
        while not judge.judges[0].judged:  # type: ignore[attr-defined]
            time.sleep(0.001)
        places = [judge.evaluate("task", "0.0").device for _ in range(3)]
        slow.join()
    assert places == ["cuda:2"] * 3


def test_device_gets_at_most_two_candidates_per_worker_at_a_time() -> None:
    """A candidate that waits at a device can get a worker that has its task ready."""
    with pool(["cuda:1", "cuda:2"]) as judge:
        list(judge.evaluate_many([("task", "0.01")] * 24))
    assert [one.most for one in judge.judges] == [2 * CONFIG.workers] * 2  # type: ignore[attr-defined, operator]


def test_pool_takes_at_most_two_pairs_per_worker_ahead_of_the_verdicts() -> None:
    taken: list[int] = []

    def pairs() -> Any:
        for number in range(100):
            taken.append(number)
            yield "task", "0.0" if number == 0 else "0.3", "torch"

    with pool(["cuda:1", "cuda:2"]) as judge:
        verdicts = judge.evaluate_many(pairs())
        assert next(verdicts).backend == "torch"
        assert len(taken) == 8
        verdicts.close()  # type: ignore[attr-defined]


def test_a_slow_candidate_keeps_a_bounded_number_of_verdicts_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel_coder.judge.supervisor.batching.MAX_VERDICTS_AHEAD", 30)
    taken: list[int] = []

    def pairs() -> Any:
        for number in range(100):
            taken.append(number)
            yield "task", "1.0" if number == 0 else "0.0"

    with pool(["cuda:1", "cuda:2"]) as judge:
        verdicts = judge.evaluate_many(pairs())
        assert next(verdicts).task == "1.0"
        assert len(taken) == 30
        assert sum(len(one.judged) for one in judge.judges) == 30  # type: ignore[attr-defined]
        assert len(list(verdicts)) == 99


def test_a_device_out_of_service_loses_no_candidate() -> None:
    with pool(["cuda:1", "cuda:2"], lost=frozenset({"cuda:1"})) as judge:
        found = list(judge.evaluate_many([("task", "0.0")] * 12))
        assert {verdict.device for verdict in found} == {"cuda:2"}
        assert len(judge.judges[0].judged) <= 2 * CONFIG.parallel()  # type: ignore[attr-defined]
    with pool(["cuda:1"], lost=frozenset({"cuda:1"})) as judge:
        assert judge.evaluate("task", "0.0").outcome is Outcome.HARNESS_FAILED


def test_judge_reports_a_lost_device_with_the_words_that_the_pool_looks_for() -> None:
    assert OUT_OF_SERVICE in inspect.getsource(kernel_coder.judge.supervisor.judge.Judge._probe_device)


def test_give_up_waiting_reaches_the_judge_of_every_device() -> None:
    with pool(["cuda:1", "cuda:2"]) as judge:
        judge.give_up_waiting()
    assert [one.given_up for one in judge.judges] == [1, 1]  # type: ignore[attr-defined]


def test_a_judge_that_cannot_be_opened_closes_the_others() -> None:
    made: list[Slow] = []

    def make(device: str, backend: str | None, config: JudgeConfig) -> Slow:
        if device == "cuda:9":
            raise ValueError("cuda:9 is not there")
        made.append(Slow(device, backend, config))
        return made[-1]

    with pytest.raises(ValueError, match="cuda:9 is not there"):
        JudgePool(["cuda:1", "cuda:9"], "triton", config=CONFIG, make_judge=make)  # type: ignore[arg-type]
    assert made[0].closed == [False]


def test_exception_inside_the_block_closes_all_judges_without_waiting() -> None:
    judge = pool(["cuda:1", "cuda:2"])
    with pytest.raises(KeyError), judge:
        raise KeyError("stopped")
    assert [one.closed for one in judge.judges] == [[False]] * 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text", ["gpu", "cuda:x", "cpu,cuda:1", "cuda:1,cuda:1", "cuda,cuda:0", "cuda:1,", "cpu:0", ""]
)
def test_invalid_list_of_devices_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="device"):
        devices_of(text)


def test_parallel_counts_the_workers_of_all_devices() -> None:
    assert parallel("cuda:1,cuda:2,cuda:3", CONFIG) == 6
    assert parallel("cpu", CONFIG) == 2


def test_one_device_opens_a_plain_judge_and_several_open_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kernel_coder.judge.supervisor.open, kernel_coder.judge.supervisor.pool):
        monkeypatch.setattr(module, "Judge", Slow)
    assert isinstance(open_judge("cpu", "triton", config=CONFIG), Slow)
    several = open_judge("cuda:1,cuda:2", "triton", config=CONFIG)
    assert isinstance(several, JudgePool)
    assert (several.device, several.config.workers, several.profile) == ("cuda:1,cuda:2", 2, "profile of cuda:1")
    assert several.admit("task") == "cuda:1"
