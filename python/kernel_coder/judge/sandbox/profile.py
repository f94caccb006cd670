"""The layers of the sandbox, and which of them this machine has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kernel_coder.judge.sandbox.errors import SandboxError

LAYERS: dict[str, str] = {
    "session": "Linux 5.3 or newer",
    "descriptors": "Linux 5.3 or newer",
    "environment": "Linux 5.3 or newer",
    "no_new_privs": "Linux 3.5 or newer",
    "uid": "start the supervisor as root (it gives every runner a uid of its own), or in a container with CAP_SETUID",
    "user_namespace": (
        "unprivileged user namespaces: sysctl user.max_user_namespaces above 0, kernel.unprivileged_userns_clone=1 "
        "(Debian), kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu); in a container, a seccomp profile that "
        "allows unshare"
    ),
    "pid_namespace": "root with CAP_SYS_ADMIN, or unprivileged user namespaces",
    "net_namespace": "root with CAP_SYS_ADMIN, or unprivileged user namespaces",
    "ipc_namespace": "root with CAP_SYS_ADMIN, or unprivileged user namespaces",
    "mount_namespace": "root with CAP_SYS_ADMIN, or unprivileged user namespaces",
    "private_proc": "a pid and a mount namespace, and in a container a /proc that is not masked",
    "landlock": "Linux 5.13 or newer with CONFIG_SECURITY_LANDLOCK, and landlock among the kernel's lsm= modules",
    "landlock_network": "Linux 6.7 or newer with Landlock",
    "landlock_signals": "Linux 6.12 or newer with Landlock",
    "seccomp": "a kernel with CONFIG_SECCOMP_FILTER, on x86-64 or aarch64",
    "limits": "any Linux",
    "process_limit": "a runner that is not root: start as root so that uids can be dropped, or as an ordinary user",
    "kill_tree": "a pid namespace, a uid of its own, or a kernel with CONFIG_PROC_CHILDREN",
    "memory_cgroup": (
        "a writable control group: as root, or name a delegated empty directory of version 2 (systemd: Delegate=yes)"
    ),
    "sealed_buffers": "Linux 3.17 or newer",
}
"""Each layer, and what this machine needs to have it."""


class Layer(NamedTuple):
    """One layer on this machine. `detail` says what it does, or why it is missing."""

    name: str
    active: bool
    detail: str


@dataclass(frozen=True)
class SandboxProfile:
    """The state of all layers on this machine."""

    layers: tuple[Layer, ...]
    landlock_version: int = 0

    def __getitem__(self, name: str) -> Layer:
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(name)

    @property
    def active(self) -> frozenset[str]:
        """Names of the active layers."""
        return frozenset(layer.name for layer in self.layers if layer.active)

    def refuse_below(self, require: frozenset[str]) -> None:
        """Check that all required layers are active.

        Raises:
            SandboxError: some are not active. The message says for each why it is missing and how to get it.
            ValueError: a name is not that of a layer.
        """
        if unknown := require - LAYERS.keys():
            raise ValueError(f"require names layers that do not exist: {sorted(unknown)}; known: {sorted(LAYERS)}")
        missing = [layer for layer in self.layers if layer.name in require and not layer.active]
        if missing:
            named = "; ".join(f"{layer.name} ({layer.detail}) needs {LAYERS[layer.name]}" for layer in missing)
            raise SandboxError(f"untrusted code is not run here, since the sandbox lacks required layers: {named}")

    def as_dict(self) -> dict[str, str]:
        """Return each layer's state and detail as one text, for records."""
        return {name: f"{'active' if active else 'unavailable'}: {detail}" for name, active, detail in self.layers}

    def __str__(self) -> str:
        return "\n".join(f"{name:<17} {'active     ' if on else 'unavailable'}  {why}" for name, on, why in self.layers)
