"""Guesses the language of a candidate's text, for a message if it is judged as another language."""

from __future__ import annotations

import re

_CUDA = re.compile(r"__global__|<<<|cuda_sources|cuda_runtime\.h|\.cu\b|CUDAStream")
_CPP = re.compile(
    r"^[ \t]*#[ \t]*include\b|cpp_sources|load_inline|torch::Tensor|at::Tensor|cpp_extension", re.MULTILINE
)
_TRITON = re.compile(r"@(?:triton\.)?jit\b|import triton|from triton|tl\.(?:load|store|program_id)")

NAMES = {"triton": "Triton", "cuda": "CUDA", "cpp": "C++"}
"""Names of the languages for people, by backend."""


def looks_like(source: str) -> str | None:
    """Return the backend that a candidate's text is written for, according to its words; None if they show none.

    >>> looks_like("__global__ void relu(float* x) {}"), looks_like("#include <torch/extension.h>")
    ('cuda', 'cpp')
    >>> looks_like("import triton\\n@triton.jit\\ndef relu(x): ..."), looks_like("import torch") is None
    ('triton', True)
    """
    for backend, words in (("cuda", _CUDA), ("cpp", _CPP), ("triton", _TRITON)):
        if words.search(source):
            return backend
    return None


def other_language(source: str, backend: str) -> str | None:
    """Return the backend that the source seems to be written for, if that is not `backend`; otherwise None.

    >>> other_language("#include <torch/extension.h>", "triton"), other_language("import triton", "triton")
    ('cpp', None)
    """
    found = looks_like(source)
    return None if found in (None, backend) or backend not in NAMES or {found, backend} == {"cuda", "cpp"} else found
