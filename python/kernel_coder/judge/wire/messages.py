"""What the Examiner and a Runner say to each other.

Frames (:mod:`kernel_coder.judge.wire.channel`) carry a kind, a status and seven integers; tensors are bytes in shared
memory, at places that the plan names. The plan is JSON that the Examiner writes and the Runner reads. Nothing that a
Runner sends is ever decoded into an object; its one text, about an error, stays text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

ALIGNMENT = 512
"""Bytes; every tensor in shared memory begins at a multiple of this."""

REPORT_BYTES = 1 << 16
"""Of a Runner's text: an exception with its traceback."""

TASK_DESCRIPTORS = 5
"""Of a task: plan, source, report, inputs, outputs."""

AFTERWARDS_S = 20.0
"""What the Examiner may take once a candidate that it has timed is no more."""

READY = 8
"""Tasks that an Examiner keeps ready."""

MAX_SLOTS = 64
"""Calls that one request may ask for."""


class Say(IntEnum):
    """Kinds of frames. The Runner's answer to each request has the same kind."""

    BUILT = 1  # Runner: to TASK, once the module is there; values: how the state was loaded
    CALL = 2  # values: first slot, calls, shape variant, mode; 1 if it is timed; the number at the gate, or 0
    PING = 3  # to make ready for such calls; values: as above, with 1 as the mode: use the device, as little as can be
    TASK = 4  # what comes next are descriptors: plan, source, report, inputs, outputs; the answer is BUILT
    QUEUED = 5  # Runner: where there is a gate, before the answer: all that was asked for waits behind it


class Mode(IntEnum):
    """What a call is for."""

    PLAIN = 0
    ABLATED = 1  # own kernels do nothing, and fresh memory is full of NaN
    SPOILED = 6  # the same, and fresh memory is full of numbers that could be a result
    AUDITED = 2  # launches are looked at; values of the answer: Audit
    UNDONE = 7  # own kernels run, and what they wrote is replaced by what they were given, where that is as large
    COMPILED = 4  # of the reference alone: under torch.compile
    PROFILED = 3  # device time is measured; values: nanoseconds in own kernels, in all, records
    FOR_TARGET = 5  # own kernels are compiled for a GPU that is not there, and not launched; values: how many


class Status(IntEnum):
    """How a request ended, as the Runner says."""

    OK = 0
    NO_MODEL = 1  # the code has no ModelNew
    NOT_COMPILED = 2
    RAISED = 3
    WRONG_STRUCTURE = 4  # number, shape, dtype, device or type of the outputs
    OUT_OF_MEMORY = 5
    NO_STATE = 6  # the reference's parameters and buffers cannot be loaded into the candidate


class Loaded(IntEnum):
    """How the reference's state came into the candidate."""

    NOTHING = 0  # the reference has none
    BY_NAME = 1
    BY_ORDER = 2  # other names, the same shapes in the same order
    BY_SEED = 3  # other shapes: the random numbers drawn at construction


class Audit(NamedTuple):
    """What was seen of a call's launches."""

    launches: int
    moving: int  # launches that only copied or filled
    library_ops: int  # operators of torch that computed something
    small: int  # launches that computed one element, and not all elements of an output together
    reached: int  # outputs that data of own kernels is in
    replays: int  # of CUDA graphs, whose kernels only a profile shows


class TensorSpec(NamedTuple):
    """A tensor in shared memory."""

    shape: tuple[int, ...]
    dtype: str
    offset: int = 0

    @property
    def torch_dtype(self) -> torch.dtype:
        return dtype_named(self.dtype)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.torch_dtype.itemsize


def dtype_named(name: str) -> torch.dtype:
    """
    >>> dtype_named("bfloat16")
    torch.bfloat16
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"there is no dtype {name!r}")
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def round_up(size: int, to: int = ALIGNMENT) -> int:
    return (size + to - 1) // to * to


def laid_out(tensors: list[Tensor], offset: int = 0) -> tuple[list[TensorSpec], int]:
    """A place for each tensor, one after another, and where the last ends."""
    specs = []
    for tensor in tensors:
        specs.append(TensorSpec(tuple(tensor.shape), dtype_name(tensor.dtype), offset))
        offset = round_up(offset + specs[-1].nbytes)
    return specs, offset


class Unsendable(ValueError):
    """A value that cannot be handed to a Runner."""


class Number(NamedTuple):
    """A number that was computed: a tensor for comparisons, and yet not the same as one."""

    tensor: Tensor


PLAIN = (bool, int, float, str, type(None))


def encode(value: Any, tensors: list[Tensor]) -> Any:
    """A tree of plain values and tensors as JSON. Tensors are appended to the list; their places there stand for them.

    >>> found = []
    >>> encode([torch.zeros(2), {"p": (1, None)}, torch.float16], found)
    ['list', [['tensor', 0], ['dict', [['p', ['tuple', [['value', 1], ['value', None]]]]]], ['dtype', 'float16']]]
    """
    if isinstance(value, Tensor):
        tensors.append(value)
        return ["tensor", len(tensors) - 1]
    if isinstance(value, Number):
        tensors.append(value.tensor)
        return ["number", len(tensors) - 1]
    if isinstance(value, float) and not math.isfinite(value):
        return ["float", repr(value)]
    if type(value) in PLAIN:
        return ["value", value]
    if isinstance(value, torch.Size):
        return ["tuple", [["value", size] for size in value]]
    if type(value) in (list, tuple):
        return [type(value).__name__, [encode(one, tensors) for one in value]]
    if isinstance(value, tuple) and is_named(value):  # its type is the reference's own
        return ["tuple", [encode(one, tensors) for one in value]]
    if isinstance(value, Mapping):
        if not all(type(key) in (str, int) for key in value):
            raise Unsendable(f"a dict's keys must be text or integers; got {[type(key).__name__ for key in value]}")
        return ["dict", [[key, encode(one, tensors)] for key, one in value.items()]]
    if isinstance(value, torch.dtype):
        return ["dtype", dtype_name(value)]
    if isinstance(value, torch.device):
        return ["device", str(value)]
    raise Unsendable(f"a value of type {type(value).__name__} cannot be handed to a candidate")


def is_named(value: Any) -> bool:
    """Whether it is a named tuple, of Python's or of torch's, as what ``torch.max`` returns.

    >>> is_named(torch.ones(2).max(0)), is_named(Number(torch.ones(2))), is_named((1, 2))
    (True, True, False)
    """
    return isinstance(value, tuple) and (hasattr(value, "_fields") or hasattr(value, "n_sequence_fields"))


def decode(tree: Any, tensors: Callable[[int], Tensor]) -> Any:
    """What :func:`encode` was given."""
    kind, what = tree
    if kind == "tensor":
        return tensors(what)
    if kind == "value":
        return what
    if kind == "float":
        return float(what)
    if kind == "list":
        return [decode(one, tensors) for one in what]
    if kind == "tuple":
        return tuple(decode(one, tensors) for one in what)
    if kind == "dict":
        return {key: decode(one, tensors) for key, one in what}
    if kind == "dtype":
        return dtype_named(what)
    if kind == "device":
        return torch.device(what)
    raise ValueError(f"unknown kind of value: {kind!r}")


def names_of_leaves(tree: Any, name: str = "output") -> list[str]:
    """How each tensor of a tree is called in messages, in the order of :func:`encode`.

    >>> names_of_leaves(encode(torch.zeros(1), []))
    ['output']
    >>> names_of_leaves(encode((torch.zeros(1), {"loss": torch.zeros(1)}), []))
    ['output 0', "output 1['loss']"]
    """
    kind, what = tree
    if kind in ("tensor", "number"):
        return [name]
    if kind in ("list", "tuple"):
        if name != "output":
            return [leaf for i, one in enumerate(what) for leaf in names_of_leaves(one, f"{name}[{i}]")]
        return [leaf for i, one in enumerate(what) for leaf in names_of_leaves(one, f"{name} {i}")]
    if kind == "dict":
        return [leaf for key, one in what for leaf in names_of_leaves(one, f"{name}[{key!r}]")]
    return []


def same_structure(tree: Any, other: Any) -> bool:
    """The same containers around tensors; a list counts as a tuple, plain values have to be equal."""
    kind, what = tree
    other_kind, other_what = other
    if kind in ("list", "tuple") and other_kind in ("list", "tuple"):
        return len(what) == len(other_what) and all(map(same_structure, what, other_what))
    if kind != other_kind:
        return False
    if kind == "dict":
        return [key for key, _ in what] == [key for key, _ in other_what] and all(
            same_structure(one, another) for (_, one), (_, another) in zip(what, other_what, strict=True)
        )
    return kind in ("tensor", "number") or what == other_what
