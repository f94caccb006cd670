"""The judge of a training run: started once, asked about each different answer once, closed at the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import torch

from kernel_coder import ops
from kernel_coder.judge import Outcome, Verdict
from kernel_coder.judge.unjudged import unjudged
from kernel_coder.tasks import Task
from kernel_coder.train.checkpoint import capture_rng, restore_rng
from kernel_coder.train.config import JudgeSection
from kernel_coder.train.errors import UsageError

if TYPE_CHECKING:
    from kernel_coder.judge.judge import Judge

logger = logging.getLogger(__name__)

POLL_S = 0.2
"""Seconds between two looks at whether the run is to stop."""


class AnswerJudge:
    """Verdicts on answers; without a config none.

    A context manager: the judge's processes live as long as the context. Random generators of this process are left as
    they are, so that a run gives the same bits whatever the judge does.
    """

    def __init__(self, config: JudgeSection | None) -> None:
        self.config = config
        self.device = "" if config is None else judge_device(config.device)
        self._judge: Judge | None = None
        self._known: dict[tuple[str, str], Verdict] = {}  # what is remembered, by task and code

    def __enter__(self) -> AnswerJudge:
        if self.config is None:
            return self
        from kernel_coder.judge.judge import Judge
        from kernel_coder.judge.sandbox import SandboxError

        rng = capture_rng()
        try:
            judge = Judge(
                device=self.device, backend=self.config.backend or "triton", config=self.config.judge_config()
            )
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

    def __call__(
        self, tasks: Sequence[Task], answers: Sequence[str], poll: Callable[[], None] | None = None
    ) -> list[Verdict] | None:
        """A verdict on each answer, None without a judge.

        An answer without code is a format error and never reaches the judge. Equal code for one task is judged once and
        has one verdict: a copy gets no second chance at a lucky measurement. With ``judge.remember`` that holds for the
        whole run (after a resume, from there). ``poll`` may raise in between.
        """
        if self.config is None:
            return None
        if self._judge is None:
            raise RuntimeError("the judge of a run is started by its context; use it inside of `with`")
        responses = [ops.parse_response(answer) for answer in answers]
        asked = list(zip(tasks, answers, responses, strict=True))
        wanted = {(task.id, response.code): task for task, _, response in asked if response.code is not None}
        new = {key: task for key, task in wanted.items() if key not in self._known}
        pairs = ((task, code, self._backend(task)) for (_, code), task in new.items())
        rng = capture_rng()
        found = dict(zip(new, self._waited_for(self._judge.evaluate_many(pairs), len(new), poll), strict=True))
        restore_rng(rng)
        judged = self._known | found
        if self.config.remember:
            self._known |= {key: verdict for key, verdict in found.items() if verdict.is_scored}
        verdicts = [
            self._format_error(task, answer, response.error)
            if response.code is None
            else judged[task.id, response.code]
            for task, answer, response in asked
        ]
        failed = [verdict for verdict in verdicts if not verdict.is_scored]
        if failed:
            logger.warning("the judge failed on %d of %d answers; first: %s", len(failed), len(asked), failed[0].reason)
        return verdicts

    def _waited_for(
        self, verdicts: Iterator[Verdict], count: int, poll: Callable[[], None] | None
    ) -> Iterator[Verdict]:
        """The verdicts; a candidate may take minutes, and ``poll`` is not kept waiting for it."""
        assert self._judge is not None
        with ThreadPoolExecutor(1, thread_name_prefix="verdicts") as other:
            for _ in range(count):
                verdict = other.submit(next, verdicts)
                try:
                    while not verdict.done():
                        wait([verdict], POLL_S)
                        if poll is not None:
                            poll()
                except BaseException:
                    self._judge.close(wait=False)  # the run ends here
                    raise
                yield verdict.result()

    def _backend(self, task: Task) -> str:
        assert self.config is not None
        return self.config.backend or task.backend

    def _format_error(self, task: Task, answer: str, error: str | None) -> Verdict:
        where = {"backend": self._backend(task), "device": self.device}
        return unjudged(task, answer, Outcome.FORMAT_ERROR, error or "the answer holds no code", **where)


def judge_device(device: str) -> str:
    """
    >>> judge_device("cpu")
    'cpu'
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return "cuda" if gpus else "cpu"
    if device.startswith("cuda") and int(device.partition(":")[2] or 0) >= gpus:
        raise UsageError(f"judge.device is {device}, but torch sees {gpus} GPU{'s' * (gpus != 1)}")
    return device
