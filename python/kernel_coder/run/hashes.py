"""SHA-256 of texts and files: one definition for verdicts, data sets and checkpoints."""

from __future__ import annotations

import hashlib
from pathlib import Path


def sha256_text(text: str) -> str:
    """The hexadecimal SHA-256 of the text in UTF-8. Lone surrogates are hashed as they are.

    >>> sha256_text("abc")[:12]
    'ba7816bf8f01'
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def sha256_file(path: Path) -> str:
    """The hexadecimal SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
