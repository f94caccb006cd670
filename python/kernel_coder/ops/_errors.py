"""Refused arguments are ``ValueError``, whatever torch makes of a C++ exception on its way out of an op."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from kernel_coder import _C

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Turn the ``RuntimeError`` that torch 2.15 and later make of a failed argument check back into ``ValueError``."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            if _C.is_failed_check(str(error)):
                raise ValueError(str(error)) from None
            raise

    return wrapper
