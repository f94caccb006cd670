"""Screens tasks for training data: drops duplicates, held-out compositions and problems of benchmarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from kernel_coder.tasks.generator.fingerprint import Problems, fingerprint
from kernel_coder.tasks.task import Task

KERNELBENCH = Path(__file__).parent / "kernelbench_fingerprints.txt"
"""Fingerprints of KernelBench's modules, so that they are recognised without a copy of KernelBench."""

Drop = tuple[str, str]
"""The stage at which a task is dropped, and the reason."""


class Screen:
    """Decides for tasks, in order, which are dropped.

    Args:
        splits: splits to keep; a task without one belongs to ``train``.
        per_structure: highest number of tasks that differ only in names and constants.
        allow_kernelbench: keep KernelBench's own modules, for measuring; never train on them.
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
        """Count a task. Return its fingerprint, and why it is dropped: its split, a duplicate, or KernelBench."""
        own = fingerprint(task.reference)
        if (split := task.metadata.get("split", "train")) not in self.splits:
            return own, ("split", f"its composition is {split}")
        if not self.count(own):
            return own, ("duplicate", "an earlier task differs only in names and constants")
        return own, self.kernelbench(task)

    def count(self, structure: str) -> bool:
        """Counts a task with this fingerprint; returns whether it is kept."""
        self._seen[structure] += 1
        return self._seen[structure] <= self.per_structure

    def kernelbench(self, task: Task) -> Drop | None:
        """Return a drop if the task's module has the syntax tree of one of KernelBench's."""
        problem = self._kernelbench.get(fingerprint(task.reference, class_name=task.entry_point))
        return None if problem is None else ("contamination", f"it is KernelBench's {problem}")

    def resemblance(self, task: Task) -> Drop | None:
        """Return a drop if the task is equal or similar to a problem in the folder ``against``."""
        if self._problems is None:
            return None
        match = self._problems.nearest(task)
        if match.identical or match.similarity >= self._problems.threshold:
            return "contamination", f"it resembles {match.problem} ({match.similarity:.2f})"
        return None


def kernelbench_fingerprints() -> dict[str, str]:
    """Return KernelBench's problems by the fingerprint of their module class."""
    lines = KERNELBENCH.read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))


def kernelbench_listing(folder: str | Path) -> str:
    """Return the contents of ``kernelbench_fingerprints.txt``, made from a copy of KernelBench."""
    lines = ["# Fingerprints of the modules of KernelBench (MIT), levels 1 to 3, which are never trained on."]
    for path in sorted(Path(folder).rglob("*.py")):
        name = f"{path.parent.name}/{path.stem}"
        lines.append(f"{fingerprint(path.read_text(encoding='utf-8'), class_name='Model')} {name}")
    return "\n".join(lines) + "\n"
