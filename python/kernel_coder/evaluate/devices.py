"""Which device a run is on."""

from __future__ import annotations

from kernel_coder.run import devices


def resolve_device(name: str, flag: str = "--device") -> str:
    """The device that a flag names; see :func:`kernel_coder.run.devices.resolve_device`.

    >>> resolve_device("cpu")
    'cpu'
    """
    return devices.resolve_device(name, flag)


def resolve_dtype(dtype: str, device: str) -> str:
    """``auto`` becomes ``bfloat16`` on a GPU and ``float32`` on the CPU."""
    if dtype != "auto":
        return dtype
    return "bfloat16" if device.startswith("cuda") else "float32"
