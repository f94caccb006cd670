"""Asks a teacher model for pairs, judges them, and keeps the correct ones.

There are two append-only logs beside the output: ``<out>.answers.jsonl`` holds every answer with its tokens, and
``<out>.verdicts.jsonl`` every result of the judge, by the hash of its inputs. The rows depend only on the questions and
the logs. So an interrupted run asks only for missing answers and ends with the same rows.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import os
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import orjson

from kernel_coder.data.build import MORE_COLUMNS, kind_of, replace_file, write_table
from kernel_coder.data.questions import DistillPlan, Pair, Question, make_questions, read_answer
from kernel_coder.data.screen import Drop, Screen
from kernel_coder.evaluate.answers import Answer, Model, Poll
from kernel_coder.evaluate.config import EvaluateConfig
from kernel_coder.evaluate.errors import HarnessFailed, UsageError
from kernel_coder.evaluate.run import arriving
from kernel_coder.evaluate.store import read_records
from kernel_coder.judge import Outcome, Verdict
from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.supervisor.batching import askers, tasks_at_once
from kernel_coder.prompts import Message
from kernel_coder.rollout.engine import completion_seed
from kernel_coder.run.errors import StopRequested
from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks.build_pairs import COLUMNS, content_hash, row
from kernel_coder.tasks.generator.fingerprint import fingerprint
from kernel_coder.tasks.order import in_turn
from kernel_coder.tasks.task import Task

DISTILLED_COLUMNS = (
    "kind",
    "op",
    "thinking",
    "teacher",
    "sample",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "speedup",
)
ANSWER_SETTINGS = (
    *("model", "revision", "gguf_file", "dtype", "chat_template", "extra_body"),
    *("temperature", "top_p", "top_k", "max_new_tokens", "seed"),
)
"""Fields on which a teacher's answers depend. They have the same values for all answers in a log."""

POLL_S = 0.2
"""Upper limit for a wait between two calls of ``poll``, in seconds, so that a signal to stop is noticed this soon."""

REFUSED = "the task is refused"
"""Beginning of the judge's reason if it refuses a task."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Asks for one answer to a question."""

    question: Question
    sample: int
    seed: int

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.question.messages

    @property
    def key(self) -> tuple[str, int]:
        return self.question.hash, self.sample


class Judging(Protocol):
    """The methods of :class:`kernel_coder.judge.Judge` that distill uses."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *exception: Any) -> None: ...
    def evaluate(self, task: Task, candidate: str, backend: str | None = None) -> Verdict: ...
    def admit(self, task: Task) -> Any: ...


class Progress(Protocol):
    """Shows progress; see :class:`kernel_coder.evaluate.run.Counting`."""

    def say(self, line: str) -> None: ...
    def start(self, what: str, done: int, total: int) -> None: ...
    def advance(self, what: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of a million tokens, in any currency."""

    prompt: float = 0.0
    completion: float = 0.0


@dataclass(slots=True)
class DistillReport:
    """The numbers of questions, answers and rows, their cost, and the reason for each drop."""

    questions: int = 0
    wanted: int = 0  # number of requested answers
    answers: int = 0
    judged: int = 0
    rows: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    uncounted: int = 0  # number of answers for which the server reported no tokens
    seconds: float = 0.0  # the teacher's time, summed over its answers
    cost: float = 0.0
    rows_by_kind: dict[str, int] = field(default_factory=dict)
    drops: list[dict[str, Any]] = field(default_factory=list)
    not_asked: list[dict[str, Any]] = field(default_factory=list)
    content_hash: str = ""

    @property
    def complete(self) -> bool:
        return self.judged == self.wanted

    def table(self) -> list[tuple[str, str, int]]:
        """Return (stage, reason, number) of dropped answers, the most frequent first. Wrong answers are counted by
        outcome."""
        counts = Counter((drop["stage"], drop.get("outcome") or kind_of(drop["reason"])) for drop in self.drops)
        return [(stage, reason, number) for (stage, reason), number in counts.most_common()]

    def not_asked_table(self) -> list[tuple[str, str, int]]:
        """Return (stage, reason, number) of questions that were not asked, the most frequent first."""
        counts = Counter((drop["stage"], kind_of(drop["reason"])) for drop in self.not_asked)
        return [(stage, reason, number) for (stage, reason), number in counts.most_common()]


def distill(
    plan: DistillPlan,
    out: Path,
    teacher: EvaluateConfig,
    *,
    judge: JudgeConfig,
    make_model: Callable[[EvaluateConfig], Model],
    make_judge: Callable[..., Judging],
    progress: Progress,
    prices: Prices | None = None,
    poll: Poll = lambda: None,
) -> DistillReport:
    """Asks and judges, and writes ``out`` with ``<out>.report.json`` and the two logs beside it.

    The files are also written after an error, from the answers so far; the report states whether it is complete.

    Args:
        plan: the questions and the screening of answers.
        out: a ``.parquet`` file.
        teacher: the model, its sampling, and the resolved device of a local model and of the judge.
        judge: the judge's config.
        make_model: loads the teacher.
        make_judge: called with ``device``, ``backend`` and ``config``.
        progress: shows progress.
        prices: prices of tokens.
        poll: called often; may raise to stop.

    Raises:
        UsageError: the plan has no questions, ``out`` is not a parquet file, or its logs belong to another teacher or
            are in use.
        ServerFailed: the server stopped answering; the same command continues.
        HarnessFailed: the judge failed on every answer.
        StopRequested: raised by ``poll``.
    """
    if out.suffix != ".parquet":
        raise UsageError(f"--out must end in .parquet; got {out}")
    questions, not_asked = make_questions(plan)
    asked = [
        Asked(question, sample, completion_seed(plan.seed, question.hash, sample))
        for question in questions
        for sample in range(plan.samples)
    ]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror or error}") from None
    settings = {name: teacher.model_dump(mode="json")[name] for name in ANSWER_SETTINGS} | {"seed": plan.seed}
    with (
        AnswerLog(out.with_suffix(".answers.jsonl"), settings) as answers,
        Log(out.with_suffix(".verdicts.jsonl")) as found,
    ):
        run = Distillation(plan, asked, answers, Findings(found, teacher.device, judge), progress)
        try:
            run.run(teacher, judge, make_model, make_judge, poll)
        finally:
            report = run.write(out, prices or Prices(), not_asked, settings)
    unjudged = [drop for drop in report.drops if drop["stage"] == "judge"]
    if unjudged and len(unjudged) == report.answers:
        raise HarnessFailed(f"the judge reached no verdict on any of {report.answers} answers: {unjudged[0]['reason']}")
    return report


# Logs -----------------------------------------------------------------------------------------------------------------


class Log:
    """An append-only file of JSON lines, locked by one process. An incomplete last line is dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("ab")
        except OSError as error:
            raise UsageError(f"--out: {path} cannot be written: {error.strerror or error}") from None
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel frees it when the process ends
        except OSError:
            self._file.close()
            raise UsageError(f"another process is writing {path}; wait for it, or give another --out") from None
        try:
            self.records = read_records(path)
            if not all(isinstance(record, dict) for record in self.records):
                raise UsageError(f"{path} holds a line that is not an object; it is not a log of distill")
        except BaseException:
            self._file.close()
            raise

    def add(self, record: Mapping[str, Any]) -> None:
        """Appends a record and waits until it is on the disk, because the answer may have cost money."""
        self._file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class AnswerLog(Log):
    """The teacher's answers by question and sample. The first line holds the settings of the teacher."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        super().__init__(path)
        self.teacher = str(settings["model"])
        self.answers: dict[tuple[str, int], dict[str, Any]] = {}
        try:
            if self.records:
                self._check(self.records[0].get("settings"), settings)
            else:
                self.add({"settings": settings})
            for record in self.records[1:]:
                self.answers[record["prompt"], record["sample"]] = record
        except KeyError as error:
            self._file.close()
            raise UsageError(f"{path} holds a line without {error}; it is not a log of answers") from None
        except BaseException:
            self._file.close()
            raise

    def _check(self, before: Any, now: Mapping[str, Any]) -> None:
        if not isinstance(before, dict):
            raise UsageError(f"{self.path} does not begin with the settings of its answers; give another --out")
        now = orjson.loads(orjson.dumps(now))
        changed = [
            f"{name} was {before.get(name)} and is {now.get(name)}" for name in now if before.get(name) != now[name]
        ]
        if changed:
            raise UsageError(f"{self.path} holds answers with other settings: {'; '.join(changed)}")

    def keep(self, asked: Asked, answer: Answer) -> None:
        record = {
            "prompt": asked.question.hash,
            "sample": asked.sample,
            "question": asked.question.id,
            "seed": asked.seed,
            "messages": asked.messages,
            **asdict(answer),
        }
        self.add(record)
        self.answers[asked.key] = record


class Findings:
    """Results of the judge, by the hash of all their inputs: code, task, settings, device and versions.

    Failures of the judge are not stored.
    """

    def __init__(self, log: Log, device: str, config: JudgeConfig) -> None:
        self.log = log
        settings = config.model_dump(mode="json", exclude={"workers", "retries", "audit_dir"})
        self.settings = json.dumps([device.partition(":")[0], settings, versions()], sort_keys=True)
        self.known: dict[str, Drop | dict[str, Any] | None] = {}
        for record in log.records:
            if "key" in record and "drop" in record:
                self.known[record["key"]] = tuple(record["drop"]) if record["drop"] else record["found"]

    def key(self, pair: Pair, question: Question) -> str:
        own = [question.kind, pair.task.reference, pair.task.entry_point, pair.task.precision, pair.code]
        return sha256_text(json.dumps([*own, self.settings]))

    def keep(self, key: str, finding: Finding) -> None:
        self.known[key] = finding.drop or finding.facts
        if finding.is_final:
            drop = [*finding.drop] if finding.drop else None
            verdict = orjson.Fragment(finding.verdict.to_json()) if finding.verdict else None
            self.log.add({"key": key, "drop": drop, "found": finding.facts, "verdict": verdict})


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of judging a pair."""

    drop: Drop | None  # why the pair is dropped; None: it is kept
    facts: dict[str, Any]  # values for the row
    verdict: Verdict | None
    is_final: bool = True  # False: the judge failed, and the pair is judged again


def versions() -> dict[str, str]:
    """Return the versions of the packages that can change a verdict."""
    return {name: importlib.metadata.version(name).split("+")[0] for name in ("torch", "triton", "numpy")}


def examine(judge: Judging, pair: Pair, question: Question) -> Finding:
    """Judges a pair. A module that the teacher wrote must first be admitted as a task."""
    if question.task is None:
        admission = judge.admit(pair.task)
        if not admission.admitted:
            reason = admission.reason or "no reason given"
            is_known = admission.admitted is not None
            return Finding(("task" if is_known else "judge", reason), {}, None, is_known)
    verdict = judge.evaluate(pair.task, pair.code, "triton")
    if verdict.outcome is Outcome.HARNESS_FAILED:
        reason = verdict.reason or "no reason given"
        is_known = reason.startswith(REFUSED)
        return Finding(("task" if is_known else "judge", reason), {}, verdict, is_known)
    if not verdict.correct:
        return Finding(("verification", f"{verdict.outcome}: {verdict.reason}"), {}, verdict)
    return Finding(None, {"speedup": verdict.speedup, "device": verdict.device}, verdict)


# The run --------------------------------------------------------------------------------------------------------------


class Distillation:
    """Asks for the answers that the log lacks, judges them as they arrive, and makes the rows."""

    def __init__(
        self, plan: DistillPlan, asked: Sequence[Asked], answers: AnswerLog, findings: Findings, progress: Progress
    ) -> None:
        self.plan, self.asked, self.answers, self.findings, self.progress = plan, asked, answers, findings, progress
        self.screen = plan.screen()
        self.abandoned = threading.Event()
        self._read: dict[tuple[str, int], Pair | Drop] = {}

    def run(
        self,
        teacher: EvaluateConfig,
        config: JudgeConfig,
        make_model: Callable[[EvaluateConfig], Model],
        make_judge: Callable[..., Judging],
        poll: Poll,
    ) -> None:
        missing = [one for one in self.asked if one.key not in self.answers.answers]
        there = [one for one in self.asked if one.key in self.answers.answers]
        self.progress.start("answers", len(there), len(self.asked))
        if not missing and not any(self._open(one) for one in there):
            return
        # Start the judge first: if it cannot start, no answer should be paid for.
        with ExitStack() as stack:
            most = askers(teacher.device, config)
            pool = stack.enter_context(ThreadPoolExecutor(most, thread_name_prefix="verdict"))
            judge = stack.enter_context(make_judge(device=teacher.device, backend="triton", config=config))
            arrived: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
            if teacher.base_url is None:  # a local model answers everything before the judge uses the machine
                self._ask(missing, teacher, make_model, poll, lambda one: None)
                at_once = tasks_at_once(teacher.device, config)
                ordered = in_turn(self.asked, lambda one: one.question.hash, at_once)
                self._judge(iter(ordered), judge, pool, most, poll)
                return
            asking = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="answers")).submit(
                self._ask, missing, teacher, make_model, poll, arrived.put
            )
            asking.add_done_callback(lambda _: arrived.put(None))
            try:
                self._judge(chain(there, arriving(arrived)), judge, pool, most, poll)
            finally:
                self.abandoned.set()
            asking.result()

    def _ask(
        self,
        missing: Sequence[Asked],
        teacher: EvaluateConfig,
        make_model: Callable[[EvaluateConfig], Model],
        poll: Poll,
        then: Callable[[Asked], None],
    ) -> None:
        if not missing:
            return

        def poll_or_leave() -> None:
            poll()
            if self.abandoned.is_set():
                raise StopRequested("the end of judging")

        model = make_model(teacher)
        try:
            for one, answer in model.answer(missing, poll_or_leave):
                self.answers.keep(one, answer)
                self.progress.advance("answers")
                then(one)
        finally:
            model.close()

    def _judge(
        self, ready: Iterator[Asked | None], judge: Judging, pool: ThreadPoolExecutor, most: int, poll: Poll
    ) -> None:
        """``ready`` yields requests that were answered, and None while it waits for the next answer."""
        running: dict[Future[Finding], str] = {}
        exhausted = False
        self.progress.start("verdicts", 0, len(self.asked))
        while running or not exhausted:
            while not exhausted and len(running) < most:
                try:
                    one = next(ready)
                except StopIteration:
                    exhausted = True
                    break
                if one is None:
                    break
                key = self._open(one)
                if key is None or key in running.values():
                    self.progress.advance("verdicts")
                    continue
                running[pool.submit(examine, judge, self._pair(one), one.question)] = key
            poll()
            done, _ = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED) if running else (set(), None)
            for future in done:
                self.findings.keep(running.pop(future), future.result())
                self.progress.advance("verdicts")

    def _open(self, one: Asked) -> str | None:
        """Return the hash of a pair that must be judged; None if its result is known or it is dropped without the
        judge."""
        pair = self._reading(one)
        if not isinstance(pair, Pair):
            return None
        key = self.findings.key(pair, one.question)
        return None if key in self.findings.known else key

    def _pair(self, one: Asked) -> Pair:
        pair = self._reading(one)
        assert isinstance(pair, Pair)
        return pair

    def _reading(self, one: Asked) -> Pair | Drop:
        """Return the pair in the answer, or the reason why it is dropped without the judge."""
        if one.key not in self._read:
            self._read[one.key] = self._fresh_reading(one)
        return self._read[one.key]

    def _fresh_reading(self, one: Asked) -> Pair | Drop:
        record = self.answers.answers[one.key]
        if record["problem"]:
            return "answer", record["problem"]
        pair = read_answer(one.question, record["text"], record["reasoning"])
        if isinstance(pair, str):
            return "answer", f"{pair} (it reached the token limit)" if record["finish_reason"] == "length" else pair
        if one.question.task is None and (
            drop := self.screen.kernelbench(pair.task) or self.screen.resemblance(pair.task)
        ):
            return drop
        return pair

    # ---- rows and report

    def write(
        self, out: Path, prices: Prices, not_asked: Sequence[dict[str, Any]], settings: Mapping[str, Any]
    ) -> DistillReport:
        report = DistillReport(len(self.asked) // self.plan.samples, len(self.asked), not_asked=list(not_asked))
        rows = list(self._rows(report))
        for record in self.answers.answers.values():  # all answers in the log, also those of earlier plans
            report.prompt_tokens += record["prompt_tokens"] or 0
            report.completion_tokens += record["completion_tokens"] or 0
            report.uncounted += record["completion_tokens"] is None
            report.seconds += record["seconds"] or 0.0
        report.cost = (report.prompt_tokens * prices.prompt + report.completion_tokens * prices.completion) / 1e6
        report.rows, report.content_hash = len(rows), content_hash(rows)
        report.rows_by_kind = dict(Counter(str(one["kind"]) for one in rows))
        if not report.answers:
            return report
        write_table(out, rows, (*COLUMNS, *MORE_COLUMNS, *DISTILLED_COLUMNS))
        record = {
            "plan": asdict(self.plan),
            "teacher": settings,
            "versions": versions(),
            "prices": asdict(prices),
            **{name: getattr(report, name) for name in report.__dataclass_fields__ if name != "content_hash"},
            "complete": report.complete,
            "acceptance": report.rows / report.answers if report.answers else None,
            "table": [{"stage": s, "reason": r, "count": n} for s, r, n in report.table()],
            "not_asked_table": [{"stage": s, "reason": r, "count": n} for s, r, n in report.not_asked_table()],
            "rows_sha256": report.content_hash,
            "file_sha256": hashlib.sha256(out.read_bytes()).hexdigest(),
        }
        replace_file(out.with_suffix(".report.json"), json.dumps(record, indent=1).encode() + b"\n")
        return report

    def _rows(self, report: DistillReport) -> Iterable[dict[str, Any]]:
        """Yield the rows in the order of the questions. Dropped answers go into the report."""
        screen = Screen(per_structure=self.plan.per_structure)
        pairs: set[tuple[str, str]] = set()
        uuids: set[int] = set()
        for one in self.asked:
            if one.key not in self.answers.answers:
                continue
            report.answers += 1
            pair = self._reading(one)
            finding: Drop | dict[str, Any] | None
            finding = self.findings.known.get(self.findings.key(pair, one.question)) if isinstance(pair, Pair) else pair
            if finding is None:  # not judged yet
                continue
            report.judged += finding[0] != "judge" if isinstance(finding, tuple) else 1
            if isinstance(finding, tuple):
                report.drops.append(_dropped(one, finding))
                continue
            assert isinstance(pair, Pair)
            structure = one.question.structure or fingerprint(pair.task.reference)
            whole = (structure, fingerprint(pair.code))
            if whole in pairs:
                drop = ("duplicate", "an earlier pair differs only in names and constants")
            elif not screen.count(structure):
                drop = ("duplicate", "an earlier module differs only in names and constants")
            else:
                pairs.add(whole)
                made = self._row(one, pair, structure, finding)
                if made["uuid"] in uuids:  # two answers for the same module, whose hash gives the uuid
                    made["uuid"] = int(sha256_text(f"{pair.task.reference}\0{pair.code}")[:12], 16)
                uuids.add(made["uuid"])
                yield made
                continue
            report.drops.append(_dropped(one, drop))

    def _row(self, one: Asked, pair: Pair, structure: str, finding: Mapping[str, Any]) -> dict[str, Any]:
        record, about = self.answers.answers[one.key], one.question.about
        teacher = self.answers.teacher
        values = row(pair.task.entry_point, pair.task.reference, "", pair.code)
        values["licenses"] = [pair.task.licence] if pair.task.licence else []
        if one.question.task is None:
            values["repo_name"] = teacher
        else:
            made = one.question.task.metadata
            values["repo_name"] = made.get("repo_name", one.question.task.source)
            values["synthetic"] = made.get("synthetic", "generator" in made)
        judged_by = {**versions(), "verifier": "judge", "device": finding["device"]}
        more = {
            **dict.fromkeys((*MORE_COLUMNS, *DISTILLED_COLUMNS)),
            **{name: about.get(name) for name in ("family", "level", "split", "seed", "op")},
            "composition": list(about["composition"]) if "composition" in about else None,
            "verified": True,
            "verifier": "judge",
            "fingerprint": structure,
            "versions": json.dumps(judged_by, sort_keys=True),
            "kind": one.question.kind,
            "thinking": None if self.plan.drop_thinking else pair.thinking,
            "teacher": teacher,
            "sample": one.sample,
            "speedup": finding["speedup"],
            **{name: record[name] for name in ("finish_reason", "prompt_tokens", "completion_tokens")},
        }
        return {**values, **more}


def _dropped(one: Asked, drop: Drop) -> dict[str, Any]:
    stage, reason = drop
    outcome = {"outcome": reason.partition(":")[0]} if stage == "verification" else {}
    return {"id": one.question.id, "sample": one.sample, "stage": stage, **outcome, "reason": reason}
