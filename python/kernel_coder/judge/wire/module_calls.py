"""Builds a module, loads its state and calls it. The reference and candidates are treated alike."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernel_coder.judge.wire.messages import Loaded, Number, is_named
from kernel_coder.judge.wire.trees import floating, is_real, map_tensors, tensors_of

COMPUTE = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
"""The dtype of tensors for each precision of a task."""


def set_math_mode(precision: str, threads: int) -> None:
    """Set the task's math mode in this process. By default, torch allows TF32 in convolutions.

    Args:
        precision: the task's precision; TF32 is allowed if it is ``tf32``.
        threads: number of CPU threads.
    """
    tf32 = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = False
    torch.set_num_threads(threads)


def arguments_of(init_inputs: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return a constructor's arguments from ``get_init_inputs``, in the forms of KernelBench and KernelBook.

    >>> arguments_of([3, 4]), arguments_of([[3], {"bias": False}]), arguments_of([[3, 4]])
    (([3, 4], {}), ([3], {'bias': False}), ([[3, 4]], {}))
    """
    if isinstance(init_inputs, Mapping):
        return [], dict(init_inputs)
    values = list(init_inputs)
    if len(values) == 2 and isinstance(values[0], list | tuple) and isinstance(values[1], dict):
        return list(values[0]), dict(values[1])
    return values, {}


def built(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, seed: int, device: torch.device, dtype: torch.dtype
) -> torch.nn.Module:
    """Construct a module after ``torch.manual_seed(seed)``, and move it to a device. Its floating-point parameters and
    buffers get the dtype."""
    return on_device(constructed(model, args, kwargs, seed), device, dtype)


def constructed(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], seed: int) -> torch.nn.Module:
    """Construct a module after ``torch.manual_seed(seed)``, usually on the CPU."""
    torch.manual_seed(seed)
    module = model(*args, **kwargs)
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"ModelNew must make a torch.nn.Module; got {type(module).__name__}")
    return module


def on_device(module: torch.nn.Module, device: torch.device, dtype: torch.dtype) -> torch.nn.Module:
    """Move a module to a device. Its floating-point parameters and buffers get the dtype."""
    return module.to(device=device, dtype=dtype) if dtype != torch.float32 else module.to(device)


def set_training(module: torch.nn.Module, training: bool | None) -> None:
    """Call ``train(training)``, unless `training` is None."""
    if training is not None:
        module.train(training)


def state_of(module: torch.nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name, also buffers that are not saved. A shared tensor has several names."""
    named: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    named.update(module.named_buffers(remove_duplicate=False))
    return named


class LoadedState(NamedTuple):
    """How the reference's state was loaded into a candidate."""

    how: Loaded
    names: dict[str, str]
    """The candidate's name for each tensor of the reference that it holds in the same shape."""


def load_state(
    module: torch.nn.Module,
    state: Mapping[str, Tensor],
    random_only: bool,
    optional: Collection[str] = (),
    initial: Mapping[str, float | None] | None = None,
    own_initial: Mapping[str, float | None] | None = None,
) -> LoadedState | None:
    """Load the reference's state into a candidate: by name, or else in order. Return how, or None if neither fits.
    Other parameters and buffers of the candidate stay as they are.

    Args:
        module: the candidate.
        state: the reference's state.
        random_only: whether the whole state comes from random numbers drawn at construction. If so, a candidate that
            draws the same numbers may keep its state in any form.
        optional: names of constant buffers that the candidate may lack.
        initial: the one value that all elements of a parameter have after construction, by name; None if they differ.
            It distinguishes a gain from a bias of the same shape if the names differ.
        own_initial: the same for the candidate; None: its parameters still have their initial values.
    """
    own = state_of(module)
    floats = {name: value for name, value in state.items() if floating(value)}
    if not floats:
        return LoadedState(Loaded.NOTHING, {})
    needed = {name: value for name, value in state.items() if name not in optional}
    same = {name: name for name, value in state.items() if name in own and own[name].shape == value.shape}
    with torch.no_grad():
        if same.keys() >= needed.keys():
            _load_named(module, own, state)
            return LoadedState(Loaded.BY_NAME, same)
        if _loads_itself(module, state, needed):
            return LoadedState(Loaded.BY_NAME, same)
        theirs = [name for name in floats if name not in optional]
        mine = [name for name, value in own.items() if floating(value)]
        if len(mine) != len(theirs) and len(mine) == len(floats):
            theirs = list(floats)
        if own_initial is None:
            own_initial = {name: one_value(own[name]) for name in mine}
        pairs = _in_order(own, mine, floats, theirs, initial or {}, own_initial)
        if pairs is not None:
            for name, other in pairs:
                own[name].copy_(floats[other])
            return LoadedState(Loaded.BY_ORDER, {other: name for name, other in pairs})
    return LoadedState(Loaded.BY_SEED, {}) if random_only else None


def _load_named(module: torch.nn.Module, own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Load by name with ``load_state_dict``, so that hooks run. Copy what that does not know, such as buffers that are
    not saved."""
    saved = set(module.state_dict())
    try:
        module.load_state_dict({name: value for name, value in state.items() if name in saved}, strict=False)
    except RuntimeError:
        saved = set()
    for name, value in state.items():
        if name not in saved and name in own and own[name].shape == value.shape:
            own[name].copy_(value)


def _loads_itself(module: torch.nn.Module, state: Mapping[str, Tensor], needed: Mapping[str, Tensor]) -> bool:
    """Load with the module's ``load_state_dict`` if the candidate customised it, for example with a hook that joins
    three parameters into one. Return whether all that is needed was loaded."""
    plain = torch.nn.Module
    is_custom = any(
        getattr(type(one), name) is not getattr(plain, name)
        for one in module.modules()
        for name in ("load_state_dict", "_load_from_state_dict")
    ) or any(one._load_state_dict_pre_hooks for one in module.modules())
    if not is_custom:
        return False
    try:
        left = module.load_state_dict(dict(state), strict=False)
    except Exception:
        return False
    return left is None or not (left.missing_keys or set(left.unexpected_keys) & set(needed))


def _in_order(
    own: Mapping[str, Tensor],
    mine: Sequence[str],
    floats: Mapping[str, Tensor],
    theirs: Sequence[str],
    initial: Mapping[str, float | None],
    own_initial: Mapping[str, float | None],
) -> list[tuple[str, str]] | None:
    """Return pairs of a candidate's and the reference's names: those with the same shape and initial value in order, or
    else those with the same shape; None if the shapes differ."""
    if len(mine) != len(theirs):
        return None
    first = {name: (tuple(own[name].shape), own_initial.get(name)) for name in mine}
    second = {name: (tuple(floats[name].shape), initial.get(name)) for name in theirs}
    if sorted(map(str, first.values())) == sorted(map(str, second.values())):
        left = list(theirs)
        pairs = []
        for name in mine:
            match = next(other for other in left if str(second[other]) == str(first[name]))
            left.remove(match)
            pairs.append((name, match))
        return pairs
    if [own[name].shape for name in mine] == [floats[name].shape for name in theirs]:
        return list(zip(mine, theirs, strict=True))
    return None


def one_value(tensor: Tensor) -> float | None:
    """Return the value that all elements of a floating-point tensor have; None if they differ.

    >>> one_value(torch.ones(3)), one_value(torch.tensor([1.0, 2.0]))
    (1.0, None)
    """
    flat = tensor.detach().reshape(-1)
    if len(flat) == 0 or not is_real(flat) or not bool((flat == flat[0]).all()):
        return None
    return float(flat[0])


def outputs_of(value: Any, device: torch.device | None = None) -> Any:
    """Return the result of a forward with each number as a :class:`Number` whose tensor is on the device.

    >>> outputs_of([torch.ones(2).max(0), 3])
    [(tensor(1.), tensor(0)), Number(tensor=tensor(3))]
    """
    if isinstance(value, float):
        return Number(torch.tensor(value, dtype=torch.float32, device=device))
    if isinstance(value, int):  # or a bool
        return Number(torch.tensor(value, device=device))
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        if is_named(value):
            return tuple(outputs_of(one, device) for one in value)
        return type(value)(outputs_of(one, device) for one in value)
    if isinstance(value, dict):
        return {key: outputs_of(value[key], device) for key in sorted(value, key=str)}  # the order of keys is ignored
    return value


def device_of(args: Iterable[Any]) -> torch.device | None:
    """Return the device of the first tensor; None if there is none."""
    return next((one.device for one in args if isinstance(one, Tensor)), None)


def called(
    module: torch.nn.Module, args: Sequence[Any], cotangents: Sequence[Tensor] | None, parameters: Iterable[Tensor]
) -> Any:
    """Call a module.

    Args:
        module: the module to call.
        args: arguments of ``forward``.
        cotangents: a tensor for each floating-point output; None: compute no gradients, as in inference.
        parameters: tensors that gradients are computed for, in addition to the floating-point inputs.

    Returns:
        The outputs. With cotangents a pair: the outputs, and the gradients of ``sum(output * cotangent)`` with respect
        to inputs and parameters; zeros for tensors that do not matter.

    Raises:
        RuntimeError: with cotangents, if no output requires a gradient.
    """
    if cotangents is None:
        with torch.no_grad():
            return outputs_of(module(*args), device_of(args))
    leaves: list[Tensor] = []
    is_first_layer = secrets.randbelow(2) == 0  # in a model, the input of a later layer is no leaf of the graph

    def leaf(tensor: Tensor) -> Tensor:
        if not floating(tensor):
            return tensor
        leaves.append(tensor.detach().requires_grad_())
        return leaves[-1] if is_first_layer else leaves[-1].view_as(leaves[-1])

    args = map_tensors(list(args), leaf)
    outputs = outputs_of(module(*args), device_of(args))
    floats = _floats(tensors_of(outputs))
    pairs = [(one, cotangent) for one, cotangent in zip(floats, cotangents, strict=False) if one.requires_grad]
    if not pairs:
        raise RuntimeError("no output of the forward requires a gradient")
    wanted = [*leaves, *(one for one in parameters if one.requires_grad)]
    for one in wanted:
        one.grad = None
    torch.autograd.backward([one for one, _ in pairs], [g for _, g in pairs])
    found = [torch.zeros_like(one) if one.grad is None else one.grad for one in wanted]
    for one in wanted:
        one.grad = None
    # A subclass stays as it is: its own `detach` could compute what its data are not.
    return (map_tensors(outputs, lambda one: one.detach() if type(one) in (Tensor, torch.nn.Parameter) else one), found)


def _floats(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [one for one in tensors if floating(one)]
