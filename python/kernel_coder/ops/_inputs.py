"""Reads the arguments of the ops: accepts them as they are, converts them, or refuses them with one sentence.

A call of an op costs the host only some microseconds, so nothing here uses the device or copies a tensor that the op
can use as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from kernel_coder.ops.loss_spec import LossSpec

R = TypeVar("R")

#: Every preset by its name. They are made here because code under torch.compile can look them up but not make them.
_PRESETS = {name: LossSpec.preset(name) for name in LossSpec.presets()}

#: Numbers as a tensor, a Python sequence or a numpy array, for arguments with one number for each sequence or reward.
Numbers = Tensor | Sequence[Any]


def plain_tensor(name: str, value: object) -> Tensor:
    """Return ``value`` if an op can take it: a tensor of one process.

    >>> plain_tensor("ids", [1, 2])
    Traceback (most recent call last):
    ...
    TypeError: ids must be a torch.Tensor; got list. Pass torch.tensor(ids)
    """
    if type(value) is Tensor or type(value) is torch.nn.Parameter:
        return value
    if not isinstance(value, Tensor):
        convert = "torch.from_numpy" if type(value).__module__ == "numpy" else "torch.tensor"
        raise TypeError(f"{name} must be a torch.Tensor; got {type(value).__name__}. Pass {convert}({name})")
    if type(value).__name__ == "DTensor":
        raise TypeError(
            f"{name} is a DTensor, and the ops work on the plain tensors of one process. Pass {name}.to_local() if it "
            f"is sharded by tokens, else {name}.full_tensor()"
        )
    return value


def _without_gradient(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.dtype is dtype and not tensor.requires_grad:
        return tensor
    return tensor.detach().to(dtype)


def token_numbers(dtype: torch.dtype, **tensors: Tensor | None) -> list[Tensor | None]:
    """Return tensors, or None, without gradient, in the dtype in which the loss is computed. Each has the name of its
    argument."""
    return [
        None if value is None else _without_gradient(plain_tensor(name, value), dtype)
        for name, value in tensors.items()
    ]


def as_advantages(advantages: Numbers, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return advantages as a tensor; a list or an array is copied to the device."""
    if isinstance(advantages, Tensor):
        return _without_gradient(plain_tensor("advantages", advantages), dtype)
    return tensor_of("advantages", advantages, dtype).to(device, non_blocking=True)


def tensor_of(name: str, numbers: Any, dtype: torch.dtype) -> Tensor:
    """Return a list, a tuple or an array as a tensor on the CPU. None among rewards means NaN: not scored.

    >>> tensor_of("rewards", [1, None], torch.float32)
    tensor([1., nan])
    """
    try:
        return torch.as_tensor(_none_as_nan(numbers) if dtype.is_floating_point else numbers, dtype=dtype)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be a tensor or a list of numbers; got {numbers!r:.80}") from None


def _none_as_nan(numbers: Any) -> Any:
    if isinstance(numbers, list | tuple):
        return [float("nan") if number is None else _none_as_nan(number) for number in numbers]
    return numbers


def as_bounds(name: str, bounds: Numbers | None, device: torch.device) -> Tensor | None:
    """Return ``cu_seqlens`` or ``cu_turns``: int32 and int64 tensors stay on their device, lists are copied to
    ``device``."""
    if bounds is None or isinstance(bounds, Tensor):
        return None if bounds is None else plain_tensor(name, bounds)
    return tensor_of(name, bounds, torch.int64).to(device, non_blocking=True)


def as_mask(mask: Tensor | None) -> Tensor | None:
    """Return a mask as bool; in an integer mask, as tokenizers and TRL make them, every number but 0 means True."""
    if mask is None or plain_tensor("mask", mask).dtype is torch.bool:
        return mask
    if mask.dtype.is_floating_point or mask.dtype.is_complex:
        return mask  # refused by the op
    return mask != 0


def as_spec(spec: LossSpec | str) -> LossSpec:
    """Return a spec, or the preset of that name."""
    if isinstance(spec, LossSpec):
        return spec
    if isinstance(spec, str):
        return _PRESETS[spec] if spec in _PRESETS else LossSpec.preset(spec)
    raise TypeError(f"spec must be a LossSpec or the name of a preset; got {type(spec).__name__}")


def as_temperature(temperature: float | Tensor, logits: Tensor) -> Tensor:
    """Return the temperature in the form of the ops: a tensor in the dtype in which the rows are computed.

    A number becomes a tensor on the CPU, which the op reads before it launches a kernel.
    """
    dtype = sums_of(logits)
    if isinstance(temperature, Tensor):
        if temperature.dtype is dtype and temperature.device == logits.device and not temperature.requires_grad:
            return temperature
        return temperature.detach().to(logits.device, dtype)
    return number_tensor(float(temperature), dtype, logits.device)


def as_denominator(denominator: float | Tensor | None, device: torch.device) -> Tensor | None:
    """Return the denominator in the form of the ops: a 0-D float64 tensor, made without waiting for the device."""
    if denominator is None:
        return None
    if isinstance(denominator, Tensor):
        return denominator.detach().to(device, torch.float64, non_blocking=True)
    if not denominator >= 0:
        raise ValueError(f"denominator must be at least 0; got {denominator}")
    return number_tensor(float(denominator), torch.float64, device)


def sums_of(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which the ops compute and return the numbers of each token."""
    return torch.float64 if tensor.dtype is torch.float64 else torch.float32


def number_tensor(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a 0-D tensor on the CPU, or under torch.compile on ``device``, because a compiled graph should have one
    device."""
    if torch.compiler.is_compiling():
        return torch.full((), value, dtype=dtype, device=device)
    if torch._C._len_torch_dispatch_stack() > 0:  # a mode may make its own kind of tensor
        return torch.full((), value, dtype=dtype, device="cpu")
    return _kept_number(value, dtype)


@functools.lru_cache(maxsize=256)
def _kept_number(value: float, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.full((), value, dtype=dtype, device="cpu")


def without_autograd(op: Callable[..., R], *arguments: Any) -> R:
    """Call an op whose result carries no gradient, without autograd's bookkeeping, which takes longer than the op."""
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return op(*arguments)
    with torch._C._AutoDispatchBelowAutograd():
        return op(*arguments)


def carries_gradient(*tensors: Tensor | None) -> bool:
    """Return whether a call with these inputs must be recorded by autograd."""
    if torch.is_grad_enabled():
        for tensor in tensors:  # any() of a generator would take four times as long
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def under_autocast(device: torch.device, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return hidden states and head in the dtype in which ``torch.nn.functional.linear`` multiplies under autocast."""
    if not torch.is_autocast_enabled(device.type):
        return tensors
    dtype = torch.get_autocast_dtype(device.type)
    return tuple(None if tensor is None or tensor.dtype == torch.float64 else tensor.to(dtype) for tensor in tensors)
