"""Makes pairs: verified rows in KernelBook's columns from tasks, and a reason for every task that was dropped.

The stream of attempts is deterministic. The results are written to a journal beside the output, in order, one line for
each attempt. If a build was killed, the next one reads the journal, skips these attempts, and continues; its files have
the same bytes as those of a build that was not killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from kernel_coder.data.screen import Drop, Screen
from kernel_coder.data.sizes import shrunk
from kernel_coder.data.verifiers import Candidate, Finding, NotRun, Verifier
from kernel_coder.data.workers import Workers
from kernel_coder.run.flags import UsageError
from kernel_coder.tasks.build_pairs import COLUMNS, content_hash, row
from kernel_coder.tasks.generator import ALL_FAMILIES, FAMILIES, HELDOUT_FAMILIES, LEVELS, VERSION, generate_many
from kernel_coder.tasks.generator.bugs import plant_bug
from kernel_coder.tasks.sources import load_tasks
from kernel_coder.tasks.task import Task
from kernel_coder.tasks.task_set import Problem

GENERATOR = "generator"
MORE_COLUMNS = (
    "family",
    "level",
    "composition",
    "split",
    "seed",
    "verified",
    "verifier",
    "max_error",
    "fingerprint",
    "versions",
)
NEGATIVE_COLUMNS = ("uuid", "family", "level", "composition", "split", "python_code", "triton_code", "bug", "reason")
SMALL = "small_python_code"
"""Column and metadata of the family ``repository``: the module at small sizes, which the verifiers here run."""
REPOSITORY_COLUMNS = ("thinking", SMALL)
"""Columns that only tables with pairs of that family have, so that the hashes of older tables stay the same."""
MAX_PREPARED = 64
"""Upper limit for the attempts that are prepared while an earlier one is being lowered."""
ATTEMPTS_PER_ROW = 30
"""Number of attempts for each requested row after which a build gives up, so that a build that finds too few rows
ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a build. Two builds of one plan with the same versions give the same files.

    Attributes:
        sources: files and folders of tasks, read by :func:`kernel_coder.tasks.load_tasks`, and ``generator``. The
            generator has no end, so it always comes last.
        count: number of verified rows; None: all that the files give.
        seed: seed of the generator.
        families: families of the generator; None: all of the chosen splits.
        levels: levels of the generator.
        splits: splits to build; see `kernel_coder.tasks.generator.split`.
        per_structure: highest number of rows whose syntax trees differ only in names and constants.
        negatives: number of wrong solutions for each row, with one planted bug each, in a separate file.
        against: a folder of problems that no row may resemble.
        max_size: in modules from files, each size that is a constant of the module is halved until it is at most this,
            because the interpreter is slow. Some modules no longer work then.
        max_elements: the sizes of modules that Inductor lowers are reduced until no tensor has more elements; see
            :func:`kernel_coder.data.sizes.fitted`. None: they are kept.
        allow_kernelbench: keep modules that are KernelBench's, to measure the builder; never train on them.
    """

    sources: tuple[str, ...] = (GENERATOR,)
    count: int | None = None
    seed: int = 0
    families: tuple[str, ...] | None = None
    levels: tuple[int, ...] = LEVELS
    splits: tuple[str, ...] = ("train",)
    per_structure: int = 1
    negatives: int = 0
    against: str | None = None
    max_size: int | None = None
    max_elements: int | None = None
    allow_kernelbench: bool = False

    def __post_init__(self) -> None:
        if self.is_generated and self.count is None:
            raise UsageError("the generator has no end: say with --count how many pairs are wanted")
        if not self.sources:
            raise UsageError("--from names no source")
        for name in self.families or ():
            if name not in ALL_FAMILIES:
                raise UsageError(f"--families must be among {', '.join(ALL_FAMILIES)}; got {name!r}")
            if name in HELDOUT_FAMILIES and "heldout_family" not in self.splits:
                raise UsageError(f"--families {name} is a held-out family; it needs --splits heldout_family")
        for level in self.levels:
            if level not in LEVELS:
                raise UsageError(f"--levels must be among {', '.join(map(str, LEVELS))}; got {level}")
        for key in ("count", "per_structure", "max_size", "max_elements"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise UsageError(f"--{key.replace('_', '-')} must be at least 1; got {value}")

    @property
    def is_generated(self) -> bool:
        return GENERATOR in self.sources

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(source for source in self.sources if source != GENERATOR)

    def stream_families(self) -> tuple[str, ...]:
        if self.families is not None:
            return self.families
        wanted = []
        if {"train", "heldout_composition"} & set(self.splits):
            wanted += [name for name in FAMILIES if name not in HELDOUT_FAMILIES]
        if "heldout_family" in self.splits:
            wanted += [name for name in FAMILIES if name in HELDOUT_FAMILIES]
        return tuple(wanted)


@dataclass(slots=True)
class Attempt:
    """A task that becomes a row or is dropped with a reason."""

    task: Task
    source: str  # the source of the plan from which it comes
    fingerprint: str = ""
    drop: Drop | None = None
    code: str | None = None  # the candidate
    original: str | None = None  # Inductor's output, if the code was made from it
    with_nan: bool = False


@dataclass(slots=True)
class Report:
    """The result of a build."""

    rows: int = 0
    attempts: int = 0
    rows_by_source: dict[str, int] = field(default_factory=dict)
    drops: list[dict[str, Any]] = field(default_factory=list)
    negatives: int = 0
    negative_drops: list[dict[str, Any]] = field(default_factory=list)
    content_hash: str = ""
    complete: bool = True

    def table(self) -> list[tuple[str, str, str, int]]:
        """Return rows of source, stage, reason without its numbers, and count; the most frequent first."""
        drops = [*self.drops, *self.negative_drops]
        counts = Counter((drop["source"], drop["stage"], kind_of(drop["reason"])) for drop in drops)
        return [(*kind, number) for kind, number in counts.most_common()]


def kind_of(reason: str) -> str:
    return re.sub(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?", "N", reason)[:100]


def build(
    plan: Plan,
    out: Path,
    verifier: Verifier,
    *,
    workers: int = 2,
    timeout_s: float = 60.0,
    progress: Callable[[int, int], None] = lambda rows, attempts: None,
) -> Report:
    """Build the plan's pairs into `out`, a ``.parquet`` file; drops go to ``<out>.drops.json`` beside it.

    Continues where a killed build of the same plan stopped. `progress` is called with the numbers of rows and attempts
    so far.

    Raises:
        UsageError: `out` is not a parquet file's name, or the journal beside it is of another plan.
    """
    if out.suffix != ".parquet":
        raise UsageError(f"--out must end in .parquet; got {out}")
    out.parent.mkdir(parents=True, exist_ok=True)
    versions = _versions(verifier)
    header = {"plan": asdict(plan), "versions": versions}
    report = Report()
    rows: list[dict[str, Any]] = []
    sources: list[str] = []
    limit = None if plan.count is None else ATTEMPTS_PER_ROW * plan.count
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(out.with_suffix(".journal.jsonl"), header))
        attempts = stack.enter_context(closing(_attempts(plan, workers, timeout_s, skip=len(journal.entries))))
        entries = stack.enter_context(closing(_journalled(journal, attempts, verifier, versions)))
        for number, entry in enumerate(entries, start=1):
            report.attempts = number
            if "row" in entry:
                rows.append(entry["row"])
                sources.append(entry["source"])
            else:
                report.drops.append(entry["drop"])
            progress(len(rows), number)
            if len(rows) == plan.count:
                break
            if limit is not None and number >= limit:
                break
    report.complete = plan.count is None or len(rows) >= plan.count
    journals = [journal.path]
    if plan.negatives:
        with Journal(out.with_suffix(".negatives.jsonl"), header) as journal:
            negatives = _negatives(plan, rows, sources, verifier, journal, report)
        journals.append(journal.path)
        write_table(out.with_suffix(".negatives.parquet"), negatives, NEGATIVE_COLUMNS)
        report.negatives = len(negatives)
    report.rows, report.content_hash = len(rows), content_hash(rows)
    report.rows_by_source = dict(sorted(Counter(sources).items()))
    write_table(
        out, rows, (*COLUMNS, *MORE_COLUMNS, *(REPOSITORY_COLUMNS if any(SMALL in one for one in rows) else ()))
    )
    record = {
        **header,
        "rows": report.rows,
        "attempts": report.attempts,
        "rows_by_source": report.rows_by_source,
        "rows_by_family": dict(sorted(Counter(one["family"] for one in rows if one["family"]).items())),
        "rows_by_level": dict(sorted(Counter(str(one["level"]) for one in rows if one["family"]).items())),
        "rows_sha256": report.content_hash,
        "file_sha256": hashlib.sha256(out.read_bytes()).hexdigest(),
        "drop_table": [dict(zip(("source", "stage", "reason", "count"), line, strict=True)) for line in report.table()],
        "drops": report.drops,
        "negatives": report.negatives,
        "negative_drops": report.negative_drops,
    }
    replace_file(out.with_suffix(".drops.json"), json.dumps(record, indent=1, sort_keys=True).encode() + b"\n")
    for path in journals:
        path.unlink()
    return report


# Attempts -------------------------------------------------------------------------------------------------------------


def _attempts(plan: Plan, workers: int, timeout_s: float, skip: int) -> Generator[Attempt, None, None]:
    """Yield the attempts after the first `skip`. The first ones are made again, which is cheap, so that duplicates are
    known."""
    screen = Screen(
        splits=plan.splits,
        per_structure=plan.per_structure,
        allow_kernelbench=plan.allow_kernelbench,
        against=plan.against,
    )
    looked = (_look(attempt, screen) for attempt in _stream(plan))
    with Workers(workers, interpret=False, timeout_s=timeout_s) as lowering:
        for attempt in _with_solutions(islice(looked, skip, None), lowering, plan.max_elements):
            if attempt.drop is None:
                attempt.drop = screen.resemblance(attempt.task)
            yield attempt


def _stream(plan: Plan) -> Iterator[Attempt]:
    """Yield the files' tasks and unusable rows, then the generator's tasks."""
    for source in plan.files:
        tasks = load_tasks(source)
        for problem in tasks.problems:
            yield _unusable(problem, source)
        for task in tasks:
            yield Attempt(_sized(task, plan.max_size), source)
    if plan.is_generated:
        for made in generate_many(plan.seed, plan.stream_families(), plan.levels):
            yield Attempt(made.task, GENERATOR)


def _unusable(problem: Problem, source: str) -> Attempt:
    name = f"{problem.source} row {problem.row}"
    return Attempt(Task(id=name, source=problem.source, reference="unusable"), source, drop=("file", problem.reason))


def _look(attempt: Attempt, screen: Screen) -> Attempt:
    if attempt.drop is None:
        attempt.fingerprint, attempt.drop = screen.look(attempt.task)
    return attempt


def from_files(sources: Sequence[str], max_size: int | None) -> Iterator[Task]:
    for source in sources:
        for task in load_tasks(source):
            yield _sized(task, max_size)


def _sized(task: Task, max_size: int | None) -> Task:
    return task if max_size is None else replace(task, reference=shrunk(task.reference, max_size))


def _with_solutions(attempts: Iterator[Attempt], lowering: Workers, max_elements: int | None) -> Iterator[Attempt]:
    """Yield the attempts in order. Tasks without a solution get Inductor's, rewritten to be readable."""
    waiting: deque[Attempt] = deque()
    jobs: deque[Attempt] = deque()

    def needing() -> Iterator[dict[str, Any]]:
        for attempt in attempts:
            waiting.append(attempt)
            if attempt.drop is None and attempt.task.solution is None:
                jobs.append(attempt)
                task = attempt.task
                sizes = {"max_elements": max_elements}
                yield {"kind": "lower", "reference": task.reference, "entry_point": task.entry_point, **sizes}
            else:
                attempt.code = attempt.task.solution
                # No earlier attempt is being lowered, or enough later ones wait (their stream may be endless).
                if not jobs or len(waiting) >= MAX_PREPARED:
                    return

    while True:
        before = len(waiting)
        for result in lowering.map(needing()):
            attempt = jobs.popleft()
            if "failure" in result:
                attempt.drop = ("inductor", result["failure"])
            else:
                renamed = result["code"].replace(f"class {attempt.task.entry_point}New(", "class ModelNew(")
                attempt.code, attempt.original, attempt.with_nan = renamed, result["original"], True
                attempt.task = replace(attempt.task, reference=result["reference"])
            while waiting and waiting[0] is not attempt:
                yield waiting.popleft()
            yield waiting.popleft()
        if len(waiting) == before == 0:
            return
        while waiting:
            yield waiting.popleft()


# Results --------------------------------------------------------------------------------------------------------------


class Journal:
    """Results in order, one JSON line each, after a line that describes the plan. An incomplete last line is
    ignored."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path = path
        self.entries: list[dict[str, Any]] = []
        header = json.loads(json.dumps(header))
        if path.exists():
            lines = path.read_bytes().split(b"\n")
            whole = lines[:-1]  # text after the last line end is an incomplete line
            if whole:
                if json.loads(whole[0]) != header:
                    raise UsageError(
                        f"{path} is the journal of another plan or of other versions; finish that build, or remove it"
                    )
                self.entries = [json.loads(line) for line in whole[1:]]
            keep = sum(len(line) + 1 for line in whole)
            with path.open("r+b") as file:
                file.truncate(keep)
            self._file = path.open("ab")
            if not whole:
                self._line(header)
        else:
            self._file = path.open("ab")
            self._line(header)

    def _line(self, value: dict[str, Any]) -> None:
        self._file.write(json.dumps(value).encode() + b"\n")
        self._file.flush()

    def add(self, entry: dict[str, Any]) -> None:
        self._line(entry)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def _journalled(
    journal: Journal, attempts: Iterator[Attempt], verifier: Verifier, versions: dict[str, str]
) -> Generator[dict[str, Any], None, None]:
    yield from journal.entries
    waiting: deque[Attempt] = deque()

    def candidates() -> Iterator[Candidate]:
        for attempt in attempts:
            waiting.append(attempt)
            if attempt.drop is None:
                assert attempt.code is not None
                is_generated = "generator" in attempt.task.metadata  # whose modules are known to be sound
                task, small = attempt.task, attempt.task.metadata.get(SMALL)
                if small is not None:  # the same module at sizes that the interpreter can run
                    task = replace(task, reference=small)
                yield Candidate(task, attempt.code, attempt.with_nan, not is_generated, small is not None)

    def settled(attempt: Attempt, finding: Finding | None) -> dict[str, Any]:
        if finding is not None and not finding.correct:
            stage = "verifier" if finding.correct is None else "verification"
            attempt.drop = (stage, finding.reason or "no reason given")
        entry = (
            {"row": _row(attempt, finding, verifier, versions), "source": attempt.source}
            if attempt.drop is None and finding is not None
            else {"drop": _drop(attempt)}
        )
        journal.add(entry)
        return entry

    for finding in verifier.verify(candidates()):
        while waiting[0].drop is not None:
            yield settled(waiting.popleft(), None)
        yield settled(waiting.popleft(), finding)
    while waiting:
        yield settled(waiting.popleft(), None)


def _row(attempt: Attempt, finding: Finding, verifier: Verifier, versions: dict[str, str]) -> dict[str, Any]:
    task, made = attempt.task, attempt.task.metadata
    assert attempt.code is not None
    values = row(task.entry_point, task.reference, attempt.original or "", attempt.code)
    values["licenses"] = [task.licence] if task.licence else []
    if "generator" not in made:
        values["repo_name"], values["synthetic"] = made.get("repo_name", task.source), made.get("synthetic", False)
    more = (
        made.get("family"),
        made.get("level"),
        list(made["composition"]) if "composition" in made else None,
        made.get("split"),
        made.get("seed"),
        not isinstance(verifier, NotRun),
        verifier.name,
        finding.error,
        attempt.fingerprint,
        json.dumps(versions, sort_keys=True),
    )
    of_repository = {name: made[name] for name in REPOSITORY_COLUMNS} if SMALL in made else {}
    return {**values, **dict(zip(MORE_COLUMNS, more, strict=True)), **of_repository}


def _drop(attempt: Attempt) -> dict[str, Any]:
    stage, reason = attempt.drop or ("", "")
    made = attempt.task.metadata
    where = {key: made[key] for key in ("family", "level", "seed") if key in made}
    return {"id": attempt.task.id, "source": attempt.source, **where, "stage": stage, "reason": reason}


def _negatives(
    plan: Plan,
    rows: Sequence[dict[str, Any]],
    sources: Sequence[str],
    verifier: Verifier,
    journal: Journal,
    report: Report,
) -> list[dict[str, Any]]:
    """Return planted bugs that the verifier finds to be wrong; the others are dropped with the reason."""
    planted: list[dict[str, Any]] = []
    for one, source in zip(rows, sources, strict=True):
        rng = Random(f"bugs {plan.seed} {one['uuid']}")
        task = Task(id=str(one["uuid"]), source="", reference=one["python_code"], solution=one["triton_code"])
        found: dict[str, str] = {}
        for _ in range(plan.negatives * 3):
            if len(found) < plan.negatives:
                code, kind = plant_bug(task, rng)
                found.setdefault(kind, code)
        planted += [{**one, "triton_code": code, "bug": kind, "source": source} for kind, code in found.items()]
    entries = list(journal.entries)
    rest = planted[len(entries) :]
    candidates = (
        Candidate(Task(id=str(one["uuid"]), source="", reference=one["python_code"]), one["triton_code"])
        for one in rest
    )
    for finding in verifier.verify(candidates):
        entry = {"correct": finding.correct, "reason": finding.reason}
        journal.add(entry)
        entries.append(entry)
    negatives = []
    for one, entry in zip(planted, entries, strict=True):
        if entry["correct"] is False:
            negatives.append({**{key: one.get(key) for key in NEGATIVE_COLUMNS}, "reason": entry["reason"]})
        else:
            why = "the bug does no harm here" if entry["correct"] else f"not judged: {entry['reason']}"
            where = {"id": f"Model/{one['uuid']}", "source": one["source"]}
            drop = {**where, "stage": "negative", "reason": f"{one['bug']}: {why}"}
            report.negative_drops.append(drop)
    return negatives


def write_table(path: Path, rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {
        "synthetic": pa.bool_(),
        "verified": pa.bool_(),
        **dict.fromkeys(("uuid", "stars", "level", "seed"), pa.int64()),
        **dict.fromkeys(("sample", "prompt_tokens", "completion_tokens"), pa.int64()),
        **dict.fromkeys(("max_error", "speedup"), pa.float64()),
        "licenses": pa.list_(pa.string()),
        "composition": pa.list_(pa.string()),
    }
    schema = pa.schema([(column, types.get(column, pa.string())) for column in columns])
    partial = path.with_name(f".{path.name}.partial")
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), partial, compression="zstd", compression_level=19)
    os.replace(partial, path)


def replace_file(path: Path, data: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(data)
    os.replace(partial, path)


def _versions(verifier: Verifier) -> dict[str, str]:
    """Return the versions on which the result may depend."""
    found = {name: metadata.version(name).split("+")[0] for name in ("torch", "triton", "numpy")}
    return {**found, "generator": str(VERSION), "verifier": verifier.name}
