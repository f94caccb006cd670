"""The flow of an evaluation: tasks, answers, verdicts, numbers. What was done before is not done again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kernel_coder.evaluate.answers import Model, Poll, Request
from kernel_coder.evaluate.config import EvaluateConfig, parse_numbers
from kernel_coder.evaluate.devices import resolve_device, resolve_dtype
from kernel_coder.evaluate.errors import HarnessFailed, UsageError
from kernel_coder.evaluate.report import Results, write_results
from kernel_coder.evaluate.store import Key, Sample, Store, text_hash
from kernel_coder.judge import Outcome, Verdict
from kernel_coder.prompts import build_messages
from kernel_coder.rollout import completion_seed
from kernel_coder.tasks import Task, TaskSet, load_tasks

SHOWN_PROBLEMS = 5

MakeJudge = Callable[..., Any]
"""Called with ``device``, ``backend``, ``config`` and ``log``; gives a Judge or its like."""


def evaluate(
    config: EvaluateConfig,
    *,
    resume: bool = False,
    make_judge: MakeJudge | None = None,
    make_model: Callable[[EvaluateConfig], Model] | None = None,
    poll: Poll = lambda: None,
    log: IO[str] | None = None,
) -> Results:
    """Runs what is missing in ``config.output`` and writes the results there.

    Args:
        config: what to do.
        resume: go on with the run that the folder holds.
        make_judge: in the place of :class:`kernel_coder.judge.Judge`.
        make_model: in the place of the model that ``config`` names.
        poll: called often; may raise to stop. Nothing that was written is lost.
        log: where progress is shown; None: stderr.

    Raises:
        UsageError: something in the config or its files is wrong.
        ServerFailed: the server gave no more answers.
        HarnessFailed: there are answers, and the judge reached no verdict on any. The results are written all the same.
    """
    config = config.model_copy(update={"device": resolve_device(config.device)})
    config = config.model_copy(update={"dtype": resolve_dtype(config.dtype, config.device)})
    console = Console(file=log or sys.stderr)
    tasks = select_tasks(config)
    for line in (tasks.summary(), *(f"dropped {problem}" for problem in tasks.problems[:SHOWN_PROBLEMS])):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    requests = make_requests(tasks, config)
    with Store(Path(config.output), config, resume=resume) as store:
        for task in tasks:
            store.check_task(task.id, task.reference)
        collect_answers(requests, store, config, make_model or load_model, poll, console)
        collect_verdicts(requests, store, config, make_judge or load_judge, poll, console)
        results = Results(config, tasks, store.samples, store.verdicts)
        write_results(store.folder, results)
    failed = [verdict for verdict in results.verdicts.values() if not verdict.is_scored]
    if failed and len(failed) == len(results.verdicts):
        raise HarnessFailed(f"the judge reached no verdict on any of {len(failed)} answers: {failed[0].reason}")
    return results


def select_tasks(config: EvaluateConfig) -> TaskSet:
    """The tasks of the config, all for its backend and precision."""
    try:
        tasks = load_tasks(config.tasks, kernelbench_dir=config.kernelbench_dir)
        if config.problems is not None:
            tasks = tasks.pick(parse_numbers(config.problems))
    except (ValueError, OSError, ImportError) as error:
        raise UsageError(str(error).replace("data.path", "--tasks").replace("data.revision", "@commit")) from None
    changes: dict[str, Any] = {"backend": config.backend}
    if config.precision is not None:
        changes["precision"] = config.precision
    limited = tasks.limit(config.limit)
    return TaskSet((replace(task, **changes) for task in limited), tasks.problems, tasks.source)


def make_requests(tasks: Sequence[Task], config: EvaluateConfig) -> list[Request]:
    """Every answer that is wanted, task by task."""
    requests: list[Request] = []
    for task in tasks:
        try:
            messages = tuple(build_messages(task, config.prompt_template, one_shot=config.one_shot))
        except ValueError as error:
            raise UsageError(str(error)) from None
        requests += (
            Request(task, sample, messages, completion_seed(config.seed, task.id, sample))
            for sample in range(config.samples)
        )
    return requests


def load_model(config: EvaluateConfig) -> Model:
    if config.base_url is not None:
        from kernel_coder.evaluate.server import Server

        return Server(config)
    try:
        from kernel_coder.evaluate.local import LocalModel
    except ModuleNotFoundError as error:
        raise UsageError(f"a local model needs the package {error.name}: pip install 'kernel-coder[train]'") from None
    return LocalModel(config)


def load_judge(**arguments: Any) -> Any:
    from kernel_coder.judge.judge import Judge
    from kernel_coder.judge.sandbox import SandboxError

    try:
        return Judge(**arguments)
    except SandboxError as error:
        raise HarnessFailed(f"nothing can be judged on this machine: {error}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None


def collect_answers(
    requests: Sequence[Request],
    store: Store,
    config: EvaluateConfig,
    make_model: Callable[[EvaluateConfig], Model],
    poll: Poll,
    console: Console,
) -> None:
    """Asks for the answers that the store lacks."""
    missing = [request for request in requests if _key(request) not in store.samples]
    if not missing:
        return
    model = make_model(config)
    try:
        with counting(console, "answers", len(requests) - len(missing), len(requests)) as advance:
            for request, answer in model.answer(missing, poll):
                store.add_sample(Sample.of(request, answer))
                advance()
    finally:
        model.close()


def collect_verdicts(
    requests: Sequence[Request],
    store: Store,
    config: EvaluateConfig,
    make_judge: MakeJudge,
    poll: Poll,
    console: Console,
) -> None:
    """Judges the answers that have no verdict, or one that the harness failed on."""
    missing: list[tuple[Key, Task, str]] = []
    verdicts: list[tuple[Key, Verdict]] = []
    for request in requests:
        sample, key = store.samples[_key(request)], _key(request)
        if key in store.verdicts and store.verdicts[key].is_scored:
            continue
        if sample.code is None:
            verdicts.append((key, format_error(request.task, sample, config)))
        else:
            missing.append((key, request.task, sample.code))
    for key, verdict in verdicts:
        store.add_verdict(key, verdict)
    if not missing:
        return
    judge = make_judge(device=config.device, backend=config.backend, config=config.judge, log=console.file)
    with judge, counting(console, "verdicts", len(requests) - len(missing), len(requests)) as advance:
        judged = judge.evaluate_many([(task, code) for _, task, code in missing])
        for (key, _, _), verdict in zip(missing, judged, strict=True):
            store.add_verdict(key, verdict)
            advance()
            poll()


def format_error(task: Task, sample: Sample, config: EvaluateConfig) -> Verdict:
    """The verdict of an answer that holds no code: no judge is needed for it."""
    return Verdict(
        outcome=Outcome.FORMAT_ERROR,
        compiled=False,
        reason=sample.problem,
        feedback=f"{sample.problem}: put the whole module, with its class ModelNew, into one code block.",
        task=task.id,
        task_hash=text_hash(task.reference),
        candidate_hash=text_hash(""),
        backend=task.backend,
        device=config.device,
        interpreted=config.device == "cpu" and task.backend == "triton",
    )


def _key(request: Request) -> Key:
    return request.task.id, request.sample


@contextmanager
def counting(console: Console, what: str, done: int, total: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal; elsewhere a line at the beginning and at every tenth of the work."""
    if console.is_terminal:
        columns = (TextColumn(what), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task(what, total=total, completed=done)
            yield lambda: progress.advance(bar)
        return
    count = done
    console.print(f"{what} {count}/{total}", highlight=False)

    def advance() -> None:
        nonlocal count
        count += 1
        if count * 10 // total > (count - 1) * 10 // total:
            console.print(f"{what} {count}/{total}", highlight=False)

    yield advance
