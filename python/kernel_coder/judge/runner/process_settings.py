"""Settings of torch that hold for a whole process, which a module's call has to leave as they are."""

from __future__ import annotations

from typing import NamedTuple

import torch


class ProcessSettings(NamedTuple):
    """Some of these settings at one time.

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
        """The settings as they are now."""
        return cls(
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.initial_seed(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_autocast_enabled(),
        )

    def differences(self, later: ProcessSettings) -> list[str]:
        """Names of the settings that are others later."""
        return [name for name, a, b in zip(_NAMES, self, later, strict=True) if a != b]


_NAMES = (
    "the default dtype",
    "whether gradients are computed",
    "the inference mode",
    "the seed of random numbers",
    "deterministic algorithms",
    "autocast",
)
