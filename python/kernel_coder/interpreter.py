"""Checks that Triton's interpreter, which runs kernels without a GPU, works with the installed versions."""

from __future__ import annotations

import importlib.metadata
import re

FIRST_TRITON, FIRST_NUMPY = (3, 7), (2, 4)
"""From this numpy on, arrays of one element are no longer converted to scalars, on which Tritons before this one
rely."""


def interpreter_problem(triton: str | None, numpy: str | None) -> str | None:
    """Return why the interpreter fails with these versions; None if it works. A version of None: not installed.

    >>> interpreter_problem("3.6.0", "2.5.0")
    "Triton 3.6.0's interpreter fails with numpy 2.5.0. Install one that fits: pip install 'triton>=3.7' or 'numpy<2.4'"
    >>> interpreter_problem("3.7.0", "2.5.0") is interpreter_problem("3.6.0", "2.3.5") is None
    True
    """
    if triton is None or numpy is None or _release(triton) >= FIRST_TRITON or _release(numpy) < FIRST_NUMPY:
        return None
    return (
        f"Triton {triton}'s interpreter fails with numpy {numpy}. Install one that fits: "
        f"pip install 'triton>={'.'.join(map(str, FIRST_TRITON))}' or 'numpy<{'.'.join(map(str, FIRST_NUMPY))}'"
    )


def missing_triton() -> str | None:
    """Return a sentence if Triton is not installed; None if it is."""
    if _installed("triton") is not None:
        return None
    return "Triton is not installed, and candidates in Triton need it: pip install triton"


def problem_here() -> str | None:
    """Return :func:`missing_triton`, or :func:`interpreter_problem` for the installed versions."""
    return missing_triton() or interpreter_problem(_installed("triton"), _installed("numpy"))


def require_interpreter() -> None:
    """Raises ValueError if the interpreter does not work with the installed versions."""
    if problem := problem_here():
        raise ValueError(problem)


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
