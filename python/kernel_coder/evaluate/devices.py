"""Resolves ``auto`` in the names of devices and dtypes."""

from __future__ import annotations

from typing import TypeVar

from kernel_coder.evaluate.config import AnswerConfig
from kernel_coder.judge.supervisor.batching import devices_of
from kernel_coder.run import devices

Config = TypeVar("Config", bound=AnswerConfig)


def on_this_machine(config: Config) -> Config:
    """Return the config with the device of the model resolved. Raises :class:`UsageError` if this machine lacks a GPU
    that ``device`` or ``judge_device`` names."""
    for name in devices_of(config.judge_device) if config.judge_device is not None else ():
        resolve_device(name, "--judge-device")
    return config.model_copy(update={"device": resolve_device(config.device)})


def resolve_device(name: str, flag: str = "--device") -> str:
    """Return the device; for ``auto`` ``cuda`` if there is a GPU, else ``cpu``. Raises :class:`UsageError` for a
    missing GPU.

    >>> resolve_device("cpu")
    'cpu'
    """
    return devices.resolve_device(name, flag)


def resolve_dtype(dtype: str, device: str) -> str:
    """Return the dtype; for ``auto`` ``bfloat16`` on a GPU and ``float32`` on the CPU."""
    if dtype != "auto":
        return dtype
    return "bfloat16" if device.startswith("cuda") else "float32"
