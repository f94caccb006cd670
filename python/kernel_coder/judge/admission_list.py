"""A list of the KernelBench tasks that the judge admits, so that no answers are sampled for the others.

The list was measured on a GPU. It has names, hashes and reasons, but no text of a task: an entry is about a task only
if the SHA-256 of the task's source is the same. ``benchmarks/bench_admission.py`` measures the list, and ``--pack``
writes it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from kernel_coder.run.hashes import sha256_text

PACKAGED = Path(__file__).parent / "kernelbench_admission.json"
"""Path of the list that is part of the package."""

LONGEST_REASON = 240
"""Upper limit of a reason in the list, in characters. Longer ones are cut."""


@dataclass(frozen=True, slots=True)
class KnownAdmission:
    """The result of :meth:`kernel_coder.judge.Judge.admit` for one task.

    Attributes:
        level: the task's folder, such as ``level1``.
        name: the file's name without ``.py``.
        sha256: SHA-256 of the reference's source.
        admitted: whether candidates can be judged on the task.
        reason: why they cannot; empty if they can.
        device: the device on which this was measured.
        commit: the judge's commit.
    """

    level: str
    name: str
    sha256: str
    admitted: bool
    reason: str
    device: str
    commit: str

    def __str__(self) -> str:
        """
        >>> print(KnownAdmission("level1", "7_Name", "0" * 64, False, "too large", "NVIDIA H200", "71bba18"))
        level1/7_Name is not admitted (NVIDIA H200, 71bba18): too large
        """
        said = "is admitted" if self.admitted else "is not admitted"
        return f"{self.level}/{self.name} {said} ({self.device}, {self.commit})" + (
            f": {self.reason}" if self.reason else ""
        )


def known_admission(reference: str, path: str | Path = PACKAGED) -> KnownAdmission | None:
    """Return the list's entry about the task with this reference; None if there is none.

    Args:
        reference: the reference's source. A task with the same name and another source has no entry.
        path: the file with the list.

    Raises:
        ValueError: the file is not such a list.

    >>> known_admission("class Model: ...") is None
    True
    """
    return _read(Path(path)).get(sha256_text(reference))


@functools.cache
def _read(path: Path) -> Mapping[str, KnownAdmission]:
    try:
        entries = [KnownAdmission(**entry) for entry in orjson.loads(path.read_bytes())]
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is no list of admissions: {error}") from None
    return {entry.sha256: entry for entry in entries}


def listing(entries: Iterable[KnownAdmission]) -> str:
    """Return the text of a list: one line for each task, sorted by level and number.

    If several entries are about the same source, the last one counts.

    >>> print(listing([KnownAdmission("level1", "7_Name", "ab", True, "", "cpu", "71bba18")]), end="")
    [
    {"level":"level1","name":"7_Name","sha256":"ab","admitted":true,"reason":"","device":"cpu","commit":"71bba18"}
    ]
    """

    def place(entry: KnownAdmission) -> tuple[str, int, str]:
        number = re.match(r"\d+", entry.name)
        return entry.level, int(number[0]) if number else 0, entry.name

    by_text = {entry.sha256: entry for entry in entries}
    lines = [orjson.dumps(asdict(entry)).decode() for entry in sorted(by_text.values(), key=place)]
    return "\n".join(["[", ",\n".join(lines), "]"]) + "\n"


def entry_of(row: Mapping[str, str]) -> KnownAdmission:
    """Return the entry from a row of ``benchmarks/results/admission_cuda.csv``, with its reason on one short line.

    >>> row = {"task": "level1/7_Name", "sha256": "ab", "admitted": "False", "reason": "too\\nlarge"}
    >>> entry_of({**row, "device": "NVIDIA H200", "commit": "71bba18"}).reason
    'too large'
    """
    level, _, name = row["task"].rpartition("/")
    reason = " ".join(row["reason"].split())
    if len(reason) > LONGEST_REASON:
        reason = reason[: LONGEST_REASON - 4].rsplit(" ", 1)[0] + " ..."
    return KnownAdmission(level, name, row["sha256"], row["admitted"] == "True", reason, row["device"], row["commit"])
