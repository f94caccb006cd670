"""Tensors that are divided between ranks: makes whole copies of them, and checkpoints to which each rank writes its
part.

A checkpoint in parts has a folder ``shards`` with a safetensors file of each rank, written and read by
``torch.distributed.checkpoint``. Any number of ranks can read it, also a single process. It contains no pickle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from kernel_coder.run import distributed
from kernel_coder.run.hashes import sha256_file
from kernel_coder.run.optimizer import named_tensors, settings

SHARDS = "shards"
"""Folder of the parts in a checkpoint."""

WEIGHTS, OPTIMIZER = "model.", "optimizer."
"""Beginnings of the tensors' names in the parts."""


class Saveable(Protocol):
    """A model whose trainable weights a checkpoint holds."""

    def save_pretrained(self, folder: Path) -> None:
        """Writes the model, and all other files that are needed to use it, in Hugging Face's format."""

    def save_description(self, folder: Path) -> None:
        """Writes all files that are needed to use the model, except its weights."""

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the parameters that the optimiser updates, by name."""

    def whole(self) -> dict[str, Tensor]:
        """Return these parameters as whole tensors on rank 0."""


def whole(value: Tensor) -> Tensor:
    """Return the whole tensor on this rank's device. For a divided one every rank must call this at the same time."""
    from torch.distributed.tensor import DTensor

    return value.full_tensor() if isinstance(value, DTensor) else value


def local(value: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds."""
    from torch.distributed.tensor import DTensor

    return value.to_local() if isinstance(value, DTensor) else value


@torch.no_grad()
def whole_on_first(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return whole copies of these tensors on the CPU of rank 0, one tensor after the other; an empty dict on other
    ranks."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        value = whole(tensor.detach())
        if distributed.world().is_first:
            found[name] = value.cpu()
    return found


@torch.no_grad()
def like(value: Tensor, example: Tensor) -> Tensor:
    """Return a copy of a whole tensor, which all ranks have, in the form of the example: on its device, and divided
    like it.

    A tensor of another shape, such as the optimiser's number of steps, is not divided.
    """
    from torch.distributed.tensor import DTensor, distribute_tensor

    value = value.to(example.device, copy=True)
    if not isinstance(example, DTensor) or value.shape != example.shape:
        return value
    return distribute_tensor(value, example.device_mesh, example.placements, src_data_rank=None)


def is_divided(model: Saveable) -> bool:
    """Return whether the weights that training changes are divided between ranks."""
    from torch.distributed.tensor import DTensor

    return any(isinstance(parameter, DTensor) for parameter in model.trainable().values())


def holds_shards(checkpoint: Path) -> bool:
    """Return whether a checkpoint holds the model in parts."""
    return (checkpoint / SHARDS).is_dir()


def divided_state(model: Saveable, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the tensors of a checkpoint in parts, and the optimiser's single numbers, which are the same on all
    ranks."""
    tensors: dict[str, Tensor] = {f"{WEIGHTS}{name}": value.detach() for name, value in model.trainable().items()}
    numbers: dict[str, float] = {}
    for name, value in named_tensors(optimizer, model.trainable()).items():
        if value.dim():
            tensors[f"{OPTIMIZER}{name}"] = value
        else:
            numbers[name] = float(value)
    return tensors, numbers


class ShardWriting:
    """Writes a checkpoint in parts. The tensors are copied to the CPU at once, and written by a thread.

    Args:
        folder: the checkpoint's folder under its temporary name.
        model: owner of the weights.
        optimizer: the optimiser of these weights.
        complete: completes the checkpoint on rank 0, given further entries of ``state.json`` and the hashes of files.
    """

    def __init__(
        self,
        folder: Path,
        model: Saveable,
        optimizer: torch.optim.Optimizer,
        complete: Callable[[Mapping[str, Any], Mapping[str, str]], None],
    ) -> None:
        from torch.distributed.checkpoint import async_save
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

        tensors, numbers = divided_state(model, optimizer)
        self.folder, self.complete = folder, complete
        self.more = {"groups": settings(optimizer), "optimizer_numbers": numbers}
        writer = HuggingFaceStorageWriter(str(folder / SHARDS), save_distributed=True)
        self.saved: Any = async_save(tensors, storage_writer=writer, process_group=gloo_group())
        self.hashes: Future[dict[str, str]] = Future()
        Thread(target=self._hash, name="checkpoint", daemon=True).start()

    def _hash(self) -> None:
        """Waits until all ranks have written, then flushes and hashes the files of this rank."""
        try:
            self.saved.result()
            found = {}
            for path in sorted((self.folder / SHARDS).glob(f"shard-{distributed.world().rank + 1:05d}-*")):
                flush(path)
                found[path.relative_to(self.folder).as_posix()] = sha256_file(path)
            self.hashes.set_result(found)
        except BaseException as error:
            self.hashes.set_exception(error)

    def is_done(self) -> bool:
        """Return whether this rank has written and hashed its part."""
        return self.hashes.done()

    def finish(self) -> None:
        """Waits for all ranks, and gives the checkpoint its name. All ranks must call this together."""
        parts = distributed.gathered(self.hashes.result())
        if distributed.world().is_first:
            self.complete(self.more, {name: digest for part in parts for name, digest in part.items()})
        distributed.barrier()


def gloo_group() -> Any:
    """Return a process group for the thread that writes checkpoints, so that it does not disturb other
    communication."""
    import torch.distributed as dist

    global _group
    if _group is None or _group[0] is not dist.group.WORLD:
        _group = dist.group.WORLD, dist.new_group(backend="gloo")
    return _group[1]


_group: tuple[Any, Any] | None = None


@torch.no_grad()
def load_shards(checkpoint: Path, model: Saveable, optimizer: torch.optim.Optimizer) -> None:
    """Fills weights and a new optimiser from a checkpoint in parts. All ranks must call this together."""
    from torch.distributed.checkpoint import load
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    numbers = json.loads((checkpoint / "state.json").read_text())["optimizer_numbers"]
    reader = HuggingFaceStorageReader(str(checkpoint / SHARDS))
    stored = reader.read_metadata().state_dict_metadata
    parameters = model.trainable()
    tensors: dict[str, Any] = {f"{WEIGHTS}{name}": value.detach() for name, value in parameters.items()}
    for name, parameter in parameters.items():
        begin = f"{OPTIMIZER}{name}."
        keys = [key.removeprefix(begin) for key in stored if key.startswith(begin)]
        state: dict[str, Tensor] = {
            key: torch.zeros_like(parameter, dtype=stored[begin + key].properties.dtype).detach()  # type: ignore[union-attr]
            for key in keys
            if "." not in key
        }
        tensors |= {begin + key: value for key, value in state.items()}
        state |= {
            key.removeprefix(f"{name}."): torch.tensor(value, device=parameter.device)
            for key, value in numbers.items()
            if key.startswith(f"{name}.") and "." not in key.removeprefix(f"{name}.")
        }
        if state:
            optimizer.state[parameter] = state
    load(tensors, storage_reader=reader, no_dist=distributed.world().is_alone)


def flush(path: Path) -> None:
    """Waits until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
