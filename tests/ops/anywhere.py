"""Lets a test that is written for CPU tensors run its op on every device.

``anywhere(op)`` copies CPU tensors, with their strides, to the device of the running test. It calls the op there and
copies the results back to the CPU. Autograd works through both copies. On the CPU nothing is copied.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_place = "cpu"


def use(device: str) -> None:
    global _place
    _place = device


def placed(value: Tensor, device: str) -> Tensor:
    """A copy on the device, with the same strides and the same alignment to 16 bytes."""
    offset = value.storage_offset() % 16
    if value.numel() == 0 or (value.is_contiguous() and offset == 0):
        return value.to(device, copy=True)
    reach = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    memory = torch.zeros(offset + reach + 1, dtype=value.dtype, device=device)
    return memory.as_strided(value.shape, value.stride(), offset).copy_(value)


def on(device: str, values: dict[str, Any]) -> dict[str, Any]:
    """Each tensor of ``values`` on the device."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in values.items()}


def there(value: Any) -> Any:
    """``value`` on the device of the running test."""
    if not isinstance(value, Tensor) or _place == "cpu":
        return value
    return value.to(_place) if value.is_contiguous() else placed(value, _place)


def here(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


def anywhere(op: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(op)
    def call(*args: Any, **keywords: Any) -> Any:
        if _place == "cpu":
            return op(*args, **keywords)
        out = op(*map(there, args), **{name: there(value) for name, value in keywords.items()})
        return type(out)(*map(here, out)) if isinstance(out, tuple) else here(out)

    return call
