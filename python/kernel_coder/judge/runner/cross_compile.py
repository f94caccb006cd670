"""Compiles a candidate's Triton kernels for a GPU that this machine does not have.

Triton's interpreter runs many kernels that its compiler refuses. Where kernels are interpreted, this checks whether
they compile for a GPU at all. It runs in the candidate's process, so success proves nothing; only a failure counts.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from kernel_coder.judge.config import SHARED_BYTES, capability
from kernel_coder.judge.runner.kernel_facts import KernelFacts, library_facts, triton_facts


class _AbsentDriver:
    """Replaces Triton's driver, for a GPU that this machine does not have."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def compile_kernels(calls: Callable[[], None], architecture: str) -> list[KernelFacts]:
    """Compile the Triton kernels that some calls launch, without launching them.

    The calls then continue with results that were never computed. So after the first kernel, only errors of the
    compiler count, and other exceptions of the calls are ignored.

    Args:
        calls: launches the kernels.
        architecture: the GPU to compile for, such as ``sm_90``.

    Returns:
        Facts about each kernel.

    Raises:
        RuntimeError: no kernel was compiled, or a kernel needs more shared memory than the architecture has.
        Exception: the compiler's error, or the calls' error if no kernel was reached.
    """
    with _recorded(architecture) as (kernels, failures):
        try:
            calls()
        except Exception:
            if not kernels and not failures:
                raise
    if failures:
        raise failures[0]
    if not kernels:
        raise RuntimeError("no Triton kernel was launched")
    most = SHARED_BYTES[capability(architecture)]
    for kernel in kernels:
        if kernel.metadata.shared > most:
            needed = f"{kernel.name} needs {kernel.metadata.shared} bytes of shared memory"
            raise RuntimeError(f"{needed}; {architecture} has {most} a block")
    return [_facts(kernel) for kernel in {kernel.hash: kernel for kernel in kernels}.values()]


def _facts(kernel: Any) -> KernelFacts:
    """Return facts including registers and spills, which only the assembler knows."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        known = library_facts(file.name)
    facts = triton_facts(kernel)
    return replace(facts, registers=known[0].registers, local_bytes=known[0].local_bytes) if known else facts


@contextlib.contextmanager
def _recorded(architecture: str) -> Iterator[tuple[list[Any], list[Exception]]]:
    """Compile kernels where Triton would launch them. Give the compiled kernels and the compiler's errors."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    kernels: list[Any] = []
    failures: list[Exception] = []
    launched = JITFunction.run

    def run(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        try:
            kernel = launched(function, *args, grid=grid, warmup=True, **kwargs)
        except Exception as error:
            failures.append(error)
            raise
        kernels.append(kernel)
        return kernel

    before = driver._active
    driver.set_active(_AbsentDriver(GPUTarget("cuda", capability(architecture), 32)))
    JITFunction.run = run
    try:
        yield kernels, failures
    finally:
        JITFunction.run = launched
        driver._active = before
