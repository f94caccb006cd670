"""Counts the arithmetic of torch's operators, to compare what a candidate leaves to the library with its reference."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import flop_registry

from kernel_coder.judge.wire.operator_mode import OperatorMode
from kernel_coder.judge.wire.trees import tensors_of

_MOVES = """
empty empty_like empty_strided empty_permuted new_empty new_empty_strided new_zeros new_ones new_full zeros zeros_like
ones ones_like full full_like scalar_tensor arange fill fill_ zero_ copy copy_ _to_copy clone contiguous lift_fresh
lift_fresh_copy detach alias cat stack repeat _reshape_copy _unsafe_view constant_pad_nd set_ resize_ resize_as_
_local_scalar_dense record_stream _pin_memory is_pinned
"""
MOVING_OPERATORS = frozenset(_MOVES.split())
"""Operators of torch that allocate, fill, copy or read, and compute nothing."""

_PRODUCTS = re.compile(
    r"^(?!_?upsample).*(?:mm(?:_|$)|mv(?:_|$)|dot(?:_|$)|conv(?!ert)|linear|matmul|attention|outer|addr|cdist|_dist$|pdist"
    r"|rnn|lstm|gru(?:_|$)|kron|embedding_bag)|^ger$"
)
"""Names of operators that multiply matrices, convolve, or compute attention or distances. torch's own formulas cover
only the usual ones of them."""

_DECOMPOSITIONS = re.compile(
    r"(?<!re)solve|_inv(?:_|$)|inverse|pinv|cholesky|lu_factor|_qr$|geqrf|ormqr|svd|eigh?(?:_|$)|lstsq|matrix_exp"
)
"""Names of operators that solve linear systems or decompose matrices, which takes as many operations as a product."""


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

    Products and convolutions count their multiplications and additions, by torch's formula if it has one for the
    operator, or else approximately by :func:`product_work`. Solving a linear system counts as much as a product of
    matrices of the size of its largest argument. Any other operator counts the elements of its largest
    argument or result. Views, copies, allocations and fills count 0.

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
    name = operator._schema.name.rpartition("::")[2]
    if _DECOMPOSITIONS.search(name):
        matrix = max((one.numel() for one in _tensors([args, dict(kwargs)])), default=0)
        return 2 * math.isqrt(matrix**3) if products else 0
    if _PRODUCTS.match(name):
        return product_work(name, _tensors([args, dict(kwargs)]), _tensors([result])) if products else 0
    return 0 if not others else max((one.numel() for one in _tensors([args, dict(kwargs), result])), default=0)


def product_work(name: str, given: list[Tensor], made: list[Tensor]) -> int:
    """Return the approximate number of operations of a product, from the sizes of its tensors alone.

    For matrices A of [M, K] and B of [K, N], 2 M N K is 2 sqrt(|A| |B| |AB|), where |A| is the number of elements. This
    also holds for a vector, an outer product and pairwise distances. A batch makes it too large by the square root of
    the batch's size.

    Args:
        name: the operator's name; it tells convolutions and attention from other products.
        given: its tensor arguments in order.
        made: its results.

    >>> import torch
    >>> product_work("addbmm", [torch.ones(2, 4), torch.ones(1, 2, 300), torch.ones(1, 300, 4)], [torch.ones(2, 4)])
    4800
    """
    out = max((one.numel() for one in made), default=0)
    if "attention" in name and len(given) >= 3 and given[1].dim() >= 2:  # queries, keys, values
        return 4 * given[0].numel() * given[1].shape[-2]
    if "conv" in name and len(given) >= 2 and given[1].dim() >= 3:  # inputs and weights
        return 2 * max(out, given[0].numel()) * given[1][:1].numel()
    sizes = sorted((one.numel() for one in given), reverse=True)
    if len(sizes) < 2:  # the other factor is packed in an object
        return 2 * sum(sizes) * out
    return 2 * math.isqrt(sizes[0] * sizes[1] * out)


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    return [one for value in values for one in tensors_of(value)]


class WorkCounter(OperatorMode):
    """Adds up the work of all operators that run in its context, and counts the operators that compute something.

    >>> import torch
    >>> with WorkCounter() as counter:
    ...     _ = torch.ones(2, 3) @ torch.ones(3, 4) + 1
    >>> counter.work, counter.operators
    (56, 2)
    """

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
