"""Loads the C++ core: the pybind11 module and the libraries with the CPU and CUDA ops."""

from __future__ import annotations

import re
from pathlib import Path

OLDEST_TORCH = (2, 11)


def torch_problem(version: str) -> str | None:
    """Return why this version of torch is not supported; None if it is.

    >>> torch_problem("2.10.1+cu128")
    'kernel_coder needs torch 2.11 or newer; found 2.10.1+cu128. Upgrade it: pip install -U torch'
    >>> torch_problem("2.13.0+cpu") is None
    True
    """
    release = re.match(r"(\d+)\.(\d+)", version)
    if release and (int(release[1]), int(release[2])) < OLDEST_TORCH:
        return f"kernel_coder needs torch 2.11 or newer; found {version}. Upgrade it: pip install -U torch"
    return None


try:
    import torch
except ModuleNotFoundError as error:
    raise ImportError("kernel_coder needs torch 2.11 or newer, and none is installed: pip install torch") from error
if problem := torch_problem(torch.__version__):
    raise ImportError(problem)

try:
    from kernel_coder import _C
except ImportError as error:
    raise ImportError(
        "kernel_coder's C++ core is not built for this Python. Install a wheel, or build it in the source tree: "
        "pip install --no-build-isolation ."
    ) from error

_here = Path(_C.__file__).parent
CPU_LIBRARY = _here / "libkernel_coder_ops.so"
CUDA_LIBRARY = _here / "libkernel_coder_cuda.so"

_C.load_library(str(CPU_LIBRARY))
#: Whether the CUDA ops are loaded. This needs the CUDA library and a torch with CUDA.
cuda_loaded = CUDA_LIBRARY.exists() and torch.version.cuda is not None
if cuda_loaded:
    _C.load_library(str(CUDA_LIBRARY))
_C.expose_ops()


def has_cuda_kernel(op: str) -> bool:
    """Return whether the op with this name has a CUDA kernel in this process."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"kernel_coder::{op}", "CUDA")
