"""Errors of the ops: the user gets one sentence, even where torch replaces the C++ error by another one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from kernel_coder import _C, _core

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Make an op's Python function raise ``ValueError`` for a refused argument and ``NotImplementedError`` for a
    device.

    torch up to 2.14 raises a C++ ``invalid_argument`` as ``ValueError``, 2.15 and later as ``RuntimeError``. For a
    device without a kernel, torch's dispatcher raises an error with a page of text.
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        except NotImplementedError as error:
            if "CUDA" not in str(error):
                raise
            raise NotImplementedError(_no_cuda_kernel(function.__name__)) from None
        except RuntimeError as error:
            if _C.is_failed_check(str(error)):
                raise ValueError(str(error)) from None
            raise

    return wrapper


def _no_cuda_kernel(name: str) -> str:
    if _core.cuda_loaded:
        return f"{name} has no CUDA kernel in this version; pass CPU tensors"
    return f"{name} got a CUDA tensor, but the CUDA ops are not loaded; kernel-coder env says how to get them"
