"""Builds the C modules once that Triton would otherwise build again in every Runner.

With the machine's C compiler Triton builds one module around the driver's functions, and one around the launch for
every new list of argument types. It keeps them in its cache. Runners must not share a cache, because candidates could
write to it. So each Runner has its own, which begins with a copy of the first module and of those for the most common
lists of arguments. They are built by a process of the judge in which no candidate runs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from kernel_coder.judge.sandbox.leftovers import make_folder

LOG = logging.getLogger(__name__)

VARIABLE = "KC_TRITON_BUILT"
"""Environment variable with the path of the folder with the modules, for Runners."""

DRIVER = "from triton.runtime import driver; driver.active.get_current_device()"
LAUNCHERS = "from kernel_coder.judge.runner.triton_cache import launch_each; launch_each()"
"""Programs that build the driver's module, and the modules for :data:`ARGUMENTS`."""

BUILD_TIMEOUT_S = 120.0
"""Time limit for one of these programs, in seconds. If a compiler hangs, Runners build the modules themselves."""

ARGUMENTS = (
    *("ppic", "pppic", "ppppic", "pppppic", "ppiic", "pppiic", "ppppiic", "pppiiic", "ppppiiiic", "ppiicc"),
    *("ppifc", "pppifc", "ppppifc", "ppiffc", "ppppiiiccc", "pppiiiccc", "pppiiiiccc", "ppppiifccc", "ppiiiiiccc"),
)
"""Lists of types of kernels' arguments, the most common first: p is a pointer to float32, i a 32-bit integer, f a
float32, c a constant. Two thirds of the solutions of the task generator have one of these lists."""

TARGET = ("cuda", 90, 32)
"""Target of :func:`compile_once`: backend, compute capability, threads of a warp. Any GPU would do."""


class TritonCache:
    """A folder with the modules that Triton builds. A thread builds them and adds each one when it is ready.

    Args:
        environment: environment variables of the building processes.
        programs: Python code that these processes run, one after another. Each has an empty cache of its own.
    """

    def __init__(self, environment: Mapping[str, str], programs: Sequence[str] = (DRIVER, LAUNCHERS)) -> None:
        self.folder, self._in_use = make_folder()
        os.chmod(self.folder, 0o755)  # Runners belong to other users
        self._environment, self._programs = dict(environment), tuple(programs)
        self._process: subprocess.Popen[str] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._make, daemon=True)
        self._thread.start()

    def _make(self) -> None:
        for program in self._programs:
            if self._closed.is_set() or not self._made(program):
                return

    def _made(self, program: str) -> bool:
        """Run a program and add the new files of its cache to the folder. Return whether the program succeeded."""
        with tempfile.TemporaryDirectory(dir=self.folder, prefix="part-") as cache:
            known = {name: os.environ[name] for name in ("PYTHONPATH", "HOME") if name in os.environ}
            environment = {**known, **self._environment, "TRITON_CACHE_DIR": cache}
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", program],
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                if self._closed.is_set():
                    self._process.kill()
                _, told = self._process.communicate(timeout=BUILD_TIMEOUT_S)
            except (OSError, subprocess.SubprocessError) as error:
                LOG.warning("every Runner has to build Triton's modules itself: %s", error)
                self._stop()
                return False
            if self._process.returncode:
                LOG.info("every Runner has to build Triton's modules itself: %s", told.strip()[-300:])
                return False
            for folder, _, files in os.walk(cache):
                os.chmod(folder, 0o755)
                for name in files:
                    os.chmod(os.path.join(folder, name), 0o644)
            built = os.path.join(self.folder, "cache")
            os.makedirs(built, 0o755, exist_ok=True)
            for name in os.listdir(cache):
                with contextlib.suppress(OSError):  # an earlier program has built the same module
                    os.rename(os.path.join(cache, name), os.path.join(built, name))
        return True

    def _stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def wait(self) -> bool:
        """Wait until all is built. Return whether the folder contains anything."""
        self._thread.join()
        return os.path.isdir(os.path.join(self.folder, "cache"))

    def close(self) -> None:
        """Stop building and delete the folder."""
        self._closed.set()
        self._stop()
        self._thread.join()
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._in_use)


def copy_modules(cache_dir: str) -> bool:
    """In a Runner, start its cache with a copy of the modules that are built already.

    Args:
        cache_dir: the Runner's own cache.

    Returns:
        Whether there was anything to copy.
    """
    source = os.path.join(os.environ.get(VARIABLE, ""), "cache")
    if not os.path.isdir(source):
        return False
    shutil.copytree(source, cache_dir, dirs_exist_ok=True, copy_function=shutil.copyfile)
    return True


KERNEL = """
import triton
import triton.language as tl
@triton.jit
def kernel({names}):
    tl.store({first}, {sum})
"""
"""Source of a kernel that uses all its arguments."""


def source_of(arguments: str) -> str:
    """Return the source of a kernel that has these arguments and uses each of them.

    Args:
        arguments: types of the arguments, as in :data:`ARGUMENTS`.

    >>> print(source_of("ppic").splitlines()[-2:])
    ['def kernel(a0, a1, a2, a3: tl.constexpr):', '    tl.store(a0, tl.load(a1) + a2 + a3)']
    """
    names = [f"a{i}" for i in range(len(arguments))]
    typed = [f"{name}: tl.constexpr" if kind == "c" else name for name, kind in zip(names, arguments, strict=True)]
    pairs = list(zip(names, arguments, strict=True))[1:]
    terms = [f"tl.load({name})" if kind == "p" else name for name, kind in pairs]
    return KERNEL.format(names=", ".join(typed), first=names[0], sum=" + ".join(terms))


def launch_each(lists: Sequence[str] = ARGUMENTS) -> None:
    """Launch a kernel with each of these lists of arguments, so that Triton builds the module for it."""
    import torch

    numbers = torch.zeros(16, device="cuda")
    values: dict[str, Any] = {"p": numbers, "i": 48, "f": 0.5, "c": 32}
    for arguments in lists:
        _module(source_of(arguments)).kernel[(1,)](*(values[kind] for kind in arguments))
    torch.cuda.synchronize()


def _module(source: str) -> ModuleType:
    """Import the source from a file, because Triton reads a kernel's text from there."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(source)
        file.flush()
        spec = importlib.util.spec_from_file_location("kernel_coder_launched", file.name)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def import_descriptors() -> None:
    """Import the module that describes the arguments of kernels.

    Otherwise Triton imports it at the first launch, also of an interpreted kernel.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module("triton.experimental.gluon.nvidia.hopper")


def compile_once() -> None:
    """Do what Triton does once in a process, at the first compilation: in the Runners' parent, without a GPU.

    Triton hashes its own files, some hundred MB, imports modules, and starts LLVM.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    with tempfile.TemporaryDirectory() as cache:
        before = os.environ.get("TRITON_CACHE_DIR")
        os.environ["TRITON_CACHE_DIR"] = cache
        try:
            import_descriptors()
            types = {"a0": "*fp32", "a1": "*fp32", "a2": "i32", "a3": "constexpr"}
            source = ASTSource(_module(source_of("ppic")).kernel, types, {(3,): 32})
            triton.compile(source, target=GPUTarget(*TARGET))
        finally:
            if before is None:
                del os.environ["TRITON_CACHE_DIR"]
            else:
                os.environ["TRITON_CACHE_DIR"] = before
