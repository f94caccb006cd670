"""A real local Ray cluster of three machines: verdicts, killed actors and machines, and machines that join."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kernel_coder
import pytest

pytest.importorskip("ray")
import ray
from kernel_coder.judge import JudgeConfig, Outcome
from kernel_coder.judge.supervisor.judge import PROBE
from kernel_coder.judge.supervisor.ray_pool import RayJudge
from kernel_coder.tasks.task import Task
from kernel_coder.train.config import JudgeSection
from kernel_coder.train.verdicts import AnswerJudge
from slow_judge import SlowJudge

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

REFERENCE = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ..."
PATHS = [str(Path(kernel_coder.__file__).parents[1]), str(Path(__file__).parent)]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(PATHS))
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes = [made.add_node(num_cpus=1) for _ in range(2)]
    ray.init(address=made.address, log_to_driver=False, include_dashboard=False)
    made.wait_for_nodes()
    made.others = nodes
    yield made
    ray.shutdown()
    made.shutdown()


def slow_pool(**options: Any) -> RayJudge:
    return RayJudge("cpu", config=JudgeConfig(workers=2), make_judge=SlowJudge, patience_s=60, **options)


def test_every_machine_gets_an_actor_and_candidates_are_spread(cluster: Any) -> None:
    with slow_pool() as judge:
        _until(lambda: judge.at_once == 6)
        began = time.monotonic()
        verdicts = list(judge.evaluate_many([(REFERENCE, f"# {n} # cost 0.5") for n in range(24)]))
        assert {verdict.outcome for verdict in verdicts} == {Outcome.CORRECT}
        assert len({verdict.device for verdict in verdicts}) == 3, "all three actors judged"
        assert time.monotonic() - began < 24 * 0.5 / 3


def test_killed_actors_and_a_killed_machine_lose_no_verdict(cluster: Any) -> None:
    with slow_pool() as judge:
        _until(lambda: judge.at_once == 6)
        victims = ray.get([member.actor.pid.remote() for member in judge._members])[:2]
        found: list[Any] = []
        pairs = [(REFERENCE, f"# {n} # cost 0.2") for n in range(120)]
        worker = threading.Thread(target=lambda: found.extend(judge.evaluate_many(pairs)))
        worker.start()
        time.sleep(1.5)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        time.sleep(2.0)
        cluster.remove_node(cluster.others[1], allow_graceful=False)
        worker.join(120)
        assert not worker.is_alive()
        assert [verdict.outcome for verdict in found] == [Outcome.CORRECT] * 120
        assert len({verdict.candidate_hash for verdict in found}) == 120, "none twice, none lost"


def test_a_candidate_that_kills_its_actors_is_crashed_and_others_are_not(cluster: Any) -> None:
    with slow_pool() as judge:
        _until(lambda: judge.at_once == 6)
        pairs = [(REFERENCE, f"# {n} # cost 0.3") for n in range(20)]
        pairs.insert(3, (REFERENCE, "# kill"))
        verdicts = list(judge.evaluate_many(pairs))
        assert verdicts.pop(3).outcome is Outcome.CRASHED
        assert {verdict.outcome for verdict in verdicts} == {Outcome.CORRECT}


def test_a_machine_that_joins_is_used(cluster: Any) -> None:
    with slow_pool() as judge:
        _until(lambda: judge.at_once == 6)
        cluster.add_node(num_cpus=1)
        _until(lambda: judge.at_once == 8)


def test_a_pool_that_is_closed_starts_no_cluster_of_its_own(cluster: Any) -> None:
    with slow_pool():
        pass
    ray.shutdown()
    time.sleep(3.0)
    assert not ray.is_initialized()


def test_a_recipe_names_the_cluster_and_real_candidates_are_judged_there(cluster: Any) -> None:
    section = JudgeSection(cluster="ray://auto", backend="torch", workers=1, checks=1, timing=False)
    task = Task(id="square", source="test", reference=PROBE, backend="torch")
    right = PROBE.replace("class Model", "class ModelNew")
    answers = [f"<answer>\n```python\n{code}\n```\n</answer>" for code in (right, right.replace("x * x", "x"))]
    with AnswerJudge(section) as judge, judge.asking() as ask:
        assert ask is not None
        verdicts = [ask(task, answer) for answer in answers]
        assert [one.result().outcome for one in verdicts] == [Outcome.CORRECT, Outcome.WRONG_OUTPUT]


def _until(is_so: Any, timeout_s: float = 90.0) -> None:
    until = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.05)
