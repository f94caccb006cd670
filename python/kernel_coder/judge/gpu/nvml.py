"""What NVIDIA's management library says about a GPU. Asking it starts no CUDA, so a supervisor may ask.

Everything here is None where the library is not there or does not know.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any, NamedTuple

import torch


def device_index(device: int | str | torch.device) -> int:
    """The index of a GPU, however it was named.

    >>> device_index("cuda:1"), device_index("cuda"), device_index(2)
    (1, 0, 2)
    """
    if isinstance(device, int):
        index, kind = device, "cuda"
    else:
        kind, _, number = str(device).partition(":")
        index = int(number or 0) if (number or "0").isdecimal() else -1
    if kind != "cuda" or index < 0:
        raise ValueError(f"device must be a CUDA device or its index; got {device}")
    return index


class ComputeProcess(NamedTuple):
    """A process with a context on the GPU. In a container its pid may be another than the one seen inside, or 0."""

    pid: int
    used_bytes: int | None


class Memory(NamedTuple):
    """In bytes. Used includes what the driver keeps for itself."""

    used: int
    total: int


class Clocks(NamedTuple):
    """In MHz, and whether something holds them down: heat, power or a setting."""

    sm: int
    memory: int
    max_sm: int
    max_memory: int
    is_held_down: bool


class _MemoryInfo(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _ProcessInfo(ctypes.Structure):  # version 3
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


_TOO_SMALL = 7  # NVML_ERROR_INSUFFICIENT_SIZE
_NOT_KNOWN = (1 << 64) - 1
_GRAPHICS_CLOCK, _SM_CLOCK, _MEMORY_CLOCK = range(3)
# nvmlClocksThrottleReason: SwPowerCap 4, HwSlowdown 8, SwThermalSlowdown 0x20, HwThermal 0x40, HwPowerBrake 0x80.
_HELD_DOWN = 0x4 | 0x8 | 0x20 | 0x40 | 0x80


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def _visible(device: int) -> str | None:
    """How CUDA_VISIBLE_DEVICES calls this GPU: a number or the beginning of a uuid; None if that is not set."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return None
    listed = [name.strip() for name in names.split(",")]
    return listed[device] if device < len(listed) else ""


def _handle(device: Any) -> ctypes.c_void_p | None:
    """NVML's of a GPU that this process counts as `device`.

    NVML counts in the order of the bus, which CUDA follows too where all GPUs of a machine are of one kind.
    """
    index = device_index(device)
    library, name = _library(), _visible(index)
    if library is None:
        return None
    handle = ctypes.c_void_p()
    if name is None or name.isdecimal():
        number = ctypes.c_uint(index if name is None else int(name))
        failed = library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle))
        return None if failed else handle
    count = ctypes.c_uint()
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for number_found in range(count.value):
        if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number_found), ctypes.byref(handle)) == 0:
            found = _uuid(library, handle)
            if name and found is not None and found.startswith(name):
                return handle
    return None


def _uuid(library: ctypes.CDLL, handle: ctypes.c_void_p) -> str | None:
    text = ctypes.create_string_buffer(96)
    return None if library.nvmlDeviceGetUUID(handle, text, ctypes.c_uint(96)) else text.value.decode()


def _number(call: str, device: Any, *arguments: Any) -> int | None:
    library, handle = _library(), _handle(device)
    if library is None or handle is None:
        return None
    value = ctypes.c_ulonglong()
    failed = getattr(library, call)(handle, *arguments, ctypes.byref(value))
    return None if failed else value.value


def uuid(device: Any = 0) -> str | None:
    """As CUDA_VISIBLE_DEVICES takes it: ``GPU-...``."""
    library, handle = _library(), _handle(device)
    return None if library is None or handle is None else _uuid(library, handle)


def minor_number(device: Any = 0) -> int | None:
    """N of /dev/nvidiaN, which need not be CUDA's index: in a container the only GPU may be /dev/nvidia5."""
    return _number("nvmlDeviceGetMinorNumber", device)


def memory(device: Any = 0) -> Memory | None:
    """Of the whole GPU, whoever uses it."""
    library, handle = _library(), _handle(device)
    if library is None or handle is None:
        return None
    info = _MemoryInfo()
    return None if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(info)) else Memory(info.used, info.total)


def compute_processes(device: Any = 0) -> list[ComputeProcess] | None:
    """Those with a CUDA context on the GPU, this one included. An empty list is an answer, None is none."""
    library, handle = _library(), _handle(device)
    if library is None or handle is None:
        return None
    ask = getattr(library, "nvmlDeviceGetComputeRunningProcesses_v3", None)
    if ask is None:
        return None
    room = 64
    while True:
        found, count = (_ProcessInfo * room)(), ctypes.c_uint(room)
        failed = ask(handle, ctypes.byref(count), found)
        if failed == _TOO_SMALL and count.value > room:
            room = 2 * count.value
            continue
        if failed:
            return None
        known = [(one.pid, None if one.used == _NOT_KNOWN else one.used) for one in found[: count.value]]
        return [ComputeProcess(pid, used) for pid, used in known]


def clocks(device: Any = 0) -> Clocks | None:
    """As they are now; idle ones are low."""
    kinds = [("nvmlDeviceGetClockInfo", _SM_CLOCK), ("nvmlDeviceGetClockInfo", _MEMORY_CLOCK)]
    kinds += [("nvmlDeviceGetMaxClockInfo", _SM_CLOCK), ("nvmlDeviceGetMaxClockInfo", _MEMORY_CLOCK)]
    found = [_number(call, device, ctypes.c_uint(kind)) for call, kind in kinds]
    reasons = _number("nvmlDeviceGetCurrentClocksThrottleReasons", device)
    if any(one is None for one in found):
        return None
    sm, memory_clock, max_sm, max_memory = (int(one or 0) for one in found)
    return Clocks(sm, memory_clock, max_sm, max_memory, bool((reasons or 0) & _HELD_DOWN))
