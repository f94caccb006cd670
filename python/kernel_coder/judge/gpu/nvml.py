"""Facts about a GPU from NVIDIA's management library (NVML). It does not start CUDA, so the Supervisor may use it.

Without the library, :func:`visible_name` and :func:`node_number` assume CUDA's own numbers, and the other functions
return None.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any, NamedTuple

import torch


def device_index(device: int | str | torch.device) -> int:
    """Return the index of a GPU that is given as an index, a name or a torch device.

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


class Memory(NamedTuple):
    """A GPU's memory in bytes. `used` includes what the driver keeps for itself."""

    used: int
    total: int


class _MemoryInfo(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def _visible(device: int) -> str | None:
    """Return this GPU's entry in CUDA_VISIBLE_DEVICES: a number or the beginning of a uuid; None if that is not set."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return None
    listed = [name.strip() for name in names.split(",")]
    return listed[device] if device < len(listed) else ""


def _handle(device: Any) -> ctypes.c_void_p | None:
    """Return NVML's handle of the GPU that CUDA in this process numbers as `device`.

    NVML numbers GPUs in the order of the bus. So does CUDA where all GPUs of a machine are of one kind.
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


def uuid(device: Any = 0) -> str | None:
    """Return the GPU's uuid in the form of CUDA_VISIBLE_DEVICES: ``GPU-...``."""
    library, handle = _library(), _handle(device)
    return None if library is None or handle is None else _uuid(library, handle)


def minor_number(device: Any = 0) -> int | None:
    """Return N of /dev/nvidiaN. It may differ from CUDA's index: in a container the only GPU may be /dev/nvidia5."""
    library, handle = _library(), _handle(device)
    if library is None or handle is None:
        return None
    number = ctypes.c_uint()
    return None if library.nvmlDeviceGetMinorNumber(handle, ctypes.byref(number)) else number.value


def visible_name(device: Any = 0) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES with which another process sees this GPU and no other."""
    return uuid(device) or _visible(device_index(device)) or str(device_index(device))


def node_number(device: Any = 0) -> int:
    """Return N of /dev/nvidiaN; without the library the GPU's number, which usually is the same."""
    number, name = minor_number(device), _visible(device_index(device)) or ""
    return number if number is not None else int(name) if name.isdecimal() else device_index(device)


def memory(device: Any = 0) -> Memory | None:
    """Return the memory of the whole GPU, used by any process."""
    library, handle = _library(), _handle(device)
    if library is None or handle is None:
        return None
    info = _MemoryInfo()
    return None if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(info)) else Memory(info.used, info.total)
