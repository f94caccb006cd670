"""SHA-256 of texts, files and tensors: one definition for verdicts, data sets and checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # commands that hash only text start without torch
    from torch import Tensor


def sha256_text(text: str) -> str:
    """Return the hexadecimal SHA-256 of the text in UTF-8. Unpaired surrogates are encoded, not refused.

    >>> sha256_text("abc")[:12]
    'ba7816bf8f01'
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return the hexadecimal SHA-256 over names, dtypes, shapes and bytes, in the order of the names."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
