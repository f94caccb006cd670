"""Starts a vLLM server with the flags that training needs, and ends it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernel_coder.rollout.vllm import server_side
from kernel_coder.run.errors import EngineFailed

STOP_S = 10.0
"""Time, in seconds, that a server has to end after SIGTERM before it gets SIGKILL."""

LOG_TAIL = 600
"""Upper limit, in characters, for the end of the server's log that an error quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The settings with which a server is started.

    Attributes:
        model: a folder with the model and its tokenizer, or a hub id.
        port: port on the loopback address.
        python: interpreter that has vLLM.
        gpus: as for CUDA_VISIBLE_DEVICES; the model is divided between several. None: no change.
        on_cpu: the server computes on the CPU.
        dtype: dtype of the computation, by torch's name.
        max_model_len: largest number of tokens of a sequence; None: the model's own limit. at_once: answers that are
            computed at the same time.
        backend: backend of the weight transfer.
        sleep: the server can free its GPU memory.
        args: further arguments of ``vllm serve``.
    """

    model: str
    port: int
    python: str = sys.executable
    gpus: str | None = None
    on_cpu: bool = False
    dtype: str = "auto"
    max_model_len: int | None = None
    at_once: int = 64
    backend: str = server_side.BACKEND
    sleep: bool = False
    args: Sequence[str] = ()


def command(options: ServeOptions, folder: Path) -> list[str]:
    """Return the server's command line. ``folder`` holds the copy of :mod:`server_side` and is made by
    :func:`prepare`."""
    found = [
        *(options.python, str(folder / f"{server_side.MODULE}.py"), "serve", options.model),
        *("--host", "127.0.0.1", "--port", str(options.port), "--served-model-name", "policy"),
        *("--dtype", options.dtype, "--max-num-seqs", str(options.at_once)),
        # Log-probs of the distribution that tokens are drawn from, and no sampling defaults from the model's folder.
        *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
        *("--weight-transfer-config", json.dumps({"backend": options.backend})),
        "--disable-uvicorn-access-log",
    ]
    if options.max_model_len is not None:
        found += ["--max-model-len", str(options.max_model_len)]
    if options.gpus is not None and (count := len(options.gpus.split(","))) > 1:
        found += ["--tensor-parallel-size", str(count)]
    if options.sleep:
        found.append("--enable-sleep-mode")
    if options.on_cpu:
        found.append("--enforce-eager")  # compilation takes a minute and gains nothing for small models
        # A prompt that is read in parts takes back a random number of its generator, which torch's cannot on a CPU.
        found.append("--no-enable-chunked-prefill")
    return [*found, *options.args]


def environment(options: ServeOptions, folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Return the server's environment variables."""
    paths = [str(folder), *([given["PYTHONPATH"]] if given.get("PYTHONPATH") else [])]
    found = {
        **given,
        "PYTHONPATH": os.pathsep.join(paths),
        "VLLM_SERVER_DEV_MODE": "1",  # the routes for new weights
        "VLLM_NO_USAGE_STATS": "1",
    }
    if options.backend == "ipc":
        found["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # memory handles are sent as pickles
    if options.gpus is not None:
        found["CUDA_VISIBLE_DEVICES"] = options.gpus
    if options.on_cpu:
        found.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; the default takes half of the machine's memory
    return found


def prepare(folder: Path) -> None:
    """Writes the folder from which the server's processes import: the module, and metadata that declares it as a
    plugin."""
    shutil.copy(server_side.__file__, folder / f"{server_side.MODULE}.py")
    made = folder / f"{server_side.MODULE}-1.dist-info"
    made.mkdir()
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {server_side.MODULE}\nVersion: 1\n")
    (made / "entry_points.txt").write_text(
        f"[vllm.general_plugins]\n{server_side.MODULE} = {server_side.MODULE}:register\n"
    )


@dataclass(slots=True, eq=False)
class VllmProcess:
    """A server that this process has started. It ends when this process ends, even if this process is killed.

    Attributes:
        options: how it is started.
        log: file for the server's output.
    """

    options: ServeOptions
    log: Path
    _process: subprocess.Popen[bytes] | None = None
    _folder: tempfile.TemporaryDirectory[str] | None = field(default=None)

    @property
    def url(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self.options.port}"

    def start(self) -> None:
        """Starts the server, without waiting until it is ready."""
        self.stop()
        self._folder = tempfile.TemporaryDirectory(prefix="kernel-coder-vllm-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        prepare(folder)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    command(self.options, folder),
                    env={**environment(self.options, folder, os.environ), "KC_END_WITH_PARENT": "1"},
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                raise EngineFailed(f"vLLM cannot be started with {self.options.python}: {error.strerror}") from None

    def check(self) -> None:
        """Raises :class:`EngineFailed` if the server has ended."""
        if self._process is None or self._process.poll() is not None:
            code = None if self._process is None else self._process.returncode
            raise EngineFailed(
                f"the vLLM server has ended with exit code {code}; the end of {self.log}: {self._tail()}"
            )

    def stop(self) -> None:
        """Ends the server and all of its processes."""
        process, self._process = self._process, None
        if process is not None:
            _signal_group(process.pid, signal.SIGTERM)
            deadline = time.monotonic() + STOP_S
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            _signal_group(process.pid, signal.SIGKILL)  # also workers that outlived the server
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _tail(self) -> str:
        try:
            return self.log.read_text(errors="replace")[-LOG_TAIL:].strip()
        except OSError:
            return "it is empty"


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
