"""What Triton compiles in every process that starts it, whatever its kernels are: made once, for all Runners.

Triton builds a C module around the driver's functions with the machine's C compiler, and keeps it in its cache. Every
Runner begins with an empty cache of its own, since a cache that candidates share is one that they can write to; so it
is given a copy of that module, which a process of the judge's own has made.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping

LOG = logging.getLogger(__name__)

VARIABLE = "KC_TRITON_DRIVER"
"""Environment variable that names the folder to a Runner."""

BUILD = "from triton.runtime import driver; driver.active.get_current_device()"
PATIENCE_S = 120.0


class DriverModule:
    """A folder with Triton's driver module in it as soon as it is built, which a thread sees to.

    Args:
        environment: of the process that builds it.
        build: what that process runs.
    """

    def __init__(self, environment: Mapping[str, str], build: str = BUILD) -> None:
        self.folder = tempfile.mkdtemp(prefix="kernel_coder-triton-")
        os.chmod(self.folder, 0o755)  # Runners are other users
        self._environment, self._build = dict(environment), build
        self._process: subprocess.Popen[str] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._make, daemon=True)
        self._thread.start()

    def _make(self) -> None:
        with tempfile.TemporaryDirectory() as cache:
            known = {name: os.environ[name] for name in ("PYTHONPATH", "HOME") if name in os.environ}
            environment = {**known, **self._environment, "TRITON_CACHE_DIR": cache}
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", self._build],
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                if self._closed.is_set():
                    self._process.kill()
                _, told = self._process.communicate(timeout=PATIENCE_S)
            except (OSError, subprocess.SubprocessError) as error:
                LOG.warning("Triton's driver module is built by every Runner: %s", error)
                self._stop()
                return
            if self._process.returncode:
                LOG.info("Triton's driver module is built by every Runner: %s", told.strip()[-300:])
                return
            made = os.path.join(self.folder, "part")
            shutil.copytree(cache, made)
            for folder, _, files in os.walk(made):
                os.chmod(folder, 0o755)
                for name in files:
                    os.chmod(os.path.join(folder, name), 0o644)
            os.rename(made, os.path.join(self.folder, "cache"))

    def _stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def wait(self) -> bool:
        """Until it is built, or cannot be; whether it is."""
        self._thread.join()
        return os.path.isdir(os.path.join(self.folder, "cache"))

    def close(self) -> None:
        """Nothing is left of it."""
        self._closed.set()
        self._stop()
        self._thread.join()
        shutil.rmtree(self.folder, ignore_errors=True)


def begin_with_driver_module(cache_dir: str) -> None:
    """In a Runner: begin its cache with a copy, if there is one."""
    source = os.path.join(os.environ.get(VARIABLE, ""), "cache")
    if os.path.isdir(source):
        shutil.copytree(source, cache_dir, dirs_exist_ok=True, copy_function=shutil.copyfile)
