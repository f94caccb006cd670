"""Which tasks of KernelBench the judge admits: measured once on a GPU, and known before anything is sampled.

The list holds names, hashes and reasons, no problem's text: a task is the one that was measured only if its source has
that SHA-256. ``benchmarks/bench_admission.py`` measures, and with ``--pack`` writes the list.
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
LONGEST_REASON = 240


@dataclass(frozen=True, slots=True)
class KnownAdmission:
    """What :meth:`Judge.admit` said of a task.

    Attributes:
        level: the folder, as in ``level1``.
        name: of the file, without ``.py``.
        sha256: of the reference's source.
        admitted: whether answers to it can be judged.
        reason: why not; empty if it is admitted.
        device: on which it was measured.
        commit: of the judge that said so.
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
    """What the list says of the task with this reference; None: nothing, it is judged as any other.

    Args:
        reference: its source; another text of the same name is another task.
        path: another list than the packaged one.

    Raises:
        ValueError: the file is no such list.

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
    """The text of a list, a line for each task, by level and number; of several entries about a text the last counts.

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
    """From a row of ``benchmarks/results/admission_cuda.csv``. A reason is one line, and not a long one.

    >>> row = {"task": "level1/7_Name", "sha256": "ab", "admitted": "False", "reason": "too\\nlarge"}
    >>> entry_of({**row, "device": "NVIDIA H200", "commit": "71bba18"}).reason
    'too large'
    """
    level, _, name = row["task"].rpartition("/")
    reason = " ".join(row["reason"].split())
    if len(reason) > LONGEST_REASON:
        reason = reason[: LONGEST_REASON - 4].rsplit(" ", 1)[0] + " ..."
    return KnownAdmission(level, name, row["sha256"], row["admitted"] == "True", reason, row["device"], row["commit"])
