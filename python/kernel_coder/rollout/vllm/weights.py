"""New weights for a vLLM server: the tensors, and the ways to send them."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from kernel_coder.policy.parts import causal_lm
from kernel_coder.rollout.vllm.server import VllmServer
from kernel_coder.run.errors import EngineFailed, UsageError

SHARED_MEMORY = Path("/dev/shm")
"""A folder in the machine's memory, so that the file with the weights is not written to a disk."""

BACKEND_OF_FILES = "kernel_coder_file"
"""Name under which :mod:`kernel_coder.rollout.vllm.server_side` registers its engine in vLLM."""


def weights_of(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and weights of a transformers model, as its checkpoint has them, in another dtype.

    LoRA adapters are added to the weights that they adapt. A tied head is included once, as the embedding. Shards of
    FSDP are gathered, so every process of a sharded run must iterate.
    """
    adapted = {}
    for name, layer in causal_lm(model).named_modules():
        if hasattr(layer, "get_delta_weight") and hasattr(layer, "base_layer"):
            adapted[f"{name}.base_layer.weight"] = layer
    with torch.no_grad():
        for name, parameter in causal_lm(model).named_parameters():
            if ".lora_" in name:
                continue
            whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter.detach()
            layer = adapted.get(name)
            if layer is not None:
                for adapter in layer.active_adapters:
                    if adapter in layer.lora_A:
                        whole = whole + layer.get_delta_weight(adapter).to(whole.dtype)
            yield name.replace(".base_layer.", "."), whole.to(dtype)


class Transfer(Protocol):
    """A way to send new weights to a server. :meth:`connect` is called once for each process of the server."""

    backend: str

    def connect(self) -> None: ...
    def send(self, version: str) -> None: ...
    def close(self) -> None: ...


class FileTransfer:
    """A safetensors file in this machine's memory, which the server reads. The server needs the engine of
    :mod:`kernel_coder.rollout.vllm.server_side`, which ``kernel-coder serve-model`` registers.

    Args:
        server: the server.
        model: the model whose weights are sent.
        dtype: of the weights that are sent.
    """

    backend = BACKEND_OF_FILES

    def __init__(self, server: VllmServer, model: nn.Module, dtype: torch.dtype) -> None:
        self.server, self.model, self.dtype = server, model, dtype

    def connect(self) -> None:
        """Tells the server that weights will come."""
        self.server.init_weight_transfer_engine({})

    def send(self, version: str) -> None:
        """Replaces the server's weights. If it raises, the server's weights are undefined."""
        from safetensors.torch import save_file

        tensors = {name: weight.contiguous().cpu() for name, weight in weights_of(self.model, self.dtype)}
        where = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="kernel-coder-weights-", dir=where) as folder:
            path = Path(folder) / "weights.safetensors"
            save_file(tensors, path)
            self.server.start_weight_update()
            self.server.update_weights({"path": str(path)})
            self.server.finish_weight_update(version)

    def close(self) -> None:
        """Does nothing, because nothing is open."""


class FactoryTransfer:
    """vLLM's own trainer-side engine: ``nccl`` between GPUs, ``ipc`` on one GPU. It needs vLLM in this environment.

    Args:
        backend: ``nccl`` or ``ipc``.
        server: the server.
        model: the model whose weights are sent.
        dtype: of the weights that are sent.

    Raises:
        UsageError: vLLM cannot be imported here.
    """

    def __init__(self, backend: str, server: VllmServer, model: nn.Module, dtype: torch.dtype) -> None:
        self.backend, self.server, self.model, self.dtype = backend, server, model, dtype
        self._vllm = _import_vllm(backend)
        self._engine: Any = None

    def connect(self) -> None:
        """Connects to the server's workers; for nccl this makes a communicator with them."""
        found = self._vllm
        if self.backend == "nccl":
            workers = self.server.http.get("/get_world_size", timeout_s=self.server.update_timeout_s)["world_size"]
            info = found["TrainerInitInfo"](
                master_address="127.0.0.1", master_port=free_port(), world_size=int(workers) + 1, packed=True, rank=0
            )
        else:
            info = found["TrainerInitInfo"](packed=True, rank=0)
        client = found["HTTPVLLMWeightSyncClient"](self.server.http.url, self.server.update_timeout_s)
        start = found["WeightTransferTrainerFactory"].trainer_init
        self._engine = self._within_time(lambda: start(info, client=client, source=self._source()))

    def send(self, version: str) -> None:
        """Replaces the server's weights. If it raises, the server's weights are undefined."""
        self._within_time(self._engine.send_weights)
        self.server.update_weight_version(version)

    def close(self) -> None:
        """Ends the communicator."""
        engine, self._engine = self._engine, None
        if engine is not None and hasattr(engine, "shutdown"):
            engine.shutdown()

    def _source(self) -> Any:
        """Return the weights in vLLM's form: their metadata, which needs no transfer, and the weights themselves."""
        found, model, dtype = self._vllm, self.model, self.dtype

        class Source(found["WeightSource"]):  # type: ignore[misc, name-defined, valid-type]
            def metadata(self) -> list[Any]:
                return [found["ParamMeta"](name, w.dtype, tuple(w.shape)) for name, w in weights_of(model, dtype)]

            def __iter__(self) -> Iterator[tuple[str, Tensor]]:
                return weights_of(model, dtype)

        return Source()

    def _within_time(self, work: Any) -> Any:
        """Does work that would block for ever if the server is lost, in a thread that is abandoned after the time
        limit."""
        outcome: list[Any] = []
        device = torch.cuda.current_device() if torch.cuda.is_available() else None

        def run() -> None:
            try:
                if device is not None:
                    torch.cuda.set_device(device)
                outcome.append((True, work()))
            except BaseException as error:
                outcome.append((False, error))

        thread = threading.Thread(target=run, daemon=True, name="weights")
        thread.start()
        thread.join(self.server.update_timeout_s)
        if not outcome:
            raise EngineFailed(f"{self.backend}: no end of a weight transfer in {self.server.update_timeout_s:g} s")
        is_done, value = outcome[0]
        if not is_done:
            raise value if isinstance(value, EngineFailed) else EngineFailed(f"{self.backend}: {value}") from value
        return value


def make_transfer(kind: str, server: VllmServer, model: nn.Module, dtype: torch.dtype) -> Transfer:
    """Return the transfer that ``vllm.transfer`` names.

    Raises:
        UsageError: it cannot work here.
    """
    if kind in ("auto", "file"):
        return FileTransfer(server, model, dtype)
    if next(model.parameters()).device.type != "cuda":
        raise UsageError(f"vllm.transfer {kind} moves weights between GPUs, and model.device is not cuda")
    return FactoryTransfer(kind, server, model, dtype)


def _import_vllm(backend: str) -> dict[str, Any]:
    """Return the classes of vLLM's trainer side."""
    try:
        from vllm.distributed.weight_transfer import base, clients, factory

        if backend == "nccl":
            from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo as TrainerInitInfo
        else:
            from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo as TrainerInitInfo
    except ImportError as error:
        raise UsageError(
            f"vllm.transfer {backend} needs vLLM 0.32 or newer in the trainer's environment ({error}); file needs none"
        ) from None
    return {
        "TrainerInitInfo": TrainerInitInfo,
        "ParamMeta": base.ParamMeta,
        "WeightSource": base.WeightSource,
        "HTTPVLLMWeightSyncClient": clients.HTTPVLLMWeightSyncClient,
        "WeightTransferTrainerFactory": factory.WeightTransferTrainerFactory,
    }


def free_port() -> int:
    """Return a port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
