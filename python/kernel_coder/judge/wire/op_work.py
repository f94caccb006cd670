"""Counts the arithmetic of torch's operators, to compare what a candidate leaves to the library with its reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from kernel_coder.judge.wire.trees import tensors_of

_MOVES = """
empty empty_like empty_strided empty_permuted new_empty new_empty_strided new_zeros new_ones new_full zeros zeros_like
ones ones_like full full_like scalar_tensor arange fill fill_ zero_ copy copy_ _to_copy clone contiguous lift_fresh
lift_fresh_copy detach alias cat stack repeat _reshape_copy _unsafe_view constant_pad_nd set_ resize_ resize_as_
_local_scalar_dense record_stream _pin_memory is_pinned
"""
MOVING_OPERATORS = frozenset(_MOVES.split())
"""Operators of torch that allocate, fill, copy or read, and compute nothing."""


def only_moves_data(operator: str) -> bool:
    """Return whether an operator computes nothing.

    >>> only_moves_data("aten::clone"), only_moves_data("aten::mm")
    (True, False)
    """
    return operator.removeprefix("aten::") in MOVING_OPERATORS


def work_of(
    operator: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    result: Any,
    products: bool = True,
    others: bool = True,
) -> int:
    """Return the approximate number of operations in one call of an operator.

    Products and convolutions count their multiplications and additions. Any other operator counts the elements of its
    largest argument or result. Views, copies, allocations and fills count 0.

    Args:
        operator: an ``OpOverload``.
        args: the arguments.
        kwargs: the named arguments.
        result: the operator's result.
        products: whether products and convolutions count.
        others: whether all other operators count.
    """
    if operator.is_view or only_moves_data(operator._schema.name):
        return 0
    flops = flop_registry.get(operator._overloadpacket)
    if flops is not None:
        return int(flops(*args, **kwargs, out_val=result)) if products else 0
    return 0 if not others else max((one.numel() for one in _tensors([args, dict(kwargs), result])), default=0)


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    return [one for value in values for one in tensors_of(value)]


class WorkCounter(TorchDispatchMode):
    """Adds up the work of all operators that run in its context, and counts the operators that compute something.

    >>> import torch
    >>> with WorkCounter() as counter:
    ...     _ = torch.ones(2, 3) @ torch.ones(3, 4) + 1
    >>> counter.work, counter.operators
    (56, 2)
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would make torch import its compiler at the first operator, which takes seconds

    def __init__(self, products: bool = True, others: bool = True) -> None:
        super().__init__()
        self.products, self.others, self.work, self.operators = products, others, 0, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.work += work_of(func, args, kwargs or {}, result, self.products, self.others)
        self.operators += not (func.is_view or only_moves_data(func._schema.name))
        return result
