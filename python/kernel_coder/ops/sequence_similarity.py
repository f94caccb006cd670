"""Similarity of texts, as Python's difflib defines it."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from kernel_coder import _C

MAX_THREADS = 2**31 - 1  # the largest C++ int; the op never starts more threads than there are pairs


def sequence_similarity(a: str, b: str, *, autojunk: bool = False) -> float:
    """Return ``difflib.SequenceMatcher(None, a, b, autojunk).ratio()`` with the same bits, some hundred times as fast.

    The ratio is ``2 * M / (len(a) + len(b))``, and 1 for two empty texts. ``M`` is the number of characters in matching
    blocks: the longest common substring (of several the first in ``a``, then the first in ``b``), and recursively those
    to the left and to the right of it (Ratcliff and Obershelp 1988). The ratio is not symmetric in ``a`` and ``b``.

    Args:
        a: any ``str``, lone surrogates and NUL included.
        b: likewise. Each may have up to 2^30 - 1 characters.
        autojunk: difflib's heuristic (there it is on by default): in a ``b`` of 200 or more characters, those that
            occur more than ``len(b) // 100 + 1`` times can lengthen a match, but not start one. In program text this
            holds for most letters, so the result says little.

    Returns:
        A float in [0, 1]. The GIL is released. On ordinary texts the time grows little faster than ``n``, and on any
        text at most with ``n ** 1.5 * log(n)``, where difflib can need ``n ** 3``.

    Raises:
        TypeError: ``a`` or ``b`` is not a ``str``.
        ValueError: a text is too long.

    >>> sequence_similarity("x = a + b", "x = b + a")
    0.7777777777777778
    >>> sequence_similarity("", "")
    1.0
    """
    return float(_C.sequence_similarity(a, b, bool(autojunk)))


def sequence_similarities(
    a: Sequence[str], b: Sequence[str], *, autojunk: bool = False, threads: int | None = None
) -> Tensor:
    """Return :func:`sequence_similarity` of ``a[0]`` and ``b[0]``, of ``a[1]`` and ``b[1]``, and so on, with threads.

    Args:
        a: texts.
        b: as many texts.
        autojunk: see :func:`sequence_similarity`.
        threads: largest number of threads; None: one for each CPU that this process may use.

    Returns:
        float64 ``[len(a)]`` on the CPU; the result does not depend on ``threads``. The GIL is released.

    Raises:
        TypeError: ``a`` or ``b`` is not a list, an item is not a ``str`` (the message says which), or ``threads`` is no
            number.
        ValueError: the lists differ in length, ``threads`` is less than 1, or a text is too long.

    >>> sequence_similarities(["abcd", "kernel"], ["bcde", "colonel"])
    tensor([0.7500, 0.4615], dtype=torch.float64)
    """
    if threads is None:
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    elif not isinstance(threads, int):
        raise TypeError(f"threads must be int or None; got {type(threads).__name__}")
    ratios = _C.sequence_similarities(a, b, bool(autojunk), min(threads, MAX_THREADS))
    return torch.tensor(ratios, dtype=torch.float64)
