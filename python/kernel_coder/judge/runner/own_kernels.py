"""Decides which kernels and functions are the candidate's own.

Its own are those that the candidate's file defines: its ``triton.jit`` functions, the functions of the extension
modules that it builds with ``torch.utils.cpp_extension``, and those of libraries that it builds and opens with
``ctypes``. A library's kernels are never its own, whichever code launches them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from kernel_coder.judge.config import BUILDS
from kernel_coder.judge.runner.kernel_facts import kernels_in, spellings

CallObserver = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Makes a call of an extension's function. It gets the name, the function, and the positional and named arguments."""


class OwnKernels:
    """Recognises the candidate's own kernels and functions.

    Call :meth:`watch_extensions` before the candidate is imported, so that it sees the modules that are built.

    Args:
        file: the candidate's file.
        module: the name under which it is imported.
        backend: only kernels of this backend are own: those of Triton, or for ``cuda`` and ``cpp`` those of extensions;
            None: all of them.
    """

    def __init__(self, file: str | os.PathLike[str], module: str = "candidate", backend: str | None = None) -> None:
        self.file = os.path.realpath(file)
        self.module = module
        self.counts_triton = backend not in BUILDS
        self.counts_extensions = backend != "triton"
        self.libraries: list[str] = []
        """Paths of the shared libraries that the candidate built."""
        self.operators: set[str] = set()
        """Operators that these libraries registered with torch, such as ``my_library::my_op``."""
        self.compiled: set[str] = set()
        """Names on the device of the own Triton kernels that were launched."""
        self.observer: CallObserver | None = None
        """If set, it makes the calls of own extension functions."""

    def owns(self, function: Any) -> bool:
        """Return whether a Triton kernel is own: the candidate's file defines its function. Decorators such as
        ``triton.jit`` are looked through."""
        if not self.counts_triton:
            return False
        while not hasattr(function, "__code__"):
            inner = getattr(function, "fn", None)
            if inner is None:
                return False
            function = inner
        file = function.__code__.co_filename
        if os.path.realpath(file) == self.file:
            return True
        # Code that was made at run time has no file of its own.
        return function.__module__ == self.module and not os.path.exists(file)

    @contextlib.contextmanager
    def watch_extensions(self) -> Iterator[None]:
        """Count what ``load`` and ``load_inline`` build in this context as own, and what ``ctypes`` opens, if
        extensions count."""
        if not self.counts_extensions:
            yield
            return
        from torch.utils import cpp_extension

        originals = {name: getattr(cpp_extension, name) for name in ("load", "load_inline")}
        for name, original in originals.items():
            setattr(cpp_extension, name, functools.wraps(original)(functools.partial(self._load, original)))
        plain = ctypes.CDLL.__init__
        ctypes.CDLL.__init__ = self._opening(plain)  # type: ignore[method-assign]
        try:
            yield
        finally:
            ctypes.CDLL.__init__ = plain  # type: ignore[method-assign]
            for name, original in originals.items():
                setattr(cpp_extension, name, original)

    def _opening(self, original: Callable[..., None]) -> Callable[..., None]:
        """Return a constructor of ``ctypes.CDLL`` that takes libraries in the candidate's folder as its own."""
        folder = os.path.dirname(self.file) + os.sep

        def open_library(library: Any, name: Any = None, *args: Any, **kwargs: Any) -> None:
            original(library, name, *args, **kwargs)
            path = os.path.realpath(os.fspath(name)) if isinstance(name, str | os.PathLike) else ""
            if not path.startswith(folder) or not os.path.exists(path):  # "libm.so.6" is a name, and no path
                return
            self.libraries.append(path)
            plain: Any = library._FuncPtr

            class Watched(plain):
                _flags_, _restype_ = plain._flags_, plain._restype_

                def __call__(pointer, *given: Any) -> Any:
                    observer, call = self.observer, super().__call__
                    return call(*given) if observer is None else observer(pointer.__name__, call, given, {})

            library._FuncPtr = Watched

        return open_library

    def _load(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before, loaded_before = _operators(), set(torch.ops.loaded_libraries)
        module = original(*args, **kwargs)
        self.operators |= _operators() - before
        self.libraries += sorted(set(torch.ops.loaded_libraries) - loaded_before)
        if isinstance(module, ModuleType):
            self.watch_module(module)
        return module

    def watch_module(self, module: ModuleType) -> None:
        """Count a compiled module as own: its functions, and the methods of its classes."""
        if getattr(module, "__file__", None):
            self.libraries.append(str(module.__file__))
        for name, value in list(vars(module).items()):
            if isinstance(value, ModuleType):
                if value.__name__.startswith(f"{module.__name__}."):
                    self.watch_module(value)
                continue
            if name.startswith("__"):
                continue
            if isinstance(value, type):
                for method, function in list(vars(value).items()):
                    if callable(function) and (method == "__call__" or not method.startswith("__")):
                        with contextlib.suppress(AttributeError, TypeError):
                            setattr(value, method, self.watched(f"{name}.{method}", function))
            elif callable(value):
                setattr(module, name, self.watched(name, value))

    def watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of an extension, wrapped so that the observer, if it is set, makes its calls."""

        def call(*args: Any, **kwargs: Any) -> Any:
            observer = self.observer
            return function(*args, **kwargs) if observer is None else observer(name, function, args, kwargs)

        with contextlib.suppress(AttributeError, TypeError):
            functools.update_wrapper(call, function)
        return call

    def kernel_names(self) -> frozenset[str]:
        """Return the names that own kernels may have in a profile.

        They come from the own Triton kernels that were launched, from compiled Triton kernels that are globals of the
        candidate's module, and from all kernels in the libraries that the candidate built.
        """
        names = set(self.compiled)
        for value in list(vars(sys.modules.get(self.module, object)).values()):
            names |= _compiled_names(value) if self.owns(value) else set()
        for library in dict.fromkeys(self.libraries):
            names |= kernels_in(library)
        return frozenset(spelling for name in names for spelling in spellings(name))


def _compiled_names(function: Any) -> set[str]:
    """Return the names of the kernels compiled from a jitted function. Decorators around it are looked through."""
    while not hasattr(function, "device_caches") and hasattr(function, "fn"):
        function = function.fn
    caches = getattr(function, "device_caches", {})
    return {str(kernel.name) for cache, *_ in caches.values() for kernel in cache.values() if hasattr(kernel, "name")}


def _operators() -> set[str]:
    return set(torch._C._dispatch_get_all_op_names())
