"""A real judge behind the HTTP service, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx

FLAGS = ("--workers", "1", "--checks", "1", "--timing", "false", "--null-candidates", "false")


@contextlib.contextmanager
def judge_served(*flags: str) -> Iterator[str]:
    """The address of ``kernel-coder serve`` on the CPU."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    environment = {name: value for name, value in os.environ.items() if name != "KERNEL_CODER_TOKEN"}
    command = [sys.executable, "-m", "kernel_coder.serve", "--backend", "triton", "--port", str(port)]
    process = subprocess.Popen([*command, *(flags or FLAGS)], env=environment)
    try:
        until = time.monotonic() + 180
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                    break
            assert process.poll() is None, "the service ended"
            assert time.monotonic() < until, "the service did not start"
            time.sleep(0.2)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
