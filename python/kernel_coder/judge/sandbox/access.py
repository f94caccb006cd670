"""The files that sandboxed processes may open."""

from __future__ import annotations

import importlib.util
import os
import stat
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kernel_coder.judge.sandbox.config import SandboxConfig

_PACKAGE = Path(__file__).parents[2]  # kernel_coder
PACKAGE_DATA = str(_PACKAGE / "data")

_SYSTEM_PATHS = (
    *("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/sys"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime"),
    *("/etc/nsswitch.conf", "/etc/ssl/openssl.cnf", "/etc/nvidia"),
)
PLAIN_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


class Access(NamedTuple):
    """The paths that one configuration makes readable.

    Attributes:
        readable: real paths, of which none is inside another.
        closed: each directory that other users cannot enter, with the readable paths inside it. A process with its own
            uid reaches them only in a mount namespace.
    """

    readable: list[str]
    closed: dict[str, list[str]]

    @classmethod
    def of(cls, config: SandboxConfig) -> Access:
        """Return the paths of the system, of this Python and of the configuration."""
        readable = _outermost([*_SYSTEM_PATHS, *_python_paths(), *config.readable])
        closed: dict[str, list[str]] = {}
        for path in readable:
            if (ancestor := _closed_ancestor(path)) is not None and os.path.isdir(path):
                closed.setdefault(ancestor, []).append(path)
        return cls(readable, closed)


def gpu_device_nodes(index: int) -> list[str]:
    """Return the device nodes of one NVIDIA GPU, and those that all GPUs share."""
    shared = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia-caps")
    return [f"/dev/nvidia{index}", *shared]


def _python_paths() -> list[str]:
    """Return this interpreter, its library, its packages, this package, and the folders of torch, numpy and triton.

    Those three may be outside the interpreter's own folders: in another environment that a ``.pth`` file or PYTHONPATH
    names, or in the folder of Ray's ``runtime_env``. Their folder also contains what they import. Nothing else of
    PYTHONPATH can be read, and never the current directory.
    """
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    paths = [sys.prefix, sys.base_prefix, *(sysconfig.get_path(name) for name in names)]
    paths += [folder for name in ("torch", "numpy", "triton") if (folder := _folder_of(name)) is not None]
    return [*paths, str(_PACKAGE), os.path.dirname(os.path.realpath(sys.executable))]


def _folder_of(package: str) -> str | None:
    """Return the folder that contains a package; None if it is not installed or is in the current directory."""
    try:
        spec = importlib.util.find_spec(package)
    except ImportError:
        return None
    if spec is None or spec.origin is None:
        return None
    folder = os.path.realpath(os.path.dirname(os.path.dirname(spec.origin)))
    return None if folder == os.getcwd() else folder


def _outermost(paths: Sequence[str]) -> list[str]:
    """Return the real paths that exist, without those inside another."""
    real = sorted({os.path.realpath(path) for path in paths if os.path.exists(path)})
    return [path for path in real if not any(path != other and _is_inside(path, other) for other in real)]


def _is_inside(path: str, directory: str) -> bool:
    return os.path.commonpath([path, directory]) == directory


def _closed_ancestor(path: str) -> str | None:
    """Return the outermost directory above `path` that other users cannot enter, such as /root, or None."""
    for ancestor in reversed(Path(path).parents):
        if not os.stat(ancestor).st_mode & stat.S_IXOTH:
            return str(ancestor)
    return None
