"""Finds functions of libraries that compiled code calls where an audit does not see them.

An audit sees what goes through torch's dispatcher on the caller's thread. The table of symbols of a built library names
the functions that it takes from others: implementations of operators, functions that switch the dispatcher off, BLAS,
threads, and functions that look up others by name at run time.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable
from struct import Struct

import torch

from kernel_coder.judge.runner.kernel_facts import demangled, elf_sections, elf_text, library_facts
from kernel_coder.judge.wire.op_work import only_moves_data

_SYMBOL = Struct("<IBBHQQ")  # name, info, other, section, value, size

_BEHIND = re.compile(r"at::(?:cpu|cuda|meta|native|redispatch|composite\w+)::(\w+)\(")
_REDISPATCHED = re.compile(r"at::_ops::(\w+)::redispatch\(")
_CALLED = re.compile(r"at::_ops::(\w+)::call\(")
_ALWAYS = re.compile(
    r"c10::impl::IncludeDispatchKeyGuard::|c10::impl::ForceDispatchKeyGuard|c10::impl::tls_set_dispatch_key_"
    r"|c10::impl::_force_tls_local_dispatch_key_set|c10::impl::TorchDispatchModeTLS::(?:set|unset|pop|push|swap)_"
    r"|at::native::DispatchStub|at::native::\w+_(?:stub|kernel)\b|^cblas_\w+$|^mkl_\w+$|^dnnl\w*|^LAPACKE_\w+$|^v[sd][A-Z]\w*$"
    r"|^(?i:[sdcz](?:gemm|gemv|gemmt|gemm3m|symm|syrk|trmm|trsm|dot|axpy|ger)(?:_batch\w*)?(?:_64)?_{0,2})$"
    r"|^cublas\w+$|^cudnn\w+$|^cusparse\w+$|^cutensor\w+$|^dl(?:vsym|mopen)$"
)
_BY_NAME = re.compile(r"c10::Dispatcher::find(?:Schema|Op)")
_LOOKS_UP = re.compile(r"^dl(?:open|sym)$")
_UNSEEN = re.compile(
    r"std::thread::_M_start_thread|^pthread_create$|std::__future_base::_Async_state_common|^GOMP_parallel$"
    r"|^__kmpc_fork_call$|c10::impl::ExcludeDispatchKeyGuard::"
)
"""Threads, and the guard that excludes dispatch keys. An audit may not see operators that a library calls then. But
honest libraries have both: ``torch::empty`` contains the guard. So :mod:`.unseen_operators` looks at what they do."""

_REARRANGING_NAMES = """
to type_as view view_as reshape reshape_as flatten unflatten squeeze unsqueeze expand expand_as permute transpose t
movedim moveaxis swapaxes swapdims select narrow slice index_select split chunk unbind diagonal as_strided pad flip roll
item size stride
"""
_REARRANGES = frozenset(_REARRANGING_NAMES.split())
"""Operators that a C++ program calls by these names and that compute nothing. In the dispatcher they are views and
copies with other names."""


_TRITON_MODULES = ("cuda_utils", "__triton_launcher")
"""Modules that Triton compiles in the Runner and loads to launch kernels. They look functions up in CUDA's driver."""


def hidden_calls(libraries: Iterable[str]) -> list[str]:
    """Return the library functions that these shared libraries call past the dispatcher.

    Args:
        libraries: paths of the libraries.
    """
    found = []
    for library in libraries:
        names = hidden_among(undefined_symbols(library))
        found += [name for name in names if not (_LOOKS_UP.search(name) and is_triton_module(library))]
    return found


def is_triton_module(library: str) -> bool:
    """Return whether a library has the name and the entry point of a module that Triton compiles."""
    name = os.path.basename(library).partition(".")[0]
    return name in _TRITON_MODULES and f"PyInit_{name}" in symbols_of(library, defined=True)


def hidden_among(symbols: Iterable[str]) -> list[str]:
    """Return which of a library's undefined symbols, demangled, are such functions.

    >>> hidden_among(["at::cpu::_softmax(at::Tensor const&, long, bool)", "at::cuda::getCurrentCUDAStream(char)"])
    ['at::cpu::_softmax']
    >>> hidden_among(["at::_ops::softmax_int::call(at::Tensor const&)", "my_sgemm_blocked(float*)"])
    []
    """
    found = []
    for symbol in symbols:
        behind = _BEHIND.search(symbol) or _REDISPATCHED.search(symbol)
        if computes(behind[1]) if behind else _ALWAYS.search(symbol) or _LOOKS_UP.search(symbol):
            found.append(symbol.partition("(")[0])
    return found


def may_hide(symbols: Iterable[str]) -> bool:
    """Return whether a library with these undefined symbols may call operators that an audit does not see: it calls
    some, and it has threads of its own or can change what the dispatcher does.

    >>> product = "at::_ops::mm::call(at::Tensor const&)"
    >>> may_hide([product]), may_hide(["GOMP_parallel"]), may_hide([product, "GOMP_parallel"])
    (False, False, True)
    """
    symbols = list(symbols)
    calls = any(_BY_NAME.search(one) or ((found := _CALLED.search(one)) and computes(found[1])) for one in symbols)
    return calls and any(map(_UNSEEN.search, symbols))


def computes(name: str) -> bool:
    """Return whether this is an operator of torch that computes something. Names may end in that of an overload."""
    packet, parts = torch.ops.aten, name.rstrip("_").split("_")
    for end in range(len(parts), 0, -1):
        short = "_".join(parts[:end])
        if short and hasattr(packet, short):
            return not (only_moves_data(short) or short in _REARRANGES)
    return False


def undefined_symbols(library: str) -> list[str]:
    """Return the functions that a shared library takes from others, demangled; empty if it is no ELF file."""
    return symbols_of(library, defined=False)


def symbols_of(library: str, *, defined: bool) -> list[str]:
    """Return the dynamic symbols, demangled, that a shared library defines, or those that it takes from others."""
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        sections = elf_sections(image)
        if ".dynsym" not in sections or ".dynstr" not in sections:
            return []
        (start, size), (strings, _) = sections[".dynsym"], sections[".dynstr"]
        names = []
        for at in range(start, start + size, _SYMBOL.size):
            name, _, _, section, _, _ = _SYMBOL.unpack_from(image, at)
            if (section != 0) == defined and name:
                names.append(demangled(elf_text(image, strings + name).decode("latin-1")))
    return names


def loaded_from(folder: str) -> list[str]:
    """Return the shared libraries under a folder that this process has mapped, however they were loaded."""
    root = os.path.realpath(folder) + os.sep
    found = set()
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")
            if path[1] and f"/{path[2]}".startswith(root) and "x" in line.split(" ", 2)[1]:
                found.add(f"/{path[2]}".removesuffix(" (deleted)"))
    return sorted(one for one in found if os.path.isfile(one))


class BuiltLibraries:
    """The shared libraries that a candidate has built or loaded, and facts about them.

    Attributes:
        hidden: library functions that they call past the dispatcher.
        may_hide: whether one of them may call operators that an audit does not see.
        facts: facts about the kernels in the libraries that it has built, as text.
    """

    def __init__(self) -> None:
        self.hidden: list[str] = []
        self.may_hide = False
        self.facts: list[str] = []
        self._known: list[str] = []

    def look(self, built: Iterable[str]) -> None:
        """Examine the libraries that were built, and those loaded from the current folder, if there are new ones."""
        built = list(dict.fromkeys(built))
        libraries = sorted({*built, *loaded_from(os.getcwd())})
        if libraries != self._known:
            self._known, self.hidden = libraries, hidden_calls(libraries)
            self.may_hide = any(may_hide(undefined_symbols(library)) for library in libraries)
            self.facts = [str(fact) for library in built for fact in library_facts(library)]
