"""Settings and random generators that belong to a whole process. A module's call must not change them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

_DENORMAL = torch.tensor(1e-40)


def _flushes_denormals() -> bool:
    return not bool(_DENORMAL * 1)


_SETTINGS: dict[str, Callable[[], Any]] = {
    "the default dtype": torch.get_default_dtype,
    "the default device": torch.get_default_device,
    "whether gradients are computed": torch.is_grad_enabled,
    "the inference mode": torch.is_inference_mode_enabled,
    "the seed of random numbers": torch.initial_seed,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "autocast": torch.is_autocast_enabled,
    "the number of threads": torch.get_num_threads,
    "the precision of products": torch.get_float32_matmul_precision,
    "TF32 in products": lambda: torch.backends.cuda.matmul.allow_tf32,
    "TF32 in convolutions": lambda: torch.backends.cudnn.allow_tf32,
    "cuDNN's benchmark mode": lambda: torch.backends.cudnn.benchmark,
    "whether cuDNN is used": lambda: torch.backends.cudnn.enabled,
    "whether oneDNN is used": lambda: torch.backends.mkldnn.enabled,
    "anomaly detection": torch.is_anomaly_enabled,
    "whether denormal numbers are flushed to zero": _flushes_denormals,
}


def settings_now() -> dict[str, Any]:
    """Return the current settings, by a name for messages.

    >>> before = settings_now()
    >>> torch.set_default_dtype(torch.float64)
    >>> differences(before, settings_now())
    ['the default dtype']
    >>> torch.set_default_dtype(torch.float32)
    """
    return {name: _value(read) for name, read in _SETTINGS.items()}


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the names of the settings that have another value afterwards."""
    return [name for name, value in before.items() if after[name] != value]


def _value(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except RuntimeError as error:  # torch refuses to tell TF32's flag once it has been set in its newer way
        return str(error)


class GeneratorWatch:
    """Notices calls that put a random generator back to a fixed state. Such a call makes the user's random numbers
    repeat themselves. A call that only draws numbers moves a generator on, and that is allowed.

    >>> watch, seen = GeneratorWatch(), []
    >>> for _ in range(2):
    ...     watch.before_call()
    ...     _ = torch.manual_seed(0)
    ...     seen.append(watch.is_put_back())
    >>> seen
    [False, True]
    """

    def __init__(self) -> None:
        self._after: list[Any] = []

    def before_call(self) -> None:
        """Move the generators on, so that no call begins where the last one ended."""
        torch.rand(())
        random.random()

    def is_put_back(self) -> bool:
        """Return whether a generator is after this call where it was after the previous one."""
        last, self._after = self._after, [torch.get_rng_state(), random.getstate()]
        return bool(last) and (torch.equal(last[0], self._after[0]) or last[1] == self._after[1])
