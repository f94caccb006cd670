"""Checks, for every command, that the packages of an extra are installed."""

from __future__ import annotations

import importlib.util

from kernel_coder.run.errors import UsageError

EXTRAS = {
    "train": ("transformers", "accelerate", "safetensors", "tokenizers", "tensorboard"),
    "eval": ("openai",),
    "serve": ("fastapi", "uvicorn", "prometheus_client", "httpx"),
    "ray": ("ray",),
    "hub": ("datasets",),
    "triton": ("triton",),
}
"""The modules that stand for each extra of pyproject.toml. ``triton`` is a part of ``train``, and of torch's CUDA
builds."""


def missing_packages(extra: str) -> list[str]:
    """Return the packages of an extra that are not installed.

    >>> missing_packages("no such extra")
    []
    """
    return [name for name in EXTRAS.get(extra, ()) if not _is_installed(name)]


def require_extra(extra: str, needed_by: str) -> None:
    """Raises UsageError if a package of the extra is not installed.

    Args:
        extra: a key of :data:`EXTRAS`.
        needed_by: name of the command or feature that needs it, such as ``kernel-coder train``, for the error message.
    """
    if missing := missing_packages(extra):
        remedy = "pip install triton" if extra == "triton" else f"pip install 'kernel-coder[{extra}]'"
        plural = "the package" if len(missing) == 1 else "the packages"
        raise UsageError(f"{needed_by} needs {plural} {', '.join(missing)}, which this environment lacks: {remedy}")


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False
    except ValueError:  # a module without a spec, such as a test's stub
        return True
