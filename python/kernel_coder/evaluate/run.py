"""Runs an evaluation: selects tasks, collects answers and verdicts, writes the results. Resuming repeats nothing."""

from __future__ import annotations

import queue
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from kernel_coder.evaluate.answers import Key, Model, Poll, Request
from kernel_coder.evaluate.config import EvaluateConfig, parse_numbers
from kernel_coder.evaluate.devices import on_this_machine, resolve_dtype
from kernel_coder.evaluate.errors import HarnessFailed, UsageError
from kernel_coder.evaluate.report import Refused, Results, write_results
from kernel_coder.evaluate.store import Sample, Store
from kernel_coder.evaluate.turns import further_turns, write_turns
from kernel_coder.judge import Outcome, Verdict
from kernel_coder.judge.admission_list import known_admission
from kernel_coder.judge.feedback import unjudged
from kernel_coder.judge.supervisor.batching import AnyJudge, askers, tasks_at_once
from kernel_coder.library import Library, default_path, examples_for
from kernel_coder.prompts import build_messages
from kernel_coder.rollout import completion_seed
from kernel_coder.run.errors import StopRequested
from kernel_coder.run.extras import require_extra
from kernel_coder.tasks import Task, TaskSet, load_tasks
from kernel_coder.tasks.order import in_turn

ADMISSION_PRECISION = "fp32"
"""The precision for which the packaged admission list was measured."""

SHOWN_PROBLEMS = 5
"""Upper limit for the number of dropped tasks that the log names."""

POLL_S = 0.2
"""Upper limit for a wait between two calls of ``poll``, in seconds, so that a signal to stop is noticed this soon."""

Item = TypeVar("Item")

MakeJudge = Callable[..., Any]
"""Called with ``device``, ``backend``, ``config`` and ``log``; returns a Judge or an object with its methods."""


def evaluate(
    config: EvaluateConfig,
    *,
    resume: bool = False,
    make_judge: MakeJudge | None = None,
    make_model: Callable[[EvaluateConfig], Model] | None = None,
    poll: Poll = lambda: None,
    log: IO[str] | None = None,
) -> Results:
    """Collects the answers and verdicts that ``config.output`` lacks and writes the results there.

    Args:
        config: the evaluation.
        resume: continue the run that the folder holds.
        make_judge: makes the judge; None: :class:`kernel_coder.judge.Judge`.
        make_model: makes the model; None: the model that ``config`` names.
        poll: called often; may raise to stop the run. Finished answers and verdicts stay in the folder.
        log: shows progress; None: stderr.

    Raises:
        UsageError: the config or one of its files is wrong.
        ServerFailed: the server stopped answering.
        HarnessFailed: the judge failed on every answer. The results are still written.
    """
    config = on_this_machine(config)
    config = config.model_copy(update={"dtype": resolve_dtype(config.dtype, config.device)})
    tasks, refused = without_refused(select_tasks(config), config)
    with ExitStack() as stack:
        library: Library | None = None
        if config.examples:
            library = stack.enter_context(Library(config.library or default_path(), create=False))
        requests = make_requests(tasks, config, library)
    with Store(Path(config.output), config, resume=resume) as store, Counting(log or sys.stderr) as progress:
        for line in (tasks.summary(), *(f"dropped {problem}" for problem in tasks.problems[:SHOWN_PROBLEMS])):
            progress.say(line)
        for one in refused:
            progress.say(str(one))
        for task in tasks:
            store.check_task(task.id, task.reference)
        factories = make_model or load_model, make_judge or load_judge

        def collect(wanted: Sequence[Request], target: Store) -> None:
            Collector(wanted, target, config, *factories, poll, progress).run()

        collect(requests, store)
        results = Results(config, tasks, store.samples, store.verdicts)
        if config.turns > 1:
            results, after = further_turns(config, tasks, store, collect, resume=resume)
            write_turns(store.folder, after)
        results = replace(results, refused=refused)
        write_results(store.folder, results)
    if config.to_library:
        with Library(config.library or default_path()) as library:
            add_to_library(library, results)
    failed = [verdict for verdict in results.verdicts.values() if not verdict.is_scored]
    if failed and len(failed) == len(results.verdicts):
        raise HarnessFailed(f"the judge reached no verdict on any of {len(failed)} answers: {failed[0].reason}")
    return results


def add_to_library(library: Library, results: Results) -> None:
    """Adds the correct answers."""
    tasks = {task.id: task for task in results.tasks}
    for key, verdict in results.verdicts.items():
        code = results.all_samples[key].code
        if verdict.correct and code is not None:
            library.add(tasks[key[0]], code, verdict, origin=str(results.folder))


def select_tasks(config: EvaluateConfig) -> TaskSet:
    """Return the config's tasks, set to its backend and precision."""
    try:
        tasks = load_tasks(
            config.tasks,
            kernelbench_dir=config.kernelbench_dir,
            families=config.families,
            exclude_families=config.exclude_families,
            max_level=config.max_level,
        )
        if config.problems is not None:
            tasks = tasks.pick(parse_numbers(config.problems))
    except (ValueError, OSError, ImportError) as error:
        raise UsageError(_in_our_flags(str(error))) from None
    changes: dict[str, Any] = {"backend": config.backend}
    if config.precision is not None:
        changes["precision"] = config.precision
    limited = tasks.limit(config.limit)
    return TaskSet((replace(task, **changes) for task in limited), tasks.problems, tasks.source)


def _in_our_flags(message: str) -> str:
    for name, flag in (("data.path", "--tasks"), ("data.revision", "@commit"), ("data.", "--")):
        message = message.replace(name, flag)
    return re.sub("--[a-z]+_[a-z]+", lambda found: found[0].replace("_", "-"), message)


def without_refused(tasks: TaskSet, config: EvaluateConfig) -> tuple[TaskSet, tuple[Refused, ...]]:
    """Return the tasks to evaluate, and those that the packaged admission list refuses.

    The list applies only to tasks in fp32 whose source it contains.
    """
    leaves_out = config.refused_tasks == "leave_out"
    refused = {
        task.id: Refused(task.id, known, leaves_out)
        for task in tasks
        if task.precision == ADMISSION_PRECISION
        and (known := known_admission(task.reference)) is not None
        and not known.admitted
    }
    if not leaves_out:
        return tasks, tuple(refused.values())
    kept = [task for task in tasks if task.id not in refused]
    if refused and not kept:
        raise UsageError(f"no task is left: {next(iter(refused.values()))}; --refused-tasks keep evaluates it anyway")
    return TaskSet(kept, tasks.problems, tasks.source), tuple(refused.values())


def make_requests(tasks: Sequence[Task], config: EvaluateConfig, library: Library | None = None) -> list[Request]:
    """Return a request for each answer, task by task. Examples from a library are never those of the task itself."""
    requests: list[Request] = []
    for task in tasks:
        try:
            shown = examples_for(library, task, config.examples, same=False) if library is not None else []
            template = config.prompt_template
            messages = tuple(build_messages(task, template, one_shot=config.one_shot, examples=shown))
        except ValueError as error:
            raise UsageError(str(error)) from None
        requests += (
            Request(task, number, messages, completion_seed(seed, task.id, sample))
            for number in range(config.answers)
            for seed, sample in [config.seed_of(number)]
        )
    return requests


def load_model(config: EvaluateConfig) -> Model:
    if config.base_url is not None:
        require_extra("eval", "--base-url")
        from kernel_coder.evaluate.server import Server

        return Server(config)
    require_extra("train", "a local model")
    from transformers.utils import logging

    from kernel_coder.evaluate.local import LocalModel

    logging.disable_progress_bar()  # the loader's bar would disturb the progress display
    return LocalModel(config)


def load_judge(**arguments: Any) -> Any:
    from kernel_coder.judge.sandbox.errors import SandboxError
    from kernel_coder.judge.supervisor.open import open_judge

    try:
        judge = open_judge(**arguments)
        judge.__enter__()  # the caller enters the judge again, which has no effect
        return judge
    except SandboxError as error:
        raise HarnessFailed(f"the judge cannot start on this machine: {error}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None


class Collector:
    """Collects the answers and verdicts that the store lacks.

    A local model first answers all requests, then frees its memory, so that nothing runs beside timed candidates.
    Answers from a server, or from a model on a GPU that the judge does not use, are judged as they arrive.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        store: Store,
        config: EvaluateConfig,
        make_model: Callable[[EvaluateConfig], Model],
        make_judge: MakeJudge,
        poll: Poll,
        progress: Counting,
    ) -> None:
        self.requests, self.store, self.config, self.progress = requests, store, config, progress
        self.make_model, self.make_judge, self.poll = make_model, make_judge, poll
        self.abandoned = threading.Event()

    def run(self) -> None:
        missing = [request for request in self.requests if request.key not in self.store.samples]
        answered = [request for request in self.requests if request.key in self.store.samples]
        self.progress.start("answers", len(answered), len(self.requests))
        if self.config.base_url is None and not self.config.judged_elsewhere:
            self.ask(missing, lambda request: None)
            at_once = tasks_at_once(self.config.judged_on, self.config.judge)
            ordered = in_turn(self.requests, lambda request: request.task.id, at_once)
            self.judge(iter(ordered))
            return
        arrived: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        with ThreadPoolExecutor(1, thread_name_prefix="answers") as pool:
            asking = pool.submit(self.ask, missing, arrived.put)
            asking.add_done_callback(lambda _: arrived.put(None))
            try:
                self.judge(chain(answered, arriving(arrived)))
            finally:
                self.abandoned.set()
            asking.result()

    def ask(self, requests: Sequence[Request], then: Callable[[Request], None]) -> None:
        """Stores the model's answer to each request, then calls ``then`` with the request."""
        if not requests:
            return
        model = self.make_model(self.config)
        try:
            for request, answer in model.answer(requests, self._poll_or_leave):
                self.store.add_sample(Sample.of(request, answer))
                self.progress.advance("answers")
                then(request)
        finally:
            model.close()

    def judge(self, requests: Iterator[Request | None]) -> None:
        """Judges the answers whose verdict is missing or ``harness_failed``.

        ``requests`` yields requests that were answered, and None while it waits for the next answer.
        """
        config = self.config
        most = askers(config.judged_on, config.judge)
        running: dict[Future[Verdict], list[Key]] = {}
        known: dict[tuple[str, str], Verdict | Future[Verdict]] = {}  # by task and code; for config.remember
        self.progress.start("verdicts", 0, len(self.requests))
        with ExitStack() as stack:
            judge = None
            pool = stack.enter_context(ThreadPoolExecutor(most, thread_name_prefix="verdict"))
            exhausted = False
            while running or not exhausted:
                while not exhausted and len(running) < most:
                    try:
                        request = next(requests)
                    except StopIteration:
                        exhausted = True
                        break
                    if request is None:
                        break
                    key = request.key
                    sample, before = self.store.samples[key], self.store.verdicts.get(key)
                    same = (request.task.id, sample.code or "")
                    if before is not None and before.is_scored:
                        self.progress.advance("verdicts")
                        known.setdefault(same, before)
                    elif sample.code is None:
                        self._keep(key, format_error(request.task, sample, config))
                    elif config.remember and isinstance(found := known.get(same), Verdict):
                        self._keep(key, found)
                    elif config.remember and isinstance(found, Future):
                        running[found].append(key)
                    else:
                        if judge is None:
                            judge = stack.enter_context(self._open_judge())
                            stack.callback(self._keep_unfinished, running, judge)
                        future = pool.submit(judge.evaluate, request.task, sample.code, config.backend)
                        running[future] = [key]
                        known[same] = future
                self.poll()
                done, _ = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED) if running else (set(), None)
                for future in done:
                    keys, verdict = running.pop(future), future.result()
                    known[keys[0][0], self.store.samples[keys[0]].code or ""] = verdict
                    for key in keys:
                        self._keep(key, verdict)

    def _open_judge(self) -> AnyJudge:
        config = self.config
        return self.make_judge(device=config.judged_on, backend=config.backend, config=config.judge, log=None)

    def _keep(self, key: Key, verdict: Verdict) -> None:
        self.store.add_verdict(key, verdict)
        self.progress.advance("verdicts")

    def _keep_unfinished(self, running: dict[Future[Verdict], list[Key]], judge: AnyJudge) -> None:
        """Ends a run early: waits for the candidates that are being judged and stores their verdicts, but starts no
        others."""
        if running:
            judge.give_up_waiting()
        for future, keys in running.items():
            if not future.cancel() and future.exception() is None and future.result().is_scored:
                for key in keys:
                    self._keep(key, future.result())
        running.clear()

    def _poll_or_leave(self) -> None:
        self.poll()
        if self.abandoned.is_set():
            raise StopRequested("the end of judging")


def arriving(arrived: queue.SimpleQueue[Item | None]) -> Iterator[Item | None]:
    """Yields the items of the queue, and None every ``POLL_S`` seconds without one. A None in the queue ends it."""
    while True:
        try:
            item = arrived.get(timeout=POLL_S)
        except queue.Empty:
            yield None
            continue
        if item is None:
            return
        yield item


def format_error(task: Task, sample: Sample, config: EvaluateConfig) -> Verdict:
    """Return the verdict on an answer without code, which needs no judge."""
    problem = sample.problem or "the answer holds no code"
    feedback = f"{problem}: put the whole module, with its class ModelNew, into one code block."
    names = {"backend": task.backend, "device": config.judged_on}
    verdict = unjudged(task, "", Outcome.FORMAT_ERROR, problem, **names, feedback=feedback)
    return replace(verdict, interpreted=config.judged_on == "cpu" and task.backend == "triton")


class Counting:
    """Shows progress: bars on a terminal; elsewhere one line at the start and one after every tenth of the work."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file
        self._console = Console(file=file, force_jupyter=False)
        columns = (TextColumn("{task.description}"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, TimeRemainingColumn(), console=self._console)
        self._ids: dict[str, TaskID] = {}
        self._counts: dict[str, list[int]] = {}

    def __enter__(self) -> Counting:
        if self.file.isatty():
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def start(self, what: str, done: int, total: int) -> None:
        self._counts[what] = [done, total]
        if self.file.isatty():
            self._ids[what] = self._bars.add_task(what, total=total, completed=done)
        else:
            self.say(f"{what} {done}/{total}")

    def advance(self, what: str) -> None:
        self._counts[what][0] += 1
        done, total = self._counts[what]
        if what in self._ids:
            self._bars.update(self._ids[what], completed=done)
        elif done * 10 // total > (done - 1) * 10 // total:
            self.say(f"{what} {done}/{total}")
