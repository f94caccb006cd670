"""The numbers that a reference computes exponentials of, such as the scores of an attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernel_coder.judge.wire.operator_mode import OperatorMode
from kernel_coder.judge.wire.trees import is_real

MAX_EXPONENT = 2.0**24
"""Upper limit of the magnitude of a number that the reference computes an exponential of, on large inputs.

A candidate may compute ``exp(x * scale - largest)``. It has rounded ``x * scale`` to find the largest number, and in
this expression a GPU does not round the product. For the largest number the difference should be 0, and it is a
rounding error of float32. Up to this limit the error is at most 0.5. At 1e10 it is above 88, where exp overflows."""

MAX_GRADIENT_EXPONENT = 16.0
"""The same limit for comparing gradients. With larger numbers a softmax is 1 for one element and 0 for all others. Its
exact gradient is 0 then, which torch's softmax finds exactly. FlashAttention's backward leaves a rounding error there,
since it subtracts two sums that it has computed in different ways."""

EXPONENTIALS = frozenset(
    {"exp", "exp_", "exp2", "exp2_", "expm1", "logsumexp", "_softmax", "_safe_softmax", "_log_softmax"}
)
"""Names of the operators that compute an exponential of their first argument."""

ATTENTION = "_scaled_dot_product"
"""Beginning of the names of torch's fused attention operators. Their first two arguments are queries and keys."""


class Exponents(NamedTuple):
    """The range of the numbers that exponentials were computed of."""

    low: float = 0.0
    high: float = 0.0

    def exceed(self, own: Exponents, limit: float = MAX_EXPONENT) -> bool:
        """Return whether some of these numbers are so large that float32 is too inexact for their exponentials.

        Args:
            own: the exponents on the task's own inputs. A mask of -1e9 is among them, for example, and does no harm.
            limit: upper limit of their magnitude.

        >>> Exponents(-1e9, 5.0).exceed(Exponents(-1e9, 1.0)), Exponents(-1e9, 1e8).exceed(Exponents())
        (False, True)
        """
        return -self.low > max(limit, -own.low) or self.high > max(limit, own.high)


class ExponentWatch(OperatorMode):
    """Observes the exponentials in this block.

    >>> with ExponentWatch() as watch:
    ...     y = torch.softmax(torch.tensor([1.0, -1e6]), 0), torch.exp(torch.ones(3))
    >>> watch.seen()
    Exponents(low=-1000000.0, high=1.0)
    """

    def __init__(self) -> None:
        super().__init__()
        self._ranges: list[Tensor] = []  # on their device, so that nothing waits for it during a call

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in EXPONENTIALS and is_real(args[0]) and args[0].numel():
            self._ranges.append(torch.stack(torch.aminmax(args[0].detach())).double())
        elif name.startswith(ATTENTION) and all(one.numel() for one in args[:2]):
            longest = [torch.linalg.vector_norm(one.detach(), dim=-1, dtype=torch.float32).max() for one in args[:2]]
            most = longest[0] * longest[1] * ((kwargs or {}).get("scale") or args[0].shape[-1] ** -0.5)
            self._ranges.append(torch.stack([-most, most]).double())
        return func(*args, **(kwargs or {}))

    def seen(self) -> Exponents:
        """Return the range of the finite numbers that were observed. Masks are often infinite."""
        if not self._ranges:
            return Exponents()
        ranges = torch.stack(self._ranges)
        ranges = torch.where(ranges.isfinite(), ranges, 0.0)
        return Exponents(float(ranges[:, 0].min()), float(ranges[:, 1].max()))


def observed(call: Callable[[], list[Tensor]]) -> tuple[list[Tensor], Exponents]:
    """Return the result of a call of a reference, and its exponentials. A reference that compiles itself, as
    flex_attention does, cannot be observed and is called again without that."""
    watch = ExponentWatch()
    try:
        with watch:
            result = call()
    except torch.OutOfMemoryError:
        raise
    except Exception:
        torch._dynamo.reset()  # otherwise torch remembers that it could not compile the function
        return call(), Exponents()
    return result, watch.seen()
