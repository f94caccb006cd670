"""Reads and writes the files of ``--pairs``: pairs to judge, and their verdicts. A stopped run can continue from them.

A line of the input is ``{"task": ..., "candidate": ..., "backend": ...}``, with any other keys. Its line of the output
is ``{"index": 0, "input": "<hash>", ...the other keys..., "verdict": {...}}``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_coder.judge.verdict import Outcome, Verdict
from kernel_coder.run.flags import UsageError
from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks import Task
from kernel_coder.tasks.task import BACKENDS

OWN_KEYS = ("index", "input", "verdict")
"""Keys that only lines of the output have."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One line of the input.

    Attributes:
        index: its number, counted from 0 without empty lines.
        task, candidate, backend: what to judge.
        key: hash of everything that the verdict depends on: both sources and how they are judged.
        others: other keys of the line.
    """

    index: int
    task: Task
    candidate: str
    backend: str
    key: str
    others: Mapping[str, Any]


def read_pairs(path: Path, *, backend: str, settings: str) -> Iterator[Pair]:
    """Yield the pairs of a file, in order.

    Args:
        path: a file of JSON lines. ``task`` and ``candidate`` are source text, or paths of ``.py`` files relative to
            this file. ``backend``, ``precision`` and ``entry_point`` (the name of the reference's class) are optional.
        backend: backend of lines that name none.
        settings: everything else that the verdicts depend on. It is part of every pair's key.

    Raises:
        UsageError: the file cannot be read, or a line is not a pair. The message names the line.
    """
    try:
        with path.open("rb") as lines:
            index = 0
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _pair(line, index, f"{path.name} line {number}", path.parent, backend, settings)
                    index += 1
    except OSError as error:
        raise UsageError(f"--pairs: {path} cannot be read: {error.strerror}") from None


def _pair(line: bytes, index: int, where: str, folder: Path, backend: str, settings: str) -> Pair:
    try:
        row = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise UsageError(f"{where} must be an object with task and candidate; got {type(row).__name__}")
    for name in ("task", "candidate"):
        if not isinstance(row.get(name), str):
            raise UsageError(f"{where} needs {name} as text; got {row.get(name)!r}")
    for name in OWN_KEYS:
        if name in row:
            raise UsageError(f"{where} has the key {name}, which the output uses; rename it")
    stem, reference = _source(row["task"], folder, f"{where}: task")
    _, candidate = _source(row["candidate"], folder, f"{where}: candidate")
    backend = row.get("backend") or backend
    if backend not in BACKENDS:
        raise UsageError(f"{where}: backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
    try:
        task = Task(
            id=str(row.get("id") or stem or f"line{index + 1}"),
            source=where,
            reference=reference,
            backend=backend,
            precision=row.get("precision") or "fp32",
            entry_point=row.get("entry_point") or "Model",
        )
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    key = sha256_text(json.dumps([reference, candidate, backend, task.precision, task.entry_point, settings]))
    return Pair(index, task, candidate, backend, key, {k: v for k, v in row.items() if k not in ("task", "candidate")})


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _source(text: str, folder: Path, where: str) -> tuple[str | None, str]:
    """Return the stem and the content of the file that the text names, or None and the text if it is source."""
    if "\n" in text or not text.endswith(".py"):
        return None, text
    try:
        return Path(text).stem, (folder / text).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{where}: {text} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: {text} is not UTF-8: {error.reason}") from None


class VerdictFile:
    """The output file. It has one line for each pair, in the order of the pairs, up to where the last run ended.

    Opening it removes an incomplete last line and locks the file, so that a second run is refused.

    Attributes:
        failed: indices of the pairs whose verdict is ``harness_failed``.
        outcomes: number of verdicts by outcome.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            raise UsageError(f"--out: {path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UsageError(f"--out: another run is writing {path}") from None
        self._cut_half_line()
        self._keys: list[str] = []
        self.failed: list[int] = []
        self.outcomes: dict[str, int] = {}
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._keys)

    def _cut_half_line(self) -> None:
        size = end = os.fstat(self._file.fileno()).st_size
        while end:  # search backwards for the end of the last complete line
            begin = max(end - 65536, 0)
            newline = os.pread(self._file.fileno(), end - begin, begin).rfind(b"\n")
            if newline >= 0:
                end = begin + newline + 1
                break
            end = begin
        if end < size:
            self._file.truncate(end)

    def _read(self) -> None:
        with self.path.open("rb") as lines:
            for index, line in enumerate(lines):
                try:
                    row = json.loads(line)
                    if row["index"] != index:
                        raise KeyError("index")
                    key, outcome = row["input"], row["verdict"]["outcome"]
                except (ValueError, KeyError, TypeError):
                    raise UsageError(
                        f"--out: line {index + 1} of {self.path} is no verdict on pair {index}; name a new file"
                    ) from None
                self._keys.append(key)
                self._count(outcome, index)

    def _count(self, outcome: str, index: int) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if outcome == Outcome.HARNESS_FAILED:
            self.failed.append(index)

    def check(self, pairs: Iterator[Pair]) -> int:
        """Count the pairs. Raise UsageError if the file has a verdict on another pair, or more verdicts than pairs."""
        count = 0
        for pair in pairs:
            if pair.index < len(self) and pair.key != self._keys[pair.index]:
                raise UsageError(
                    f"--out: {self.path} has a verdict on another {pair.task.source}, or one with other settings; "
                    "name a new file, or remove this one"
                )
            count += 1
        if count < len(self):
            raise UsageError(f"--out: {self.path} has {len(self)} verdicts, the input {count} pairs; name a new file")
        return count

    def append(self, pair: Pair, verdict: Verdict) -> None:
        """Write the next line. It is in the file when this returns."""
        if pair.index != len(self):
            raise ValueError(f"verdicts are written in order; got number {pair.index} after {len(self) - 1}")
        self._file.write(_line(pair, verdict))
        self._keys.append(pair.key)
        self._count(verdict.outcome, pair.index)

    def replace(self, verdicts: Mapping[int, tuple[Pair, Verdict]]) -> None:
        """Replace verdicts by their index. Either all of them are replaced or none."""
        if not verdicts:
            return
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        with self.path.open("rb") as lines, temporary.open("wb") as new:
            for index, line in enumerate(lines):
                new.write(_line(*verdicts[index]) if index in verdicts else line)
            new.flush()
            os.fsync(new.fileno())
        file = temporary.open("a+b", buffering=0)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        temporary.replace(self.path)
        self._file.close()
        self._file = file
        self._keys, self.failed, self.outcomes = [], [], {}
        self._read()

    def close(self) -> None:
        """Close the file, which unlocks it."""
        self._file.close()

    def __enter__(self) -> VerdictFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _line(pair: Pair, verdict: Verdict) -> bytes:
    own = {"index": pair.index, "input": pair.key, **pair.others, "verdict": json.loads(verdict.to_json())}
    return json.dumps(own).encode() + b"\n"


def judge_pairs(
    judged: Callable[[Iterator[Pair]], Iterator[Verdict]],
    pairs: Callable[[], Iterator[Pair]],
    out: VerdictFile,
    told: Callable[[Verdict], None],
) -> None:
    """Judge all pairs without a verdict: first those on which the judge itself failed last time, then the others.

    Args:
        judged: returns an iterator of verdicts on pairs, in order. It reads the pairs as it needs them.
        pairs: returns a new iterator over all pairs at each call.
        out: the file that verdicts are written to.
        told: called with each new verdict.
    """
    again = frozenset(out.failed)
    begin = len(out)
    if again:
        better: dict[int, tuple[Pair, Verdict]] = {}
        try:
            for pair, verdict in _verdicts(judged, (pair for pair in pairs() if pair.index in again)):
                better[pair.index] = pair, verdict
                told(verdict)
        finally:
            out.replace(better)
    for pair, verdict in _verdicts(judged, (pair for pair in pairs() if pair.index >= begin)):
        out.append(pair, verdict)
        told(verdict)


def _verdicts(
    judged: Callable[[Iterator[Pair]], Iterator[Verdict]], pairs: Iterator[Pair]
) -> Iterator[tuple[Pair, Verdict]]:
    """Yield each pair with its verdict. Only pairs that wait for their verdict are kept in memory."""
    waiting: deque[Pair] = deque()

    def noted() -> Iterator[Pair]:
        for pair in pairs:
            waiting.append(pair)
            yield pair

    verdicts = judged(noted())
    try:
        for verdict in verdicts:
            yield waiting.popleft(), verdict
    finally:
        with contextlib.suppress(AttributeError):  # only a generator can be closed
            verdicts.close()  # type: ignore[attr-defined]
