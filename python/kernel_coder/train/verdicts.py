"""The judge of a training run: started once, asked about each different answer once, closed at the end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from kernel_coder import ops
from kernel_coder.judge import Outcome, Verdict
from kernel_coder.judge.feedback import unjudged
from kernel_coder.judge.supervisor.batching import AnyJudge, askers, devices_of, tasks_at_once
from kernel_coder.judge.supervisor.pool import open_judge
from kernel_coder.rollout.conversations import Ask
from kernel_coder.run.checkpoint import capture_rng, restore_rng
from kernel_coder.run.errors import UsageError
from kernel_coder.tasks import Task
from kernel_coder.train.config import JudgeSection

logger = logging.getLogger(__name__)


class AnswerJudge:
    """Verdicts on answers; without a config none.

    A context manager: the judge's processes live as long as the context. Random generators of this process are left as
    they are, so that a run gives the same bits whatever the judge does.
    """

    def __init__(self, config: JudgeSection | None) -> None:
        self.config = config
        self.device = "" if config is None else judge_device(config.device)
        self.tasks_at_once = 1 if config is None else tasks_at_once(self.device, config)
        self._judge: AnyJudge | None = None
        self._known: dict[tuple[str, str], Verdict] = {}  # what is remembered, by task and code

    def __enter__(self) -> AnswerJudge:
        if self.config is None:
            return self
        from kernel_coder.judge.sandbox.errors import SandboxError

        rng = capture_rng()
        try:
            judge = open_judge(self.device, self.config.backend or "triton", config=self.config.judge_config())
            self._judge = judge.__enter__()
        except (ValueError, SandboxError) as error:
            raise UsageError(f"judge: {error}") from None
        finally:
            restore_rng(rng)
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._judge is not None:
            judge, self._judge = self._judge, None
            judge.__exit__(*exception)

    @contextmanager
    def asking(self) -> Iterator[Ask | None]:
        """What begins to judge an answer, for the answers of one step; None without a config.

        An answer without code is a format error and never reaches the judge. Equal code for one task is judged once and
        has one verdict: a copy gets no second chance at a lucky measurement. With ``judge.remember`` that holds for the
        whole run (after a resume, from there). An exception inside gives verdicts up that are being made, for the run
        ends there: a candidate may take minutes.
        """
        if self.config is None:
            yield None
            return
        if self._judge is None:
            raise RuntimeError("the judge of a run is started by its context; use it inside of `with`")
        judge, found, known = self._judge, list[Future[Verdict]](), dict[tuple[str, str], Future[Verdict]]()
        rng = capture_rng()

        def ask(task: Task, answer: str) -> Future[Verdict]:
            response = ops.parse_response(answer)
            if response.code is None:
                found.append(Future())
                found[-1].set_result(self._format_error(task, answer, response.error))
                return found[-1]
            key = (task.id, response.code)
            if key not in known and key in self._known:
                known[key] = Future()
                known[key].set_result(self._known[key])
            elif key not in known:
                known[key] = pool.submit(judge.evaluate, task, response.code, self._backend(task))
            found.append(known[key])
            return found[-1]

        with ThreadPoolExecutor(askers(self.device, self.config), thread_name_prefix="verdicts") as pool:
            try:
                yield ask
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                judge.close(wait=False)
                raise
        restore_rng(rng)
        if self.config.remember:
            judged = {key: future.result() for key, future in known.items()}
            self._known |= {key: verdict for key, verdict in judged.items() if verdict.is_scored}
        failed = [verdict for verdict in (future.result() for future in found) if not verdict.is_scored]
        if failed:
            logger.warning("the judge failed on %d of %d answers; first: %s", len(failed), len(found), failed[0].reason)

    def _backend(self, task: Task) -> str:
        assert self.config is not None
        return self.config.backend or task.backend

    def _format_error(self, task: Task, answer: str, error: str | None) -> Verdict:
        where = {"backend": self._backend(task), "device": self.device}
        return unjudged(task, answer, Outcome.FORMAT_ERROR, error or "the answer holds no code", **where)


def judge_device(device: str) -> str:
    """``auto`` is a GPU if there is one; a GPU that is not there is a :class:`UsageError`.

    >>> judge_device("cpu")
    'cpu'
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return "cuda" if gpus else "cpu"
    for one in devices_of(device):
        if one.startswith("cuda") and int(one.partition(":")[2] or 0) >= gpus:
            raise UsageError(f"judge.device is {one}, but torch sees {gpus} GPU{'s' * (gpus != 1)}")
    return device
