"""The search: rounds of answers, each judged and shown to later ones, until the budget is spent or a kernel is good."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any

from kernel_coder.evaluate.answers import Model, Poll
from kernel_coder.evaluate.errors import HarnessFailed, ServerFailed, UsageError
from kernel_coder.evaluate.turns import shortened
from kernel_coder.judge import Outcome, Verdict
from kernel_coder.judge.feedback import unjudged
from kernel_coder.judge.verdict import rank
from kernel_coder.library import Library, examples_for
from kernel_coder.prompts import Message, build_feedback, build_messages, check_feedback_template
from kernel_coder.refine.config import RefineConfig
from kernel_coder.refine.trajectory import Attempt, Key, Trajectory
from kernel_coder.rollout import completion_seed
from kernel_coder.run.errors import StopRequested
from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks import Task, load_tasks

POLL_S = 0.1
"""Upper limit for a wait between two calls of ``poll``, in seconds, so that a signal to stop is noticed this soon."""


@dataclass(frozen=True, slots=True)
class Question:
    """Asks for one answer of a round."""

    turn: int  # the round, from 1
    sample: int  # index of the answer in its round, from 0
    messages: tuple[Message, ...]
    seed: int
    parents: tuple[Key, ...] = ()  # the answers that the messages show, with strategy evolve

    @property
    def key(self) -> Key:
        return self.turn, self.sample


class BudgetSpent(Exception):
    """A budget is spent; the message names it."""


def load_module(config: RefineConfig) -> Task:
    """Return the module as a task of the config's backend and precision."""
    try:
        tasks = load_tasks(config.module)
    except (ValueError, OSError, ImportError) as error:
        raise UsageError(str(error).replace("data.path", "the module")) from None
    if len(tasks) != 1:
        problem = f": {tasks.problems[0]}" if tasks.problems else ""
        raise UsageError(f"{config.module} must hold one module with Model, get_inputs and get_init_inputs{problem}")
    return replace(tasks[0], backend=config.backend, precision=config.precision)


@dataclass
class Search:
    """Samples answers and judges them; see :meth:`run`. ``say`` prints a line of progress."""

    config: RefineConfig
    task: Task
    trajectory: Trajectory
    model: Model
    judge: Any
    poll: Poll = lambda: None
    say: Callable[[str], None] = lambda line: None
    library: Library | None = None  # source of examples for the prompts; the correct kernels are added to it
    _began: float = field(default_factory=time.monotonic)
    _verdicts: dict[str, Future[Verdict]] = field(default_factory=dict)
    _running: dict[Key, Future[Verdict]] = field(default_factory=dict)
    _writing_s: float = 0.0  # time that the last batch of answers took

    def __post_init__(self) -> None:
        try:
            # Unlike in an evaluation, a known kernel of the task itself may be shown; it is the best example.
            count = self.config.examples
            shown = examples_for(self.library, self.task, count, same=True) if self.library is not None else []
            self.opening = build_messages(self.task, self.config.prompt_template, examples=shown)
            check_feedback_template(self.config.feedback_template)
        except ValueError as error:
            raise UsageError(str(error)) from None
        self._before = max((one.seconds for one in self.trajectory.attempts.values()), default=0.0)

    def run(self) -> str:
        """Runs the search and returns the reason for its end. The trajectory holds all results, also after an
        exception.

        Raises:
            ServerFailed, StopRequested: after recording all answers and the verdicts that were in progress.
            HarnessFailed: the judge failed on every answer.
        """
        with ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(self.config.judge.parallel(), thread_name_prefix="verdict"))
            self._pool = pool
            try:
                self._judge_earlier_answers()
                reason = self._conversations() if self.config.strategy == "serial" else self.rounds()
                self.settle()
                return reason or self.is_enough() or f"finished {self.config.turns} rounds"
            except BudgetSpent as spent:
                self._finish_verdicts()
                return str(spent)
            except ServerFailed:
                self._finish_verdicts()
                raise
            except (StopRequested, KeyboardInterrupt):
                self._finish_running()
                raise
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    # ---- rounds

    @property
    def overlaps(self) -> bool:
        """Whether the judge runs while the model generates: not if both use the same GPU and candidates are timed."""
        writes_on_gpu = self.config.base_url is None and self.config.device.startswith("cuda")
        return not (writes_on_gpu and self.config.judge.timing) or self.config.judged_elsewhere

    def rounds(self) -> str | None:
        for turn in range(1, self.config.turns + 1):
            if reason := self.is_enough():
                return reason
            known = self.trajectory.attempts
            self.ask([self._question(turn, k) for k in range(self.config.parallel) if (turn, k) not in known])
            # With "parallel" no prompt depends on a verdict, so a round is judged while the next one is generated.
            self.settle(turn - 1 if self.config.strategy == "parallel" and self.overlaps else turn)
        return None

    def _conversations(self) -> str | None:
        """Continues each conversation once its last answer is judged; those that are ready go into one batch."""
        while True:
            ready = self._gathered()
            if reason := self.is_enough():
                return reason
            if not ready:
                return None
            if self.config.base_url is not None and self.overlaps:
                self.ask(ready, joining=True)
            else:
                self.ask(ready[: self.config.batch_size])
            if not self.overlaps:
                self.settle()

    def _gathered(self) -> list[Question]:
        """Return the next questions.

        A local model generates a batch in about the time of one answer. So once a question is ready, this waits for
        more of them, for at most the time that the last batch took. With a server it does not wait.
        """
        until = math.inf
        while True:
            self._poll_and_collect()
            ready = self._ready()
            if not self._running:
                self._check_judge()
                return ready
            if self.is_enough():
                return []
            if ready:
                patience = 0.0 if self.config.base_url is not None else self._writing_s
                until = min(until, time.monotonic() + patience)
                if time.monotonic() >= until:
                    return ready
            wait(set(self._running.values()), min(POLL_S, max(until - time.monotonic(), 0.0)), FIRST_COMPLETED)

    def _ready(self) -> list[Question]:
        """Return the next question of each conversation whose last answer is judged, early rounds first."""
        turns = range(1, self.config.turns + 1)
        known = self.trajectory.attempts
        following = [
            next(((turn, k) for turn in turns if (turn, k) not in known), None) for k in range(self.config.parallel)
        ]
        return [
            self._question(*key)
            for key in sorted(key for key in following if key is not None)
            if (key[0] - 1, key[1]) not in self._running
        ]

    def _question(self, turn: int, sample: int) -> Question:
        seed = completion_seed(self.config.seed, self.task.id, turn, sample)
        return Question(turn, sample, tuple(self.prompt(turn, sample)), seed)

    def ask(self, questions: list[Question], *, joining: bool = False) -> None:
        """Gets the answers and starts to judge them. With ``joining``, questions that become ready in the meantime are
        added."""

        def poll() -> None:
            self._poll_and_collect()
            if joining and not self.is_enough():
                asked = {question.key for question in questions}
                questions.extend(question for question in self._ready() if question.key not in asked)

        if not questions:
            return
        written: list[Attempt] = []
        began = time.monotonic()
        try:
            with closing(self.model.answer(questions, poll)) as arriving:  # type: ignore[type-var]
                for question, answer in arriving:
                    attempt = Attempt.of(question.key, question.messages, answer, self._elapsed(), question.parents)
                    self.trajectory.add(attempt)
                    if self.overlaps:
                        self._judge(attempt)
                    else:
                        written.append(attempt)
                    self._check_tokens()
        except BudgetSpent:
            self._judge_all(written)
            raise
        self._writing_s = time.monotonic() - began
        self._judge_all(written)

    def prompt(self, turn: int, sample: int) -> list[Message]:
        """Return the prompt of an answer: the task, then the earlier answers that the strategy shows with their
        feedback."""
        shown = self.shown(turn, sample)
        messages = list(self.opening[:-1] if shown and self.opening[-1]["role"] == "assistant" else self.opening)
        for place, attempt in enumerate(shown):
            reply = self._reply(attempt, turn)
            if place + 1 < len(shown) or self.config.base_url is not None:
                reply = [message for message in reply if message["role"] != "assistant"]
            messages += [Message(role="assistant", content=self.shown_text(attempt)), *reply]
        return messages

    def shown_text(self, attempt: Attempt) -> str:
        """Return an earlier answer as prompts show it."""
        return shortened(attempt.text, self.config.earlier_reasoning)

    def shown(self, turn: int, sample: int) -> list[Attempt]:
        """Return the earlier answers that a prompt shows. The model continues from the last of them."""
        earlier = [one for one in self.trajectory.attempts.values() if one.turn < turn and one.is_judged]
        if self.config.strategy == "parallel" or not earlier:
            return []
        if self.config.strategy == "serial":
            own = sorted((one for one in earlier if one.sample == sample), key=lambda one: one.turn)
            # After each prompt that was too long, the next one shows one answer less.
            refused = sum(one.refused for one in self.trajectory.attempts.values() if one.sample == sample)
            return own[max(len(own) - max(self.config.context_turns - refused, 0), 0) :]
        refused = sum(one.refused for one in self.trajectory.attempts.values())
        count = max(self.config.context_turns - refused, 0)
        best = sorted((one for one in earlier if one.code is not None), key=lambda one: (rank(one.verdict), one.key))
        return best[max(len(best) - count, 0) :]  # the best one last

    def _reply(self, attempt: Attempt, turn: int) -> list[Message]:
        template = self.config.feedback_template
        return build_feedback(
            self.task, attempt.verdict, template, turn=turn - 1, max_turns=self.config.turns, attempt=attempt.turn
        )

    # ---- verdicts

    def _judge(self, attempt: Attempt) -> None:
        """Starts to judge an answer. Equal code is judged once."""
        if attempt.refused or attempt.code is None:
            names = {"backend": self.task.backend, "device": self.config.judged_on}
            problem = attempt.problem or "the answer holds no code"
            feedback = f"{problem}: put the whole module, with its class ModelNew, into one code block."
            outcome = Outcome.HARNESS_FAILED if attempt.refused else Outcome.FORMAT_ERROR
            self._keep(attempt, unjudged(self.task, "", outcome, problem, **names, feedback=feedback))
            return
        for other in self.trajectory.attempts.values():
            if other.code == attempt.code and other.verdict is not None and other.is_judged:
                self._keep(attempt, other.verdict)
                return
        if attempt.code not in self._verdicts:
            limit = self.config.evaluations
            if limit is not None and len(self._verdicts) + self.trajectory.evaluations >= limit + self._counted():
                raise BudgetSpent(f"the budget of {limit} evaluations is spent")
            self._verdicts[attempt.code] = self._pool.submit(self._evaluated, attempt.code)
        self._running[attempt.key] = self._verdicts[attempt.code]

    def _judge_all(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            self._judge(attempt)

    def _counted(self) -> int:
        """Return the number of candidates submitted here whose verdicts the trajectory already counts."""
        judged = {one.code for one in self.trajectory.attempts.values() if one.verdict is not None}
        return sum(code in judged for code in self._verdicts)

    def _evaluated(self, code: str) -> Verdict:
        try:
            return self.judge.evaluate(self.task, code, self.task.backend)
        except Exception as error:  # a failure of the judge; it says nothing about the candidate
            names = {"backend": self.task.backend, "device": self.config.judged_on}
            reason = f"the judge failed: {type(error).__name__}: {error}"
            return unjudged(self.task, code, Outcome.HARNESS_FAILED, reason, **names)

    def _keep(self, attempt: Attempt, verdict: Verdict) -> None:
        better = self.trajectory.judged(attempt, verdict)
        self._to_library(attempt)
        speed = "" if verdict.speedup is None else f", {verdict.speedup:.2f}x"
        mark = "  <- best" if better else ""
        reason = "" if verdict.correct else f": {verdict.reason}"
        self.say(f"round {attempt.turn} answer {attempt.sample}: {verdict.outcome}{speed}{reason:.160}{mark}")

    def _to_library(self, attempt: Attempt) -> None:
        verdict, code = attempt.verdict, attempt.code
        if self.library is None or not self.config.to_library or code is None or verdict is None or not verdict.correct:
            return
        sources = (self.trajectory.attempts[parent].code or "" for parent in attempt.parents)
        parents = [sha256_text(source) for source in sources]
        self.library.add(self.task, code, verdict, origin=str(self.config.folder), parents=parents)

    def _collect(self) -> None:
        for key in [key for key, future in self._running.items() if future.done()]:
            future = self._running.pop(key)
            if not future.cancelled():
                self._keep(self.trajectory.attempts[key], future.result())

    def settle(self, turn: int | None = None) -> None:
        """Waits for all verdicts, or for those of the rounds up to ``turn``."""
        while any(turn is None or key[0] <= turn for key in self._running):
            wait(set(self._running.values()), POLL_S, return_when=FIRST_COMPLETED)
            self._poll_and_collect()
        self._check_judge()

    def _check_judge(self) -> None:
        judged = [one for one in self.trajectory.attempts.values() if one.verdict is not None and not one.refused]
        if judged and not any(one.is_judged for one in judged):
            reason = judged[-1].verdict.reason if judged[-1].verdict is not None else ""
            raise HarnessFailed(f"the judge reached no verdict on any of {len(judged)} answers: {reason}")

    def _finish_verdicts(self) -> None:
        """Waits for the verdicts on all answers, until the time is over or a signal arrives."""
        try:
            self.settle()
        except BudgetSpent:
            self._finish_running()
        except StopRequested:
            self._finish_running()
            raise

    def _finish_running(self) -> None:
        """Waits for the candidates that are being judged; the others are left for a resumed search."""
        for future in self._running.values():
            future.cancel()
        wait([future for future in self._running.values() if not future.cancelled()])
        self._collect()

    def _judge_earlier_answers(self) -> None:
        """Judges the answers of a resumed search whose verdict is missing or ``harness_failed``."""
        for attempt in list(self.trajectory.attempts.values()):
            self._to_library(attempt)  # it is missing there if the search was killed right after the verdict
            if not attempt.is_judged and not attempt.refused:
                self._judge(attempt)
        self.settle() if self._running else None

    # ---- the budget

    def _elapsed(self) -> float:
        return self._before + time.monotonic() - self._began

    def _poll_and_collect(self) -> None:
        self.poll()
        self._collect()
        if self.config.seconds is not None and self._elapsed() >= self.config.seconds:
            raise BudgetSpent(self._seconds_spent())

    def _check_tokens(self) -> None:
        if self.config.tokens is not None and self.trajectory.tokens >= self.config.tokens:
            raise BudgetSpent(self._tokens_spent())

    def _seconds_spent(self) -> str:
        return f"the budget of {self.config.seconds:g} seconds is spent"

    def _tokens_spent(self) -> str:
        return f"the budget of {self.config.tokens} tokens is spent"

    def is_enough(self) -> str | None:
        """Return the reason to end the search now; None to go on."""
        best = self.trajectory.best
        if best is not None and best.verdict is not None:
            if self.config.stop_when_correct:
                return "found a correct kernel"
            low = best.verdict.speedup_low
            if self.config.stop_at is not None and low is not None and low >= self.config.stop_at:
                return f"found a kernel that is at least {low:.2f} times as fast"
        limit = self.config.evaluations
        if limit is not None and self.trajectory.evaluations >= limit:
            return f"the budget of {limit} evaluations is spent"
        if self.config.tokens is not None and self.trajectory.tokens >= self.config.tokens:
            return self._tokens_spent()
        if self.config.seconds is not None and self._elapsed() >= self.config.seconds:
            return self._seconds_spent()
        return None


def curve(attempts: Sequence[Attempt]) -> Iterator[tuple[int, float]]:
    """Yield (number of verdicts, best speedup so far) after each verdict, in the order of the answers.

    The speedup is 0 before the first correct answer, and 1 for one that was not timed.
    """
    best = 0.0
    for count, one in enumerate((one for one in attempts if one.verdict is not None), start=1):
        if one.verdict is not None and one.verdict.correct:
            best = max(best, one.verdict.speedup or 1.0)
        yield count, best
