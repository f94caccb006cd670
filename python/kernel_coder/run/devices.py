"""Looking up the device that a setting names."""

from __future__ import annotations

import re

import torch

from kernel_coder.run.errors import UsageError


def visible_gpus() -> int:
    """Return the number of GPUs that torch can use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def resolve_device(name: str, setting: str) -> str:
    """Return the device that ``name`` stands for: ``auto`` is ``cuda`` if there is a GPU and ``cpu`` otherwise.

    Args:
        name: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        setting: name of the flag or config field, for the error message.

    Raises:
        UsageError: it is no such name, or there is no such GPU.

    >>> resolve_device("cpu", "judge.device")
    'cpu'
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise UsageError(f"{setting} must be auto, cpu, cuda or cuda:N; got {name}")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda"):
        gpus = visible_gpus()
        if not gpus:
            raise UsageError(f"{setting} is {name}, but this torch ({torch.__version__}) sees no GPU")
        if (index := int(name.partition(":")[2] or 0)) >= gpus:
            raise UsageError(f"{setting} is {name}, but the GPUs are numbered 0 to {gpus - 1}; there is no {index}")
    return name
