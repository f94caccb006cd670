"""The file of verified kernels. One row is one kernel: its task, source, verdict, device and parents.

SQLite in WAL mode with a transaction for each kernel: several processes can add kernels at once, and readers do not
wait. If a process is killed, every kernel for which :meth:`Library.add` returned is in the file, and no other one
partly.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_coder.judge.verdict import Verdict
from kernel_coder.run.errors import UsageError
from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks import Task
from kernel_coder.tasks.generator.fingerprint import fingerprint, module_shingles

VARIABLE = "KERNEL_CODER_LIBRARY"
"""The environment variable that names the library's file."""

DEFAULT_PATH = "runs/library.sqlite"

VERSION = 1
"""Version of the tables below, kept in the file as ``user_version``."""

BUSY_S = 30.0
"""Upper limit of the wait for another process that is writing, in seconds. A transaction takes milliseconds."""

TABLES = """
CREATE TABLE IF NOT EXISTS tasks (
    hash TEXT PRIMARY KEY,        -- SHA-256 of the reference
    id TEXT NOT NULL,
    source TEXT NOT NULL,
    entry_point TEXT NOT NULL,
    licence TEXT,
    fingerprint TEXT NOT NULL,    -- of the module, without names and constants
    reference TEXT NOT NULL,
    shingles BLOB NOT NULL        -- of the module, sorted, uint32 in little-endian order
);
CREATE TABLE IF NOT EXISTS kernels (
    id INTEGER PRIMARY KEY,
    task TEXT NOT NULL REFERENCES tasks (hash),
    hash TEXT NOT NULL,           -- SHA-256 of the source
    backend TEXT NOT NULL,
    precision TEXT NOT NULL,
    device TEXT NOT NULL,
    interpreted INTEGER NOT NULL, -- 1: by Triton's interpreter
    speedup REAL,
    source TEXT NOT NULL,
    verdict TEXT NOT NULL,        -- JSON
    licence TEXT,
    origin TEXT NOT NULL,         -- the run that found it
    parents TEXT NOT NULL,        -- JSON list of hashes, which need not be in the library
    added_at TEXT NOT NULL,
    UNIQUE (task, hash, backend, precision, device)
);
CREATE INDEX IF NOT EXISTS kernels_by_task ON kernels (task);
"""

COLUMNS = (
    "k.id, k.source, k.verdict, k.backend, k.precision, k.licence, k.origin, k.parents, k.added_at, "
    "t.id, t.source, t.entry_point, t.licence, t.reference"
)
BEST_FIRST = "k.speedup IS NULL, k.speedup DESC, k.id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A kernel of the library.

    Attributes:
        id: its number in this library.
        task: the task that it solves, with the backend and precision for which it was verified.
        source: its source, with the class ``ModelNew``.
        verdict: the verdict, always a correct one.
        origin: the run that found it.
        parents: the SHA-256 of the sources that it was derived from.
        licence: the licence of the kernel; by default that of its task.
        added_at: the time in UTC, as ``2026-11-24T22:00:00Z``.
        similarity: in results of :meth:`Library.nearest`, the similarity to the given task, from 0 to 1; otherwise
            None.
    """

    id: int
    task: Task
    source: str
    verdict: Verdict
    origin: str = ""
    parents: tuple[str, ...] = ()
    licence: str | None = None
    added_at: str = ""
    similarity: float | None = None


def default_path() -> Path:
    """Return the library that commands use if none is named: ``$KERNEL_CODER_LIBRARY``, else
    ``runs/library.sqlite``."""
    return Path(os.environ.get(VARIABLE) or DEFAULT_PATH)


class Library:
    """A library of verified kernels; a context manager.

    Args:
        path: the SQLite file.
        create: make the file if it does not exist.

    Raises:
        UsageError: the file does not exist, is not a library, or was written by a newer version.

    >>> from kernel_coder.judge import example_verdict
    >>> task = Task(id="relu", source="example", reference="class Model: ...")
    >>> code = "class ModelNew: ..."
    >>> verdict = example_verdict("correct", speedup=2.0, candidate_hash=sha256_text(code))
    >>> with Library(":memory:") as library:
    ...     added = library.add(task, code, verdict, origin="an example")
    ...     [(entry.task.id, entry.verdict.speedup) for entry in library.search("relu")]
    [('relu', 2.0)]
    """

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        self.path = str(path)
        if self.path != ":memory:":
            if not create and not Path(path).exists():
                raise UsageError(f"there is no library {path}; kernel-coder library add RUN makes one")
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
        except sqlite3.Error as error:
            raise UsageError(f"library {path} cannot be opened: {error}") from None
        try:
            self._open()
        except sqlite3.Error as error:
            self._db.close()
            raise UsageError(f"library {path} cannot be read: {error}") from None
        except UsageError:
            self._db.close()
            raise
        self._known: dict[str, tuple[str, npt.NDArray[np.uint32]]] = {}
        self._read_up_to = 0

    def _open(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")  # a kernel that was added also survives a loss of power
        self._db.execute("PRAGMA foreign_keys = ON")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise UsageError(f"library {self.path} has version {version}; this version reads up to {VERSION}")
        if version < VERSION:
            with self._transaction():
                for statement in TABLES.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Closes the file."""
        self._db.close()

    def __enter__(self) -> Library:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        (count,) = self._db.execute("SELECT count(*) FROM kernels").fetchone()
        return int(count)

    def add(
        self,
        task: Task,
        source: str,
        verdict: Verdict,
        *,
        origin: str = "",
        parents: Sequence[str] = (),
        licence: str | None = None,
    ) -> bool:
        """Adds a kernel. The same kernel on the same device stays one row, with the new verdict.

        Args:
            task: the task that it solves.
            source: its source.
            verdict: the judge's verdict on this source.
            origin: the run that found it.
            parents: the SHA-256 of the sources that it was derived from.
            licence: the licence of the kernel; None: that of the task.

        Returns:
            Whether the library did not hold the kernel yet.

        Raises:
            ValueError: the verdict is not correct, or is about another source.
        """
        if not verdict.correct:
            raise ValueError(f"a library holds only correct kernels; got one with the verdict {verdict.outcome}")
        digest = sha256_text(source)
        if verdict.candidate_hash != digest:
            raise ValueError(f"the verdict is about another source than the one given for task {task.id}")
        key = sha256_text(task.reference)
        shingles = np.array(sorted(module_shingles(task)), dtype="<u4").tobytes()
        prints = fingerprint(task.reference, class_name=task.entry_point)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        with self._transaction():
            self._db.execute(
                "INSERT OR IGNORE INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (key, task.id, task.source, task.entry_point, task.licence, prints, task.reference, shingles),
            )
            before = self._db.total_changes
            identity = (key, digest, verdict.backend, task.precision, verdict.device)
            found = (int(verdict.interpreted), verdict.speedup, source, verdict.to_json(), licence or task.licence)
            self._db.execute(
                "INSERT OR IGNORE INTO kernels (task, hash, backend, precision, device, interpreted, speedup, source, "
                "verdict, licence, origin, parents, added_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*identity, *found, origin, json.dumps(list(parents)), now),
            )
            is_new = self._db.total_changes > before
            if not is_new:
                self._db.execute(
                    "UPDATE kernels SET interpreted = ?, speedup = ?, verdict = ? WHERE task = ? AND hash = ? "
                    "AND backend = ? AND precision = ? AND device = ?",
                    (*found[:2], found[3], *identity),
                )
        return is_new

    def get(self, number: int) -> Entry:
        """Return the kernel with this number. Raises UsageError if there is none."""
        found = self._select("k.id = ?", (number,), limit=1)
        if not found:
            raise UsageError(f"library {self.path} has no kernel {number}; kernel-coder library search lists them")
        return found[0]

    def search(
        self, text: str = "", *, backend: str | None = None, device: str | None = None, limit: int = 20
    ) -> list[Entry]:
        """Return the kernels whose task id, reference or source hold all words of ``text``; the fastest ones first.

        Args:
            text: words, in any order; upper and lower case are the same. Empty: all kernels.
            backend: only kernels in this language.
            device: only kernels that were verified on a device whose name holds this text.
            limit: highest number of kernels.
        """
        conditions, values = ["1"], list[Any]()
        for word in text.split():
            pattern = "%" + word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
            fields = ("t.id", "t.reference", "k.source")
            conditions.append("(" + " OR ".join(f"{field} LIKE ? ESCAPE '\\'" for field in fields) + ")")
            values += [pattern] * len(fields)
        if backend is not None:
            conditions.append("k.backend = ?")
            values.append(backend)
        if device is not None:
            conditions.append("instr(lower(k.device), lower(?))")
            values.append(device)
        return self._select(" AND ".join(conditions), values, limit=limit)

    def nearest(
        self, task: Task, count: int, *, same: bool = True, backend: str | None = None, precision: str | None = None
    ) -> list[Entry]:
        """Return the best kernels of the ``count`` tasks that are most like a task, the nearest task first.

        The similarity is the Jaccard similarity of the token shingles of the two modules. For each task only the
        fastest kernel is returned.

        Args:
            task: the task.
            count: number of kernels.
            same: also kernels of the task itself, and of tasks that differ from it only in names and constants. An
                evaluation must leave them out, because they give the answer away.
            backend: only kernels in this language; None: in the task's.
            precision: only kernels of this precision; None: of any.
        """
        self._read_tasks()
        own = np.array(sorted(module_shingles(task)), dtype=np.uint32)
        prints = fingerprint(task.reference, class_name=task.entry_point)
        scored = sorted(
            (
                (_jaccard(own, shingles), key)
                for key, (other, shingles) in self._known.items()
                if same or other != prints
            ),
            key=lambda item: (-item[0], item[1]),
        )
        found: list[Entry] = []
        for similarity, key in scored:
            if len(found) == count:
                break
            conditions, values = ["k.task = ?", "k.backend = ?"], [key, backend or task.backend]
            if precision is not None:
                conditions.append("k.precision = ?")
                values.append(precision)
            best = self._select(" AND ".join(conditions), values, limit=1)
            found += [replace(one, similarity=similarity) for one in best]
        return found

    def _read_tasks(self) -> None:
        """Reads the shingles of the tasks that were added since the last call."""
        rows = self._db.execute(
            "SELECT rowid, hash, fingerprint, shingles FROM tasks WHERE rowid > ? ORDER BY rowid", (self._read_up_to,)
        )
        for row, key, prints, shingles in rows:
            self._known[key] = prints, np.frombuffer(shingles, dtype="<u4")
            self._read_up_to = row

    def _select(self, condition: str, values: Sequence[Any], *, limit: int) -> list[Entry]:
        rows = self._db.execute(
            f"SELECT {COLUMNS} FROM kernels k JOIN tasks t ON t.hash = k.task WHERE {condition} "
            f"ORDER BY {BEST_FIRST} LIMIT ?",
            (*values, limit),
        )
        return [_entry(row) for row in rows]


def _entry(row: Sequence[Any]) -> Entry:
    number, source, verdict, backend, precision, licence, origin, parents, added_at, *of_task = row
    task_id, task_source, entry_point, task_licence, reference = of_task
    task = Task(
        id=task_id,
        source=task_source,
        reference=reference,
        entry_point=entry_point,
        backend=backend,
        precision=precision,
        licence=task_licence,
    )
    return Entry(
        id=number,
        task=task,
        source=source,
        verdict=Verdict.from_json(verdict),
        origin=origin,
        parents=tuple(json.loads(parents)),
        licence=licence,
        added_at=added_at,
    )


def _jaccard(a: npt.NDArray[np.uint32], b: npt.NDArray[np.uint32]) -> float:
    common = len(np.intersect1d(a, b, assume_unique=True))
    union = len(a) + len(b) - common
    return common / union if union else 1.0
