"""The messages between the Examiner and a Runner.

A frame (:mod:`kernel_coder.judge.wire.channel`) has a kind, a status and seven integers. Tensors are bytes in shared
memory; the plan says where each one is. The plan is JSON that the Examiner writes and the Runner reads. Nothing that a
Runner sends is decoded into an object. The only text that a Runner sends is about an error, and stays text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

ALIGNMENT = 512
"""Alignment of tensors in shared memory, in bytes: each one begins at a multiple of this."""

REPORT_BYTES = 1 << 16
"""Size of the shared memory for a Runner's text, in bytes. It must hold an exception with its traceback."""

TASK_DESCRIPTORS = 5
"""Number of descriptors that a task needs: plan, source, report, inputs, outputs."""

MAX_SLOTS = 64
"""Upper limit of the calls in one request. Each has a slot in shared memory for its inputs and outputs."""

HIDDEN = "past the dispatcher: "
"""Prefix of a line of an audit's text that names a library function that the audit did not see."""

ONLY_OWN = "only own kernels"
"""Line of an audit's report: apart from views and allocations, the calls only launched own Triton kernels."""

ALIASED = "an output shares memory with an input"
REUSED = "an output lies in the memory of an earlier output"
"""Line of an audit's text that says that an output shares memory with an input."""


class Say(IntEnum):
    """Kinds of frames. The Runner's answer has the kind of the request, except that the answer to TASK is BUILT."""

    BUILT = 1  # from the Runner: the module is built; values: how the reference's state was loaded (Loaded)
    CALL = 2  # call the module; values: first slot, number of calls, shape variant, mode, 1 if timed, gate number or 0
    PING = 3  # prepare for calls, make none; values: first slot, number of calls (0: give back memory), shape variant
    TRAINING = 7  # switch to another mode; values: 0 eval, 1 train, 2 as it was
    RELOAD = 6  # load the state in shared memory again; values: 1 for another instance first, its seed
    TASK = 4  # the next message carries the descriptors of a task: plan, source, report, inputs, outputs
    QUEUED = 5  # from the Runner, before its answer: all work of the request is in line behind the gate


class Mode(IntEnum):
    """How a call is made. "Own kernels" are the candidate's, not torch's."""

    PLAIN = 0
    ABLATED = 1  # own kernels do nothing, and fresh memory is full of NaN
    SPOILED = 6  # own kernels do nothing, and fresh memory is full of numbers that could be a result
    AUDITED = 2  # launches are observed; values of the answer: Audit
    UNDONE = 7  # own kernels run; then each result is overwritten with an input of the same size
    GRADIENTS = 8  # gradients are on, which is torch's default
    COMPILED = 4  # the reference runs under torch.compile
    EMPTY = 9  # the module is not called; only its outputs are copied
    PROFILED = 3  # device time is measured; values: nanoseconds in own kernels, nanoseconds in all kernels, records
    WEIGHED = 10  # values of the answer: the bytes that a call allocates on the GPU at most
    INFERENCE = 11  # with gradients compared: the outputs are those of another call, with gradients off
    FOR_TARGET = 5  # own kernels are compiled for another GPU, and not launched; values: their number


class Status(IntEnum):
    """How a request ended, according to the Runner."""

    OK = 0
    NO_MODEL = 1  # the code defines no ModelNew
    NOT_COMPILED = 2
    RAISED = 3
    WRONG_STRUCTURE = 4  # number, shape, dtype, device or type of the outputs
    OUT_OF_MEMORY = 5
    NO_STATE = 6  # the reference's parameters and buffers cannot be loaded into the candidate
    NO_GRADIENT = 7  # it has no parameter for one whose gradient is compared


class Loaded(IntEnum):
    """How the reference's parameters and buffers were loaded into the candidate."""

    NOTHING = 0  # the reference has none
    BY_NAME = 1
    BY_ORDER = 2  # the names differ; the shapes are the same, in the same order
    BY_SEED = 3  # the shapes differ; the candidate drew the same random numbers at construction


class Audit(NamedTuple):
    """What was observed about the launches of one request.

    Attributes:
        launches: number of launches of own kernels.
        moving: launches that only copied or filled memory.
        library_ops: operators of torch that computed something.
        hidden: library functions that are called past torch's dispatcher or on another thread, unseen by the audit.
        reached: number of outputs that contain data of own kernels.
        replays: replays of CUDA graphs. Only a profile shows the kernels of these.
        library_work: operations of torch's operators, counted by :mod:`kernel_coder.judge.wire.op_work`.
    """

    launches: int
    moving: int
    library_ops: int
    hidden: int
    reached: int
    replays: int
    library_work: int


class TensorSpec(NamedTuple):
    """Shape, dtype, and offset of the first byte of a tensor in shared memory."""

    shape: tuple[int, ...]
    dtype: str
    offset: int = 0

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as a ``torch.dtype``."""
        return dtype_named(self.dtype)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.torch_dtype.itemsize


def dtype_named(name: str) -> torch.dtype:
    """Return the dtype with this name. Raise ValueError if there is none.

    >>> dtype_named("bfloat16")
    torch.bfloat16
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"there is no dtype {name!r}")
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def round_up(size: int, to: int = ALIGNMENT) -> int:
    """Return the smallest multiple of `to` that is not below `size`."""
    return (size + to - 1) // to * to


def laid_out(tensors: list[Tensor], offset: int = 0) -> tuple[list[TensorSpec], int]:
    """Place tensors one after another, beginning at `offset`. Return their specs, and the offset after the last one."""
    specs = []
    for tensor in tensors:
        specs.append(TensorSpec(tuple(tensor.shape), dtype_name(tensor.dtype), offset))
        offset = round_up(offset + specs[-1].nbytes)
    return specs, offset


class Unsendable(ValueError):
    """Raised for a value that cannot be sent to a Runner."""


class Number(NamedTuple):
    """A number that a module returned. Its tensor is compared like others; a tensor in its place is another type."""

    tensor: Tensor


PLAIN = (bool, int, float, str, type(None))


def encode(value: Any, tensors: list[Tensor]) -> Any:
    """Turn a tree of plain values and tensors into JSON. Append each tensor to `tensors` and encode its index.

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
    if isinstance(value, tuple) and is_named(value):  # the Runner does not know the reference's own type
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
    """Return whether a value is a named tuple, of Python's kind or of torch's, as ``torch.max`` returns it.

    >>> is_named(torch.ones(2).max(0)), is_named(Number(torch.ones(2))), is_named((1, 2))
    (True, True, False)
    """
    return isinstance(value, tuple) and (hasattr(value, "_fields") or hasattr(value, "n_sequence_fields"))


def decode(tree: Any, tensors: Callable[[int], Tensor]) -> Any:
    """Turn JSON from :func:`encode` back into a tree. `tensors` returns the tensor with a given index."""
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


def names_of_leaves(tree: Any, name: str, inner: bool = False) -> list[str]:
    """Return the name of each tensor of an encoded tree for messages, in the order of :func:`encode`.

    Args:
        tree: an encoded tree.
        name: name of the tree.
        inner: whether the tree is part of another one. Only then are numbers written in brackets.

    >>> names_of_leaves(encode(torch.zeros(1), []), "output")
    ['output']
    >>> names_of_leaves(encode((torch.zeros(1), {"loss": torch.zeros(1)}), []), "output")
    ['output 0', "output 1['loss']"]
    """
    kind, what = tree
    if kind in ("tensor", "number"):
        return [name]
    if kind in ("list", "tuple"):
        form = "{}[{}]" if inner else "{} {}"
        return [leaf for i, one in enumerate(what) for leaf in names_of_leaves(one, form.format(name, i), True)]
    if kind == "dict":
        return [leaf for key, one in what for leaf in names_of_leaves(one, f"{name}[{key!r}]", True)]
    return []


def same_structure(tree: Any, other: Any) -> bool:
    """Return whether two encoded trees have the same containers and equal plain values. A list counts as a tuple."""
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
