"""Makes Triton's interpreter compute with bfloat16.

The interpreter keeps such numbers as their bits, in 16-bit integers. It multiplies, adds and compares these integers,
which is wrong, and it truncates when it converts float32 where a GPU rounds. With this module such operands are
converted to float32, and results are rounded to the nearest number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def widened(bits: Array) -> Array:
    """Return the float32 numbers whose bits in bfloat16 these are.

    >>> widened(np.array([0x3F80, 0xC000], np.uint16)).tolist()
    [1.0, -2.0]
    """
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(numbers: Array) -> Array:
    """Return the bits in bfloat16 of the nearest numbers; of two that are equally near, the even one.

    >>> [hex(one) for one in rounded(np.array([1.0, 1.00390625, 1.01171875, np.nan], np.float32))]
    ['0x3f80', '0x3f80', '0x3f82', '0x7fc0']
    """
    wide = np.ascontiguousarray(numbers, np.float32)
    bits = wide.view(np.uint32)
    near = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(wide), 0x7FC0, near).astype(np.uint16).reshape(np.shape(numbers))


def install() -> None:
    """Change the interpreter in this process. Do nothing if this Triton has no such interpreter."""
    try:
        import triton.language as tl
        from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
    except ImportError:
        return
    if getattr(InterpreterBuilder, "has_bfloat16", False):
        return

    def is_narrow(one: Any) -> bool:
        return one.dtype.scalar == tl.bfloat16 and one.data.dtype == np.uint16

    def wide(one: Any) -> Any:
        return TensorHandle(widened(one.data), tl.float32) if is_narrow(one) else one

    def computing(original: Callable[..., Any]) -> Callable[..., Any]:
        """Return an operation on numbers instead of bits. Its operands are all arguments but the last one."""

        def compute(self: Any, *args: Any) -> Any:
            *operands, op = args
            if not is_narrow(operands[-1]):
                return original(self, *args)
            result = original(self, *map(wide, operands), op)
            if result.data.dtype == np.float32 and result.dtype.scalar == tl.float32:
                return TensorHandle(rounded(result.data), tl.bfloat16)
            return result

        return compute

    for name in ("unary_op", "binary_op", "ternary_op"):
        setattr(InterpreterBuilder, name, computing(getattr(InterpreterBuilder, name)))
    dot, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl
    InterpreterBuilder.create_dot = lambda self, a, b, *rest: dot(self, wide(a), wide(b), *rest)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if is_narrow(source) and target.scalar != tl.bfloat16:
            return cast(self, wide(source), target) if target.scalar != tl.float32 else wide(source)
        if target.scalar == tl.bfloat16 and not is_narrow(source):
            return TensorHandle(rounded(source.data.astype(np.float32)), tl.bfloat16)
        return cast(self, source, target)

    def get_bf16(self: Any, value: float) -> Any:
        return TensorHandle(rounded(np.array([value], np.float32)), tl.bfloat16)

    InterpreterBuilder.cast_impl, InterpreterBuilder.get_bf16 = cast_impl, get_bf16
    InterpreterBuilder.has_bfloat16 = True
