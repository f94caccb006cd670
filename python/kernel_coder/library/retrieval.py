"""Verified kernels of similar tasks as examples for a prompt."""

from __future__ import annotations

from kernel_coder.library.store import Library
from kernel_coder.prompts import Example
from kernel_coder.tasks import Task


def examples_for(library: Library, task: Task, count: int, *, same: bool) -> list[Example]:
    """Return the kernels of the ``count`` tasks that are most like a task, the most similar one last, next to the task.

    Args:
        library: the library.
        task: the task that the prompt is about.
        count: number of examples.
        same: also kernels of the task itself; see :meth:`Library.nearest`.
    """
    found = library.nearest(task, count, same=same) if count else []
    return [Example(entry.task.reference, entry.source) for entry in reversed(found)]
