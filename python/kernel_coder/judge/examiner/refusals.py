"""Reasons why no candidate can be judged on a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Refused(Exception):
    """Raised if the task cannot be used to judge candidates. The message says why."""


class Unsteady(Refused):
    """Raised if the task's inputs or the reference's outputs change from call to call in a way that they must not."""


class TooLarge(Refused):
    """Raised if the task needs more memory than is free now."""


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turn any error of the reference in this block into a refusal whose message begins with `what`."""
    try:
        yield
    except Refused:
        raise
    except torch.OutOfMemoryError as error:
        raise TooLarge(f"{what}: it is too large for this device ({str(error).splitlines()[0]})") from None
    except MemoryError:
        raise TooLarge(f"{what}: it is too large for this machine") from None
    except Exception as error:
        text = str(error).strip().splitlines() or [""]
        kind = TooLarge if "OUT_OF_MEMORY" in text[0] else Refused  # the CUDA driver's own error
        raise kind(f"{what}: {type(error).__name__}: {text[0][:300]}") from None
