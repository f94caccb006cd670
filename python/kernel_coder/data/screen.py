"""What may not become training data, whoever wrote it: seen before, held out, or a problem of a benchmark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from kernel_coder.tasks.generator.fingerprint import Problems, fingerprint
from kernel_coder.tasks.task import Task

KERNELBENCH = Path(__file__).parent / "kernelbench_fingerprints.txt"
"""Fingerprints of KernelBench's modules, so that none is trained on whether or not a copy is at hand."""

Drop = tuple[str, str]
"""Stage and reason."""


class Screen:
    """Looks at tasks in order and says which are dropped.

    Args:
        splits: sides of the generator's split that are wanted; a task without a side is on ``train``.
        per_structure: tasks that may have the same syntax tree but for names and constants.
        allow_kernelbench: let KernelBench's own modules pass, to measure; never train on them.
        against: a folder of problems that no task may resemble.
    """

    def __init__(
        self,
        *,
        splits: Sequence[str] = ("train",),
        per_structure: int = 1,
        allow_kernelbench: bool = False,
        against: str | None = None,
    ) -> None:
        self.splits, self.per_structure = splits, per_structure
        self._seen: Counter[str] = Counter()
        self._kernelbench = {} if allow_kernelbench else kernelbench_fingerprints()
        self._problems = None if against is None else Problems(against)

    def look(self, task: Task) -> tuple[str, Drop | None]:
        """The task's fingerprint, and why it is dropped: by its side, as a duplicate, as KernelBench's. Counts it."""
        own = fingerprint(task.reference)
        if (split := task.metadata.get("split", "train")) not in self.splits:
            return own, ("split", f"its composition is {split}")
        if not self.count(own):
            return own, ("duplicate", "the same syntax tree but for names and constants was seen before")
        return own, self.kernelbench(task)

    def count(self, structure: str) -> bool:
        """Whether one more of this fingerprint is wanted; it counts as seen from now on."""
        self._seen[structure] += 1
        return self._seen[structure] <= self.per_structure

    def kernelbench(self, task: Task) -> Drop | None:
        """Whether its module is KernelBench's, by its syntax tree."""
        problem = self._kernelbench.get(fingerprint(task.reference, class_name=task.entry_point))
        return None if problem is None else ("contamination", f"it is KernelBench's {problem}")

    def resemblance(self, task: Task) -> Drop | None:
        """Whether it is, or is near, a problem of the folder."""
        if self._problems is None:
            return None
        match = self._problems.nearest(task)
        if match.identical or match.similarity >= self._problems.threshold:
            return "contamination", f"it resembles {match.problem} ({match.similarity:.2f})"
        return None


def kernelbench_fingerprints() -> dict[str, str]:
    """Fingerprint of each KernelBench module's class, and the problem it belongs to."""
    lines = KERNELBENCH.read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))


def kernelbench_listing(folder: str | Path) -> str:
    """The text of `kernelbench_fingerprints.txt`, from a copy of KernelBench."""
    lines = ["# Fingerprints of the modules of KernelBench (MIT), levels 1 to 3, which are never trained on."]
    for path in sorted(Path(folder).rglob("*.py")):
        name = f"{path.parent.name}/{path.stem}"
        lines.append(f"{fingerprint(path.read_text(encoding='utf-8'), class_name='Model')} {name}")
    return "\n".join(lines) + "\n"
