"""What Triton compiles in every process that starts it, whatever its kernels do: made once, for all Runners.

Triton builds a C module around the driver's functions, and one around the launch of every new list of argument types,
with the machine's C compiler, and keeps them in its cache. Every Runner begins with an empty cache of its own, since a
cache that candidates share is one that they can write to; so it is given a copy of the first module, and of those for
the commonest lists of arguments, which a process of the judge's own has made.
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

LOG = logging.getLogger(__name__)

VARIABLE = "KC_TRITON_BUILT"
"""Environment variable that names the folder to a Runner."""

DRIVER = "from triton.runtime import driver; driver.active.get_current_device()"
LAUNCHERS = "from kernel_coder.judge.runner.triton_cache import launch_each; launch_each()"
PATIENCE_S = 120.0

ARGUMENTS = (
    *("ppic", "pppic", "ppppic", "pppppic", "ppiic", "pppiic", "ppppiic", "pppiiic", "ppppiiiic", "ppiicc"),
    *("ppifc", "pppifc", "ppppifc", "ppiffc", "ppppiiiccc", "pppiiiccc", "pppiiiiccc", "ppppiifccc", "ppiiiiiccc"),
)
"""Of kernels, commonest first: pointers to float32, 32-bit integers, float32, constants. Two thirds of the generator's
solutions have one of these lists."""

TARGET = ("cuda", 90, 32)
"""For which a process that has no GPU compiles something, to have it done once; any would do."""


class Built:
    """A folder with what Triton builds, as soon as it is built, which a thread sees to.

    Args:
        environment: of the processes that build.
        programs: what they run, one after another; each finds its own empty cache.
    """

    def __init__(self, environment: Mapping[str, str], programs: Sequence[str] = (DRIVER, LAUNCHERS)) -> None:
        self.folder = tempfile.mkdtemp(prefix="kernel_coder-triton-")
        os.chmod(self.folder, 0o755)  # Runners are other users
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
                _, told = self._process.communicate(timeout=PATIENCE_S)
            except (OSError, subprocess.SubprocessError) as error:
                LOG.warning("every Runner builds Triton's modules itself: %s", error)
                self._stop()
                return False
            if self._process.returncode:
                LOG.info("every Runner builds Triton's modules itself: %s", told.strip()[-300:])
                return False
            for folder, _, files in os.walk(cache):
                os.chmod(folder, 0o755)
                for name in files:
                    os.chmod(os.path.join(folder, name), 0o644)
            built = os.path.join(self.folder, "cache")
            os.makedirs(built, 0o755, exist_ok=True)
            for name in os.listdir(cache):
                with contextlib.suppress(OSError):  # an earlier program has built it
                    os.rename(os.path.join(cache, name), os.path.join(built, name))
        return True

    def _stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def wait(self) -> bool:
        """Until all is built, or cannot be; whether anything is."""
        self._thread.join()
        return os.path.isdir(os.path.join(self.folder, "cache"))

    def close(self) -> None:
        """Nothing is left of it."""
        self._closed.set()
        self._stop()
        self._thread.join()
        shutil.rmtree(self.folder, ignore_errors=True)


def begin_with_built(cache_dir: str) -> bool:
    """In a Runner: begin its cache with a copy of what is built by now; whether there is any."""
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


def source_of(arguments: str) -> str:
    """A kernel with these arguments, each in use.

    >>> print(source_of("ppic").splitlines()[-2:])
    ['def kernel(a0, a1, a2, a3: tl.constexpr):', '    tl.store(a0, tl.load(a1) + a2 + a3)']
    """
    names = [f"a{i}" for i in range(len(arguments))]
    typed = [f"{name}: tl.constexpr" if kind == "c" else name for name, kind in zip(names, arguments, strict=True)]
    pairs = list(zip(names, arguments, strict=True))[1:]
    terms = [f"tl.load({name})" if kind == "p" else name for name, kind in pairs]
    return KERNEL.format(names=", ".join(typed), first=names[0], sum=" + ".join(terms))


def launch_each(lists: Sequence[str] = ARGUMENTS) -> None:
    """Launch a kernel with every list of arguments, so that Triton builds what launches it."""
    import torch

    numbers = torch.zeros(16, device="cuda")
    values: dict[str, Any] = {"p": numbers, "i": 48, "f": 0.5, "c": 32}
    for arguments in lists:
        _module(source_of(arguments)).kernel[(1,)](*(values[kind] for kind in arguments))
    torch.cuda.synchronize()


def _module(source: str) -> ModuleType:
    """Imported from a file: Triton reads a kernel's text from there."""
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
    """What Triton asks about every argument of a kernel, and imports at the first launch, an interpreted one too."""
    with contextlib.suppress(ImportError):
        importlib.import_module("triton.experimental.gluon.nvidia.hopper")


def compile_once() -> None:
    """In the warm parent, without a GPU: all that a process does at its first compilation and never again.

    Triton hashes itself, which is some hundred MB, imports what describes kernels' arguments, and starts LLVM.
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
