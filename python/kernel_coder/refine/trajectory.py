"""The record of a search: each answer and each verdict is written to a file as soon as it arrives."""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import orjson

from kernel_coder.evaluate.answers import Answer, candidate
from kernel_coder.evaluate.errors import UsageError
from kernel_coder.judge import Verdict
from kernel_coder.judge.verdict import rank
from kernel_coder.prompts import Message
from kernel_coder.run.hashes import sha256_text

TRAJECTORY = "trajectory.jsonl"
BEST = "best.py"
REPORT = "report.html"

Key = tuple[int, int]
"""The round, from 1, and the index of the answer in it, from 0."""


@dataclass(slots=True)
class Attempt:
    """One answer and, once it is judged, its verdict."""

    turn: int
    sample: int
    messages: tuple[Message, ...]
    text: str
    code: str | None
    problem: str | None
    tokens: int
    seconds: float  # since the search began
    refused: bool = False  # the prompt was too long
    parents: tuple[Key, ...] = ()  # the answers that it was derived from, with strategy evolve
    verdict: Verdict | None = None

    @property
    def key(self) -> Key:
        return self.turn, self.sample

    @property
    def is_judged(self) -> bool:
        return self.verdict is not None and self.verdict.is_scored

    @classmethod
    def of(
        cls, key: Key, messages: tuple[Message, ...], answer: Answer, seconds: float, parents: tuple[Key, ...] = ()
    ) -> Attempt:
        code, problem = candidate(answer.text)
        return cls(
            turn=key[0],
            sample=key[1],
            messages=messages,
            text=answer.text,
            code=code,
            problem=answer.problem or problem,
            tokens=answer.completion_tokens or 0,
            seconds=seconds,
            refused=answer.problem is not None,
            parents=parents,
        )


@dataclass(slots=True)
class Trajectory:
    """The attempts in a folder, in the order of the answers; a context manager that keeps the file open and locked.

    Raises UsageError if the folder holds a search and ``resume`` is False. An incomplete last line, which a crash
    leaves, is removed.
    """

    folder: Path
    task_hash: str
    resume: bool = False
    attempts: dict[Key, Attempt] = field(default_factory=dict)
    _file: IO[bytes] | None = None

    def __enter__(self) -> Trajectory:
        path = self.folder / TRAJECTORY
        if path.exists() and path.stat().st_size and not self.resume:
            raise UsageError(f"{self.folder} already holds a search: pass --resume to continue it, or another --output")
        self.folder.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(self._read(path))
        except BaseException as error:
            file.close()
            if isinstance(error, BlockingIOError):
                raise UsageError(f"another process is searching in {self.folder}") from None
            raise
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def _read(self, path: Path) -> int:
        whole = 0
        for line in path.read_bytes().splitlines(keepends=True):
            try:
                record = json.loads(line)  # not orjson, which would round seeds of more than 64 bits
            except ValueError:
                break
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            if record["task_hash"] != self.task_hash:
                raise UsageError(f"{self.folder} holds a search for another module; pass another --output")
            key = record["turn"], record["sample"]
            if record["kind"] == "verdict":
                self.attempts[key].verdict = Verdict.from_json(json.dumps(record["verdict"]))
            else:
                self.attempts[key] = Attempt(
                    *key,
                    tuple(record["messages"]),
                    record["text"],
                    record["code"],
                    record["problem"],
                    record["tokens"],
                    record["seconds"],
                    record["refused"],
                    tuple((turn, sample) for turn, sample in record.get("parents", ())),
                )
        return whole

    def add(self, attempt: Attempt) -> None:
        """Records an answer."""
        self.attempts[attempt.key] = attempt
        names = ("messages", "text", "code", "problem", "tokens", "seconds", "refused", "parents")
        self._write("answer", attempt.key, {name: getattr(attempt, name) for name in names})

    def judged(self, attempt: Attempt, verdict: Verdict) -> bool:
        """Records a verdict. Returns True if the attempt is now the best; ``best.py`` then holds its code."""
        before = self.best
        attempt.verdict = verdict
        # A Fragment, because orjson does not write seeds of more than 64 bits.
        self._write("verdict", attempt.key, {"verdict": orjson.Fragment(verdict.to_json())})
        if self.best is attempt and before is not attempt and attempt.code is not None:
            self._replace(BEST, attempt.code if attempt.code.endswith("\n") else attempt.code + "\n")
            return True
        return False

    @property
    def best(self) -> Attempt | None:
        """The correct attempt with the highest rank; among equal ones the first."""
        correct = [one for one in self.attempts.values() if one.verdict is not None and one.verdict.correct]
        return max(correct, key=lambda one: rank(one.verdict), default=None)

    @property
    def tokens(self) -> int:
        return sum(one.tokens for one in self.attempts.values())

    @property
    def evaluations(self) -> int:
        """The number of different candidates that were judged."""
        return len({sha256_text(one.code) for one in self.attempts.values() if one.code is not None and one.verdict})

    def failures(self) -> str:
        """Return how often each outcome occurred, as in ``3 wrong_output, 1 timeout``; the most frequent first."""
        outcomes = Counter(one.verdict.outcome.value if one.verdict else "not judged" for one in self.attempts.values())
        return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()) or "no answers"

    def rounds(self) -> Iterator[tuple[int, list[Attempt]]]:
        for turn in sorted({one.turn for one in self.attempts.values()}):
            yield turn, sorted((one for one in self.attempts.values() if one.turn == turn), key=lambda one: one.sample)

    def _write(self, kind: str, key: Key, values: dict[str, Any]) -> None:
        assert self._file is not None, "a trajectory must be entered as a context manager before it is written"
        record = {"kind": kind, "turn": key[0], "sample": key[1], "task_hash": self.task_hash, **values}
        self._file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _replace(self, name: str, text: str) -> None:
        part = self.folder / f".{name}.part"
        part.write_text(text, encoding="utf-8", errors="replace")
        part.replace(self.folder / name)
