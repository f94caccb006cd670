"""Judges on every machine of a Ray cluster, with the interface of a single judge.

Ray starts the processes and notices when they end. An actor holds a :class:`kernel_coder.judge.Judge` for one GPU, or
for the CPUs of one machine. This module only chooses the actor for each candidate, and another one if it dies.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.feedback import unjudged
from kernel_coder.judge.supervisor.admission import Admission
from kernel_coder.judge.supervisor.batching import AnyJudge, verdicts_of
from kernel_coder.judge.supervisor.judge import Judge, as_task
from kernel_coder.judge.supervisor.pool import OUT_OF_SERVICE
from kernel_coder.judge.verdict import Outcome, Verdict
from kernel_coder.tasks.task import Task

LOG = logging.getLogger(__name__)

CLUSTER_POLL_S = 2.0
"""Interval, in seconds, at which the pool looks for machines that joined or left the cluster."""

PATIENCE_S = 300.0
"""Upper limit of a candidate's wait if there is no actor, in seconds. Then its verdict is ``harness_failed``."""

NODE_ANSWER_S = 15.0
"""Time limit, in seconds, for a machine to run an empty task after one of its actors ended. A machine that was killed
does not answer, and Ray notices its end only after several missed health checks."""

MAX_LOSSES = 8
"""Number of actors and machines that end with the same candidate until its verdict is ``crashed``."""

READY_TASKS = 4
"""Number of tasks that an actor is assumed to have prepared for each worker. Their candidates go to it first."""


class JudgeActor:
    """The code of a Ray actor: it has one open judge.

    Verdicts are sent as JSON, so the two sides need not have the same version of every class.
    """

    def __init__(self, make_judge: Callable[..., AnyJudge], device: str, backend: str | None, config: str) -> None:
        self.judge = make_judge(device, backend, config=JudgeConfig.model_validate_json(config))
        self.judge.__enter__()

    def facts(self) -> dict[str, Any]:
        """Return the judge's device, how many candidates it judges at a time, and its versions."""
        judge = self.judge
        return {"device": judge.device, "workers": judge.config.parallel(), "versions": judge.versions}

    def pid(self) -> int:
        """Return the actor's process id on its machine."""
        return os.getpid()

    def evaluate(self, task: Task, candidate: str, backend: str | None) -> str:
        """Judge one candidate and return the verdict as JSON."""
        return self.judge.evaluate(task, candidate, backend).to_json()

    def admit(self, task: Task) -> Admission:
        """Check a task, as :meth:`kernel_coder.judge.Judge.admit` does."""
        return self.judge.admit(task)

    def close(self) -> None:
        """End the judge's processes. This must be called before Ray kills the actor, which calls nothing in it."""
        self.judge.close(wait=False)


@dataclass(eq=False)
class _Member:
    """One actor of the pool."""

    actor: Any
    node: str
    workers: int
    running: int = 0
    begun: int = 0
    is_reserved: bool = False  # for one candidate that is judged without any other
    tasks: dict[str, None] = field(default_factory=dict)  # newest last

    def note(self, task: str) -> None:
        self.tasks.pop(task, None)
        self.tasks[task] = None
        while len(self.tasks) > READY_TASKS * self.workers:
            del self.tasks[next(iter(self.tasks))]


def _nothing() -> None:
    """Do nothing. A machine runs this to show that it is alive."""


def _started_actor(
    ray: Any,
    node: str,
    cpus: float | None,
    make_judge: Callable[..., AnyJudge],
    device: str,
    backend: str | None,
    config: JudgeConfig,
) -> Any:
    """Start an actor on this machine and return it."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    made = ray.remote(JudgeActor).options(
        num_gpus=1 if device == "cuda" else 0,
        num_cpus=0 if cpus is None else cpus,
        max_restarts=0,  # a new actor is made instead, so that a candidate is never judged again in the same one
        max_concurrency=2 * config.parallel() + 2,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
    )
    return made.remote(make_judge, device, backend, config.model_dump_json())


def _end(ray: Any, actor: Any) -> None:
    """Close an actor's judge and end the actor."""
    with contextlib.suppress(Exception):
        ray.get(actor.close.remote(), timeout=10)
    with contextlib.suppress(Exception):
        ray.kill(actor)


def _is_node_alive(ray: Any, node: str) -> bool:
    """Return whether the machine still runs a task."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    place = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    empty = ray.remote(_nothing).options(num_cpus=0, max_retries=0, scheduling_strategy=place)
    try:
        ray.get(empty.remote(), timeout=NODE_ANSWER_S)
    except ray.exceptions.RayError:
        return False
    return True


class RayJudge:
    """A judge for each GPU of a Ray cluster, or for each machine without GPUs, with the interface of a single judge.

    Actors are started on machines that join, and forgotten on machines that leave. A candidate whose actor died is
    judged again by another one. If that dies too, the candidate is judged in an actor that judges nothing else
    meanwhile. If that dies as well, the candidate has caused it, and its verdict is ``crashed``. The end of a whole
    machine is not counted against a candidate.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        backend: the language of candidates, unless a call names another; None: that of their task.
        config: the configuration of every judge; ``config.workers`` is the number for each actor.
        address: address of the cluster, as ``ray.init`` takes it; None: the cluster that this process is connected to,
            or a local one.
        cpus: CPUs that each actor reserves; None: none.
        make_judge: called instead of :class:`kernel_coder.judge.Judge`, for tests. It must be importable in the actor.

    Raises:
        ValueError: an unknown device, Ray is not installed, or no machine of the cluster has room for an actor.
    """

    def __init__(
        self,
        device: str = "cpu",
        backend: str | None = None,
        *,
        config: JudgeConfig | None = None,
        address: str | None = None,
        cpus: float | None = None,
        make_judge: Callable[..., AnyJudge] = Judge,
        patience_s: float = PATIENCE_S,
    ) -> None:
        if device not in ("cpu", "cuda"):
            raise ValueError(f"device of a Ray pool must be cpu or cuda; got {device!r}")
        try:
            import ray
        except ModuleNotFoundError:
            raise ValueError("a judge on a Ray cluster needs ray: pip install 'kernel-coder[ray]'") from None
        self._ray = ray
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, include_dashboard=False)
        self._config = config or JudgeConfig()
        self.device, self.backend = device, backend
        self._cpus, self._make_judge, self._patience_s = cpus, make_judge, patience_s
        self._members: list[_Member] = []
        self._coming: dict[Any, tuple[Any, str]] = {}  # actor and node by Ray's reference to the actor's facts
        self._changed = threading.Condition()
        self._failures: list[str] = []  # error messages of judges that could not be opened
        self._is_closed = self._gives_up = False
        self._closing = threading.Event()
        self._suspects = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self.profile = "the sandboxes of a Ray cluster"
        self.versions: dict[str, str] = {}
        self._look()
        self._watcher = threading.Thread(target=self._watch, name="ray-judge", daemon=True)
        self._watcher.start()
        with self._changed:
            self._changed.wait_for(lambda: self._failures or not self._coming, timeout=patience_s)
        if not self._members:
            why = f"no judge was open within {patience_s:g} s"
            if self._failures:
                why = f"a judge could not be opened: {self._failures[-1]}"
            elif not self._coming:
                why = f"no machine has {'a GPU' if device == 'cuda' else 'a CPU'} for a judge"
            self.close(wait=False)
            raise ValueError(f"on the Ray cluster {why}")

    @property
    def config(self) -> JudgeConfig:
        """The configuration of every judge, with the number of workers that all current actors have together."""
        return self._config.model_copy(update={"workers": self.at_once})

    @property
    def at_once(self) -> int:
        """Number of candidates that all current actors judge at the same time."""
        return max(sum(member.workers for member in self._members), 1)

    # ---- the interface of a judge

    def evaluate(self, task: Task | str, candidate: str, backend: str | None = None) -> Verdict:
        """Judge one candidate with the most suitable actor, as :meth:`kernel_coder.judge.Judge.evaluate` does."""
        task = as_task(task)
        chosen = backend or self.backend or task.backend
        deaths = losses = 0
        while losses < MAX_LOSSES:
            member = self._take(task.reference)
            if member is None:
                return self._lost(task, candidate, chosen, "no actor of the Ray cluster was there to judge it")
            try:
                answer = self._ray.get(member.actor.evaluate.remote(task, candidate, chosen))
            except self._ray.exceptions.RayActorError as error:
                LOG.warning("a judge's actor ended: %s", error)
                self._forget(member)
                losses += 1
                deaths += _is_node_alive(self._ray, member.node)
                if deaths >= 2:
                    return self._alone(task, candidate, chosen)
                continue
            except self._ray.exceptions.RayTaskError:
                if self._is_there(member):
                    raise
                losses += 1  # the actor ended during another candidate, and its judge was closed meanwhile
                continue
            finally:
                self._give_back(member)
            verdict = Verdict.from_json(answer)
            if verdict.outcome is Outcome.HARNESS_FAILED and not self._is_closed:
                if OUT_OF_SERVICE in (verdict.reason or ""):
                    self._forget(member)  # its device is out of service
                    if self._members:
                        continue
                elif not self._is_there(member):
                    losses += 1  # the candidate was given up together with its actor
                    continue
            return verdict
        return self._crashed(task, candidate, chosen, losses)

    def evaluate_many(
        self, pairs: Iterable[Sequence[Any]], *, progress: bool = False, total: int | None = None
    ) -> Iterator[Verdict]:
        """Judge several ``(task, candidate)`` or ``(task, candidate, backend)`` at a time. Yield verdicts in order."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(2 * self.at_once, thread_name_prefix="ray-judge")
        return verdicts_of(self, pairs, self._threads, progress=progress, total=total)

    def admit(self, task: Task | str) -> Admission:
        """Check a task, as :meth:`kernel_coder.judge.Judge.admit` does."""
        task = as_task(task)
        member = self._take(task.reference)
        if member is None:
            raise ValueError("no actor of the Ray cluster is there to judge")
        try:
            admission: Admission = self._ray.get(member.actor.admit.remote(task))
            return admission
        finally:
            self._give_back(member)

    def give_up_waiting(self) -> None:
        """Give up the candidates that wait for an actor: their verdict is ``harness_failed``."""
        with self._changed:
            self._gives_up = True
            self._changed.notify_all()

    def close(self, *, wait: bool = True) -> None:
        """End every judge and its actor. The cluster keeps running."""
        if self._is_closed:
            return
        if self._threads is not None:
            self._threads.shutdown(wait=wait, cancel_futures=not wait)
        self._closing.set()
        self._watcher.join()
        with self._changed:
            self._is_closed = True
            actors = [member.actor for member in self._members] + [actor for actor, _ in self._coming.values()]
            self._members.clear()
            self._coming.clear()
            self._changed.notify_all()
        for actor in actors:
            _end(self._ray, actor)

    def __enter__(self) -> RayJudge:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(wait=kind is None)

    # ---- actors

    def _watch(self) -> None:
        # A call to Ray after its shutdown would start a new cluster. So this loop ends with `close`.
        while not self._closing.wait(CLUSTER_POLL_S if self._members else 0.2):
            with contextlib.suppress(Exception):  # the cluster may be going down
                self._look()

    def _look(self) -> None:
        """Start the actors that are missing, and add those whose judge is open now."""
        coming = list(self._coming)
        ready = self._ray.wait(coming, num_returns=len(coming), timeout=0)[0] if coming else []
        for reference in ready:
            actor, node = self._coming[reference]
            try:
                facts = self._ray.get(reference)
            except Exception as error:
                LOG.error("a judge could not be opened on the Ray cluster: %s", error)
                with self._changed:
                    del self._coming[reference]
                    self._failures.append(str(error).strip().splitlines()[-1])
                continue
            with self._changed:
                del self._coming[reference]
                self.versions = facts["versions"]
                self._members.append(_Member(actor, node, facts["workers"]))
                self._changed.notify_all()
        alive = {node["NodeID"]: node["Resources"] for node in self._ray.nodes() if node["Alive"]}
        with self._changed:
            self._members = [member for member in self._members if member.node in alive]
        for node, resources in alive.items():
            wanted = int(resources.get("GPU", 0)) if self.device == "cuda" else int(resources.get("CPU", 0) >= 1)
            have = sum(member.node == node for member in self._members)
            have += sum(place == node for _, place in self._coming.values())
            for _ in range(wanted - have):
                self._make(node)
        with self._changed:
            self._changed.notify_all()

    def _make(self, node: str) -> None:
        make = self._make_judge, self.device, self.backend, self._config
        actor = _started_actor(self._ray, node, self._cpus, *make)
        self._coming[actor.facts.remote()] = actor, node

    def _take(self, reference: str) -> _Member | None:
        """Return an actor for a candidate of this task when one is free; None if there is no actor for too long."""
        chosen: list[_Member] = []

        def find() -> bool:
            free = [one for one in self._members if one.running < 2 * one.workers and not one.is_reserved]
            if free:
                load = min(free, key=lambda member: (member.running / member.workers, member.begun))
                with_task = [member for member in free if reference in member.tasks and member.running < member.workers]
                chosen.append(min(with_task, key=lambda member: member.running) if with_task else load)
            return bool(chosen) or self._is_closed or self._gives_up

        with self._changed:
            since: float | None = None  # when the pool was first seen without any actor
            while not find():
                if self._members:
                    since = None
                else:
                    since = since or time.monotonic()
                    if time.monotonic() - since > self._patience_s:
                        return None
                self._changed.wait(1.0)
            if not chosen:
                return None
            member = chosen[0]
            member.running += 1
            member.begun += 1
            member.note(reference)
            return member

    def _give_back(self, member: _Member) -> None:
        with self._changed:
            member.running -= 1
            self._changed.notify_all()

    def _forget(self, member: _Member) -> None:
        with self._changed:
            if member in self._members:
                self._members.remove(member)
                self._changed.notify_all()
        _end(self._ray, member.actor)

    def _is_alone_or_gone(self, member: _Member) -> bool:
        """Return whether an actor has only one candidate or has left. The caller holds the lock."""
        return member.running == 1 or member not in self._members

    def _is_there(self, member: _Member) -> bool:
        with self._changed:
            return member in self._members

    # ---- verdicts without an answer

    def _alone(self, task: Task, candidate: str, backend: str) -> Verdict:
        """Judge once more a candidate with which two actors have died, in an actor that judges nothing else.

        If the actor's machine ends meanwhile, the attempt does not count.
        """
        with self._suspects:
            for _ in range(MAX_LOSSES):
                member = self._take(task.reference)
                if member is None:
                    return self._lost(task, candidate, backend, "no actor of the Ray cluster was there to judge it")
                with self._changed:
                    member.is_reserved = True
                    self._changed.wait_for(partial(self._is_alone_or_gone, member))
                try:
                    if not self._is_there(member):
                        continue
                    return Verdict.from_json(self._ray.get(member.actor.evaluate.remote(task, candidate, backend)))
                except self._ray.exceptions.RayActorError:
                    self._forget(member)
                    if _is_node_alive(self._ray, member.node):
                        return self._crashed(task, candidate, backend, 3)
                finally:
                    member.is_reserved = False
                    self._give_back(member)
            return self._crashed(task, candidate, backend, MAX_LOSSES)

    def _crashed(self, task: Task, candidate: str, backend: str, losses: int) -> Verdict:
        reason = f"the judge's whole process ended {losses} times while it judged this candidate"
        return unjudged(task, candidate, Outcome.CRASHED, reason, backend=backend, device=self.device)

    def _lost(self, task: Task, candidate: str, backend: str, reason: str) -> Verdict:
        if self._is_closed or self._gives_up:
            reason = "it was given up before a verdict came"
        return unjudged(task, candidate, Outcome.HARNESS_FAILED, reason, backend=backend, device=self.device)
