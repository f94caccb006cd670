"""Resolves ``auto`` in the names of devices and dtypes."""

from __future__ import annotations

import torch

from kernel_coder.evaluate.errors import UsageError


def resolve_device(name: str, flag: str = "--device") -> str:
    """``auto`` becomes ``cuda`` if there is a GPU, else ``cpu``. Raises :class:`UsageError` for a missing GPU.

    >>> resolve_device("cpu")
    'cpu'
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda"):
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            raise UsageError(f"{flag} is {name}, but this torch ({torch.__version__}) sees no GPU")
        if (index := int(name.partition(":")[2] or 0)) >= count:
            raise UsageError(f"{flag} is {name}, but the GPUs are numbered 0 to {count - 1}; there is no {index}")
    return name


def resolve_dtype(dtype: str, device: str) -> str:
    """``auto`` becomes ``bfloat16`` on a GPU and ``float32`` on the CPU."""
    if dtype != "auto":
        return dtype
    return "bfloat16" if device.startswith("cuda") else "float32"
