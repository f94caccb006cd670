"""Resolves ``auto`` in the names of devices and dtypes."""

from __future__ import annotations

from kernel_coder.run import devices


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
