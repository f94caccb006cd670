"""The judge of a run: it is started once, judges each different answer once, and is closed at the end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from kernel_coder import ops
from kernel_coder.judge import Outcome, Verdict
from kernel_coder.judge.feedback import unjudged
from kernel_coder.judge.supervisor.batching import AnyJudge, askers, devices_of, is_remote, tasks_at_once
from kernel_coder.judge.supervisor.open import open_judge
from kernel_coder.rollout.conversations import Ask
from kernel_coder.run import distributed
from kernel_coder.run.devices import resolve_device, visible_gpus
from kernel_coder.run.errors import UsageError
from kernel_coder.run.rng import rng_unchanged
from kernel_coder.tasks import Task
from kernel_coder.train.config import JudgeSection
from kernel_coder.train.host_judge import judge_of_host, nothing

logger = logging.getLogger(__name__)


class AnswerJudge:
    """Gives verdicts on answers. Without a config there is no judge and there are no verdicts.

    It is a context manager, and the judge's processes live as long as the context. It leaves the random state of this
    process unchanged, so that a run's bits do not depend on the judge. The ranks of a host share one judge, see
    :mod:`kernel_coder.train.host_judge`.

    Args:
        config: of the judge.
        alternate: never judge while a rank of this host samples, because it uses the judge's GPUs.
        remember: judge equal code for a task once in the whole run, whatever the config says.
    """

    def __init__(self, config: JudgeSection | None, *, alternate: bool = False, remember: bool = False) -> None:
        self.config = config
        self.alternate = alternate
        self.remembers = remember or (config is not None and config.remember)
        self.device = "" if config is None else judge_device(config.place)
        self.tasks_at_once = 1 if config is None else tasks_at_once(self.device, config)
        self.told: Callable[[int, int], None] = lambda done, asked: None
        """Called in any thread each time an answer has been judged, with the numbers of judged and of submitted
        answers."""
        self._judge: Any = None
        # Verdicts of the whole run by task and code, if it remembers. Several steps may be judged at the same time.
        self._known: dict[tuple[str, str], Future[Verdict]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> AnswerJudge:
        if self.config is None:
            return self
        from kernel_coder.judge.sandbox.errors import SandboxError

        try:
            with rng_unchanged():
                if distributed.world().is_alone or is_remote(self.device):
                    self._judge = self._open()
                else:
                    self._judge = judge_of_host(self._open, alternate=self.alternate)
        except (ValueError, SandboxError) as error:
            raise UsageError(f"judge: {error}") from None
        return self

    def _open(self) -> AnyJudge:
        assert self.config is not None
        judge = open_judge(self.device, self.config.backend or "triton", config=self.config.judge_config())
        opened: AnyJudge = judge.__enter__()
        return opened

    def sampling(self) -> AbstractContextManager[None]:
        """Return a context inside which this rank samples. If sampling and judging alternate, it waits for the
        judge."""
        return self._judge.sampling() if self.alternate and hasattr(self._judge, "sampling") else nothing()

    def __exit__(self, *exception: Any) -> None:
        if self._judge is not None:
            judge, self._judge = self._judge, None
            judge.__exit__(*exception)

    @contextmanager
    def asking(self, *, keeps_rng: bool = True) -> Iterator[Ask | None]:
        """Gives the block a function that starts to judge one answer of the present step; None without a judge.

        An answer without code is a format error and is not sent to the judge. Equal code for the same task is judged
        once and gets one verdict, so that a copy has no second chance at a lucky measurement. With ``judge.remember``
        this holds for the whole run (after a resume, from there on). After an exception inside the context, verdicts
        that are not ready are abandoned, because the run ends and a candidate can take minutes.

        Args:
            keeps_rng: restore the random state afterwards. The random state belongs to the whole process, so a thread
                that judges during the training must not restore it.
        """
        if self.config is None:
            yield None
            return
        if self._judge is None:
            raise RuntimeError("the judge is not started: use AnswerJudge inside of `with`")
        judge, found = self._judge, list[Future[Verdict]]()
        asked: set[tuple[str, str]] = set()
        known = self._known if self.remembers else dict[tuple[str, str], Future[Verdict]]()

        def ask(task: Task, answer: str) -> Future[Verdict]:
            response = ops.parse_response(answer)
            if response.code is None:
                found.append(Future())
                found[-1].set_result(self._format_error(task, answer, response.error))
                return found[-1]
            key = (task.id, response.code)
            with self._lock:
                if key not in known or (key not in asked and has_failed(known[key])):
                    known[key] = pool.submit(judge.evaluate, task, response.code, self._backend(task))
                asked.add(key)
                found.append(known[key])
            known[key].add_done_callback(lambda _: self.told(sum(one.done() for one in found), len(found)))
            return found[-1]

        threads = ThreadPoolExecutor(askers(self.device, self.config), thread_name_prefix="verdicts")
        with rng_unchanged() if keeps_rng else nullcontext(), threads as pool:
            try:
                yield ask
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                judge.close(wait=False)
                raise
        failed = [verdict for verdict in (future.result() for future in found) if not verdict.is_scored]
        if failed:
            logger.warning("the judge failed on %d of %d answers; first: %s", len(failed), len(found), failed[0].reason)

    def _backend(self, task: Task) -> str:
        assert self.config is not None
        return self.config.backend or task.backend

    def _format_error(self, task: Task, answer: str, error: str | None) -> Verdict:
        where = {"backend": self._backend(task), "device": self.device}
        return unjudged(task, answer, Outcome.FORMAT_ERROR, error or "the answer holds no code", **where)


def has_failed(verdict: Future[Verdict]) -> bool:
    """Return whether the judge itself failed on an answer, so that a later step may ask again."""
    return verdict.done() and (verdict.cancelled() or verdict.exception() is not None or not verdict.result().is_scored)


def judge_device(device: str) -> str:
    """Return the devices that ``judge.device`` names; several are separated by commas. ``auto`` is a GPU if there is
    one, and the GPUs of all ranks of this host if there are several. The address of a service or cluster is returned
    unchanged.

    Raises:
        UsageError: one of them does not exist.

    >>> judge_device("cpu")
    'cpu'
    """
    if device == "auto" and (count := min(distributed.world().local_size, visible_gpus())) > 1:
        return ",".join(f"cuda:{number}" for number in range(count))
    if device == "auto":
        return resolve_device(device, "judge.device")
    for one in () if is_remote(device) else devices_of(device):
        resolve_device(one, "judge.device")
    return device
