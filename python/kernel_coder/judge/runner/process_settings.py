"""Settings of torch that hold for a whole process. A module's call must not change them."""

from __future__ import annotations

from typing import NamedTuple

import torch


class ProcessSettings(NamedTuple):
    """The values of these settings at one time.

    >>> before = ProcessSettings.now()
    >>> torch.set_default_dtype(torch.float64)
    >>> before.differences(ProcessSettings.now())
    ['the default dtype']
    >>> torch.set_default_dtype(torch.float32)
    """

    dtype: torch.dtype
    gradients: bool
    inference: bool
    seed: int
    deterministic: bool
    autocast: bool

    @classmethod
    def now(cls) -> ProcessSettings:
        """Return the current settings."""
        return cls(
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.initial_seed(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_autocast_enabled(),
        )

    def differences(self, later: ProcessSettings) -> list[str]:
        """Return the names of the settings that have other values in `later`."""
        return [name for name, a, b in zip(_NAMES, self, later, strict=True) if a != b]


_NAMES = (
    "the default dtype",
    "whether gradients are computed",
    "the inference mode",
    "the seed of random numbers",
    "deterministic algorithms",
    "autocast",
)
