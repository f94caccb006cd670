"""Facts from compilers about kernels: names on the device, registers, local memory and shared memory."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import mmap
import os
import re
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """Facts about a compiled kernel. Unknown ones are None.

    Attributes:
        name: the name on the device; mangled if the kernel is C++.
        registers: registers of each thread.
        local_bytes: bytes of each thread in device memory: spilled registers, and arrays that do not fit.
        shared_bytes: bytes of each block, without those that the launch adds.
        threads: threads of each block.

    >>> print(KernelFacts("fused", registers=40, local_bytes=8, shared_bytes=4096, threads=128))
    fused: 40 registers, 8 bytes of local memory (spilled registers cost time), 4096 bytes of shared memory, 128 threads
    """

    name: str
    registers: int | None = None
    local_bytes: int | None = None
    shared_bytes: int | None = None
    threads: int | None = None

    def __str__(self) -> str:
        told = []
        if self.registers is not None:
            told.append(f"{self.registers} registers")
        if self.local_bytes:
            told.append(f"{self.local_bytes} bytes of local memory (spilled registers cost time)")
        if self.shared_bytes is not None:
            told.append(f"{self.shared_bytes} bytes of shared memory")
        if self.threads is not None:
            told.append(f"{self.threads} threads")
        return f"{demangled(self.name)}: {', '.join(told) or 'nothing is known'}"


def triton_facts(kernel: Any) -> KernelFacts:
    """Return facts about a ``triton.compiler.CompiledKernel``. Registers are known once it is loaded."""
    metadata = kernel.metadata
    spills = getattr(kernel, "n_spills", None)
    warps = getattr(metadata, "num_warps", None)
    width = getattr(getattr(metadata, "target", None), "warp_size", 32)
    return KernelFacts(
        kernel.name,
        registers=getattr(kernel, "n_regs", None),
        local_bytes=None if spills is None else 4 * spills,  # Triton counts words
        shared_bytes=getattr(metadata, "shared", None),
        threads=None if warps is None else warps * width,
    )


# ---- libraries -------------------------------------------------------------------------------------------------------

CUOBJDUMP_TIMEOUT_S = 60
"""Time limit for ``cuobjdump`` on one library, in seconds. After it the library counts as one without facts."""


def kernels_in(library: str) -> frozenset[str]:
    """Return the names of the CUDA kernels in a shared library, mangled if they are C++; empty if it has none.

    They come from the library's cubins if ``cuobjdump`` is installed, otherwise from the names of the host functions
    that launch the kernels.
    """
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        sections = elf_sections(image)
        if ".nv_fatbin" not in sections:
            return frozenset()
        found = frozenset(fact.name for fact in library_facts(library))
        return found or _launched_by_stubs(image, sections)


def library_facts(library: str) -> list[KernelFacts]:
    """Return facts about every kernel in a shared library; empty if ``cuobjdump`` is missing or cannot read it."""
    program = _cuobjdump()
    if program is None:
        return []
    try:
        done = subprocess.run(
            [program, "-res-usage", library], capture_output=True, text=True, timeout=CUOBJDUMP_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_resource_usage(done.stdout)


_FUNCTION = re.compile(r"^\s*Function (\S+):\s*\n\s*(.*)$", re.MULTILINE)


def parse_resource_usage(text: str) -> list[KernelFacts]:
    """Return facts from the output of ``cuobjdump -res-usage``; for each kernel, those of its first architecture.

    >>> parse_resource_usage(" Function _Z3addPf:\\n  REG:10 STACK:8 SHARED:64 LOCAL:0 CONSTANT[0]:536")
    [KernelFacts(name='_Z3addPf', registers=10, local_bytes=8, shared_bytes=64, threads=None)]
    """
    found: dict[str, KernelFacts] = {}
    for match in _FUNCTION.finditer(text):
        usage = {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", match[2])}
        if match[1] not in found and "REG" in usage:
            local = usage.get("STACK", 0) + usage.get("LOCAL", 0)
            found[match[1]] = KernelFacts(match[1], usage["REG"], local, usage.get("SHARED"))
    return list(found.values())


@functools.cache
def _cuobjdump() -> str | None:
    """Return the path of ``cuobjdump``: the CUDA toolkit's, or the one inside Triton's package."""
    candidates = [shutil.which("cuobjdump"), "/usr/local/cuda/bin/cuobjdump"]
    spec = importlib.util.find_spec("triton")
    if spec is not None and spec.origin is not None:
        candidates.append(str(Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"))
    return next((path for path in candidates if path is not None and os.access(path, os.X_OK)), None)


# ELF files, 64 bits, little-endian. Offsets and sizes are those of the System V ABI.
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, alignment, entry size
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_STUB = re.compile(rb"^_Z(?:N\w*?)?L?(\d+)__device_stub_(\w+)$")


def elf_sections(image: mmap.mmap) -> dict[str, tuple[int, int]]:
    """Return offset and size of each section of an ELF file, by name; empty if the file is something else."""
    if len(image) < 64 or image[:6] != b"\x7fELF\x02\x01":
        return {}
    (at,) = struct.unpack_from("<Q", image, 0x28)
    entry, count, names = struct.unpack_from("<HHH", image, 0x3A)
    try:
        headers = [_SECTION.unpack_from(image, at + index * entry) for index in range(count)]
        start = headers[names][4]
        return {elf_text(image, start + header[0]).decode("latin-1"): (header[4], header[5]) for header in headers}
    except (struct.error, IndexError):
        return {}


def elf_text(image: mmap.mmap, start: int) -> bytes:
    """Return the bytes from `start` up to the next zero byte."""
    return image[start : image.find(b"\0", start)]


def _launched_by_stubs(image: mmap.mmap, sections: dict[str, tuple[int, int]]) -> frozenset[str]:
    """Return the names of kernels, found by the symbols of host functions.

    For each kernel nvcc generates a host function ``__device_stub_NAME``, which it registers under the kernel's name.
    """
    if ".symtab" not in sections or ".strtab" not in sections:
        return frozenset()
    (start, size), (strings, _) = sections[".symtab"], sections[".strtab"]
    registered = set(image[slice(*_span(sections.get(".rodata", (0, 0))))].split(b"\0"))
    names = set()
    for at in range(start, start + size, _SYMBOL.size):
        match = _STUB.match(elf_text(image, strings + _SYMBOL.unpack_from(image, at)[0]))
        if match is None:
            continue
        mangled = match[2][: int(match[1]) - len("__device_stub_")]
        plain = demangled(mangled.decode()).split("(")[0].encode()  # the name of an extern "C" kernel
        names.add((mangled if mangled in registered or plain not in registered else plain).decode())
    return frozenset(names)


def _span(section: tuple[int, int]) -> tuple[int, int]:
    return section[0], section[0] + section[1]


# ---- names -----------------------------------------------------------------------------------------------------------


def demangled(name: str) -> str:
    """Return a C++ name as the source and profilers write it. Return other names unchanged.

    >>> demangled("_Z3addPfPKfi"), demangled("fused_add_kernel")
    ('add(float*, float const*, int)', 'fused_add_kernel')
    """
    if not name.startswith("_Z"):
        return name
    library = _cpp_runtime()
    if library is None:
        return name
    status = ctypes.c_int()
    address = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not address:
        return name
    try:
        return ctypes.string_at(address).decode()
    finally:
        ctypes.CDLL(None).free(ctypes.c_void_p(address))


@functools.cache
def _cpp_runtime() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        library.__cxa_demangle.restype = ctypes.c_void_p
        library.__cxa_demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        return library
    except (OSError, AttributeError):
        return None


def spellings(name: str) -> tuple[str, ...]:
    """Return the names that a profile may use for a kernel: demangled, or mangled if the demangled name is too long.

    >>> spellings("_Z3addPfPKfi")
    ('_Z3addPfPKfi', 'add(float*, float const*, int)')
    """
    return tuple(dict.fromkeys((name, demangled(name))))
