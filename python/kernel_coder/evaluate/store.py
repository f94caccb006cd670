"""The results folder. Records are written as they arrive, so that a run can be resumed wherever it was killed."""

from __future__ import annotations

import fcntl
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import orjson
import yaml

from kernel_coder.evaluate.answers import Answer, Key, Request, candidate
from kernel_coder.evaluate.config import EvaluateConfig, differences
from kernel_coder.evaluate.errors import UsageError
from kernel_coder.judge import Verdict
from kernel_coder.prompts import Message
from kernel_coder.run.hashes import sha256_text

CONFIG = "config.yaml"
SAMPLES = "samples.jsonl"
VERDICTS = "verdicts.jsonl"
SUMMARY = "summary.json"
TABLE = "table.md"
REPORT = "report.html"
LOCK = ".lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A line of samples.jsonl: one answer and its code."""

    task: str  # id of the task
    sample: int  # index of the sample among those of the task, from 0
    task_hash: str  # SHA-256 of the reference
    messages: tuple[Message, ...]
    text: str
    code: str | None
    problem: str | None  # why code is None
    finish_reason: str
    prompt_tokens: int | None
    completion_tokens: int | None
    seed: int

    @property
    def key(self) -> Key:
        return self.task, self.sample

    @classmethod
    def of(cls, request: Request, answer: Answer) -> Sample:
        """Return the record of an answer.

        >>> from kernel_coder.tasks import Task
        >>> request = Request(Task(id="t", source="example", reference="..."), 0, (), seed=1)
        >>> Sample.of(request, Answer("No.", "stop")).problem
        'the answer holds no code block'
        """
        code, problem = candidate(answer.text)
        return cls(
            task=request.task.id,
            sample=request.sample,
            task_hash=sha256_text(request.task.reference),
            messages=request.messages,
            text=answer.text,
            code=code,
            problem=answer.problem or problem,
            finish_reason=answer.finish_reason,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            seed=request.seed,
        )


class Store:
    """The folder of one run, locked while it is open.

    Args:
        folder: created if it does not exist.
        config: written to ``config.yaml``. A resumed run must have the same config, except for
            ``config.CHANGEABLE_FIELDS``.
        resume: continue the run in the folder.

    Raises:
        UsageError: the folder holds a run and ``resume`` is False, its config differs, a record cannot be read, or
            another process has locked the folder.
    """

    def __init__(self, folder: Path, config: EvaluateConfig, *, resume: bool) -> None:
        self.folder = folder
        self.samples: dict[Key, Sample] = {}
        self.verdicts: dict[Key, Verdict] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / LOCK).open("ab")
        except OSError as error:
            raise UsageError(f"--output {folder} cannot be written: {error.strerror or error}") from None
        try:
            self._take_lock()
            self._check(config, resume)
            for record in read_records(folder / SAMPLES):
                sample = _sample(record, folder / SAMPLES)
                self.samples[sample.key] = sample
            for record in read_records(folder / VERDICTS):
                key, verdict = _verdict(record, folder / VERDICTS)
                self.verdicts[key] = verdict
            write(folder / CONFIG, config.to_yaml())
            self._sample_file = (folder / SAMPLES).open("ab")
            self._verdict_file = (folder / VERDICTS).open("ab")
        except BaseException:
            self._lock.close()
            raise

    def _take_lock(self) -> None:
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel frees it when the process ends
        except OSError:
            raise UsageError(
                f"another process is writing to {self.folder}; wait for it or give another --output"
            ) from None

    def _check(self, config: EvaluateConfig, resume: bool) -> None:
        paths = (self.folder / name for name in (SAMPLES, VERDICTS))
        if not any(path.exists() and path.stat().st_size for path in paths):
            return
        if not resume:
            raise UsageError(f"{self.folder} already holds a run: pass --resume to continue it, or another --output")
        try:
            before = yaml.safe_load((self.folder / CONFIG).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            before = None
        if not isinstance(before, dict):
            raise UsageError(
                f"{self.folder / CONFIG} cannot be read, so the run cannot be resumed; give another --output"
            )
        if changed := differences(before, config.model_dump(mode="json")):
            raise UsageError(
                f"{self.folder} holds a run with another config, which --resume cannot continue: {'; '.join(changed)}"
            )

    def check_task(self, task: str, reference: str) -> None:
        """Raises UsageError if the folder holds answers to another reference with the same task id."""
        for key, sample in self.samples.items():
            if key[0] == task and sample.task_hash != sha256_text(reference):
                raise UsageError(f"the text of task {task} changed since {self.folder} began; give another --output")

    def add_sample(self, sample: Sample) -> None:
        self.samples[sample.key] = sample
        _append(self._sample_file, asdict(sample))

    def add_verdict(self, key: Key, verdict: Verdict) -> None:
        self.verdicts[key] = verdict
        record = {"task": key[0], "sample": key[1], "verdict": orjson.Fragment(verdict.to_json())}
        _append(self._verdict_file, record)

    def close(self) -> None:
        for file in (self._sample_file, self._verdict_file, self._lock):
            file.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_records(path: Path) -> Sequence[Any]:
    """Return the objects of a JSON lines file. An incomplete last line, which a crash leaves, is removed from the file.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "x.jsonl")
    ...     _ = path.write_text('{"a": 1}\\n{"a": ')
    ...     read_records(path), path.read_text()
    ([{'a': 1}], '{"a": 1}\\n')
    """
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    records: list[Any] = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            records.append(orjson.loads(line))
        except orjson.JSONDecodeError as error:
            raise UsageError(f"{path} line {number} is not JSON: {error}") from None
    if len(whole) < len(content):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return records


def write(path: Path, text: str) -> None:
    """Writes the file atomically."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _append(file: IO[bytes], record: Mapping[str, Any]) -> None:
    file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
    file.flush()


def _sample(record: Any, path: Path) -> Sample:
    try:
        return Sample(**{**record, "messages": tuple(record["messages"])})
    except (TypeError, KeyError):
        raise UsageError(f"{path} holds a line that is not a sample: {str(record)[:80]}") from None


def _verdict(record: Any, path: Path) -> tuple[Key, Verdict]:
    try:
        text = orjson.dumps(record["verdict"]).decode()
        return (record["task"], record["sample"]), Verdict.from_json(text)
    except (TypeError, KeyError, ValueError) as error:
        raise UsageError(f"{path} holds a line that is not a verdict: {error}") from None
