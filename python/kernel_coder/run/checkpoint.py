"""Checkpoints that are whole or absent, and that say so themselves.

A checkpoint is a Hugging Face model folder (``from_pretrained`` works on it) with ``optimizer.safetensors``,
``rng.safetensors``, ``state.json`` and, written last, ``manifest.json``: size and SHA-256 of every other file. It is
written under a temporary name, flushed to the disk, and renamed. Nothing in it is a pickle, and one that holds a pickle
is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kernel_coder.policy.model import Policy
from kernel_coder.train.curriculum import Progress

MANIFEST = "manifest.json"
FORMAT = 1
PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npy", ".npz", ".joblib", ".dill"})
_NAME = re.compile(r"checkpoint-(\d+)")


class CheckpointError(ValueError):
    """Why a checkpoint cannot be used, in one sentence."""


@dataclass(frozen=True, slots=True)
class TrainState:
    """Where a run stands, beside its tensors."""

    step: int  # finished steps
    update: int  # attempted updates: the position of the learning-rate schedule
    skipped: int
    skipped_in_a_row: int
    trained_tokens: int
    best: dict[str, float]
    config_hash: str
    data_fingerprint: str
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True, slots=True)
class RngState:
    """The random state of python, numpy and torch: custom rewards and dropout draw from them."""

    tensors: dict[str, Tensor]
    python: Any
    numpy: Any


def seed_rng(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def capture_rng() -> RngState:
    tensors = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        tensors |= {f"cuda.{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return RngState(tensors, random.getstate(), [name, np.asarray(keys).tolist(), position, has_gauss, gauss])


def restore_rng(state: RngState) -> None:
    torch.set_rng_state(state.tensors["cpu"])
    for index in range(torch.cuda.device_count()):
        if f"cuda.{index}" in state.tensors:
            torch.cuda.set_rng_state(state.tensors[f"cuda.{index}"], index)
    version, internal, gauss = state.python
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = state.numpy
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))


def save_checkpoint(
    run_dir: Path, policy: Policy, optimizer: torch.optim.Optimizer, state: TrainState, rng: RngState, *, keep: int
) -> Path:
    """Writes ``run_dir/checkpoint-<step>`` in one piece and removes all but the newest ``keep``."""
    final = run_dir / f"checkpoint-{state.step:08d}"
    temporary = run_dir / f".{final.name}.tmp-{os.getpid()}"
    for stale in (*run_dir.glob(".checkpoint-*.tmp-*"), *([final] if final.exists() else [])):
        shutil.rmtree(stale)
    temporary.mkdir(parents=True)
    policy.model.save_pretrained(temporary)  # type: ignore[operator]
    policy.tokenizer.save_pretrained(temporary)
    tensors, groups = optimizer_tensors(optimizer, policy)
    save_file(tensors, temporary / "optimizer.safetensors")
    save_file(rng.tensors, temporary / "rng.safetensors")
    record = {"format": FORMAT, "state": asdict(state), "groups": groups, "python": rng.python, "numpy": rng.numpy}
    (temporary / "state.json").write_text(json.dumps(record))
    files = {path.relative_to(temporary).as_posix(): path for path in sorted(temporary.rglob("*")) if path.is_file()}
    manifest = {name: {"size": path.stat().st_size, "sha256": sha256(path)} for name, path in files.items()}
    (temporary / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": manifest}, indent=1))
    for path in (*files.values(), temporary / MANIFEST, temporary):
        _flush(path)
    os.rename(temporary, final)
    _flush(run_dir)
    for old in list_checkpoints(run_dir)[keep:]:
        shutil.rmtree(old)
    return final


def list_checkpoints(run_dir: Path) -> list[Path]:
    """Newest first, valid or not."""
    found = [path for path in run_dir.glob("checkpoint-*") if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)


def remove_checkpoints_after(run_dir: Path, step: int) -> None:
    """Removes what a run that goes on from ``step`` has left behind: checkpoints that were refused or are abandoned."""
    for path in list_checkpoints(run_dir):
        if int(path.name.rpartition("-")[2]) > step:
            shutil.rmtree(path)


def newest_valid(run_dir: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that passes :func:`verify`, and a sentence for each newer one that does not."""
    refused: list[str] = []
    for path in list_checkpoints(run_dir):
        try:
            verify(path)
        except CheckpointError as error:
            refused.append(f"refused {path.name}: {error}")
        else:
            return path, refused
    return None, refused


def verify(path: Path) -> None:
    """Raises :class:`CheckpointError` unless every file is listed, has its size and hash, and is no pickle."""
    present = {file.relative_to(path).as_posix() for file in path.rglob("*") if not file.is_dir()}
    for name in sorted(present):
        if Path(name).suffix.lower() in PICKLES:
            raise CheckpointError(
                f"{name} may be a pickle, which can run code when loaded; only safetensors and JSON are read"
            )
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        listed = {name: (int(entry["size"]), str(entry["sha256"])) for name, entry in manifest["files"].items()}
    except FileNotFoundError:
        raise CheckpointError(f"it has no {MANIFEST}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"its {MANIFEST} cannot be read") from None
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"its format is {manifest.get('format')}, and this version reads format {FORMAT}")
    if extra := sorted(present - set(listed) - {MANIFEST}):
        raise CheckpointError(f"{extra[0]} is not in its {MANIFEST}")
    for name, (size, digest) in listed.items():
        file = path / name
        if name not in present or file.is_symlink():
            raise CheckpointError(f"{name} is missing")
        if file.stat().st_size != size:
            raise CheckpointError(f"{name} has {file.stat().st_size} bytes instead of {size}")
        if sha256(file) != digest:
            raise CheckpointError(f"{name} was changed: its SHA-256 is not the one in the {MANIFEST}")


def load_state(path: Path) -> tuple[TrainState, RngState, list[dict[str, Any]]]:
    """Everything but the model and the optimiser's tensors, from a verified checkpoint."""
    record = json.loads((path / "state.json").read_text())
    state = {**record["state"], "progress": Progress(**record["state"].get("progress", {}))}
    rng = RngState(load_file(path / "rng.safetensors"), record["python"], record["numpy"])
    return TrainState(**state), rng, record["groups"]


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, policy: Policy
) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The optimiser's state by parameter name, and its groups' numbers."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in policy.trainable().items()}
    tensors = {
        f"{names[parameter]}.{key}": value.contiguous()
        for parameter, values in optimizer.state.items()
        for key, value in values.items()
        if isinstance(value, Tensor)
    }
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return tensors, groups


def load_optimizer(path: Path, optimizer: torch.optim.Optimizer, policy: Policy, groups: list[dict[str, Any]]) -> None:
    tensors = load_file(path / "optimizer.safetensors")
    for name, parameter in policy.trainable().items():
        prefix = f"{name}."
        state = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        state = {key: value for key, value in state.items() if "." not in key}
        if state:
            optimizer.state[parameter] = {key: value.to(parameter.device, copy=True) for key, value in state.items()}
    for group, numbers in zip(optimizer.param_groups, groups, strict=True):
        group.update({key: tuple(value) if isinstance(value, list) else value for key, value in numbers.items()})


def weights_hash(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(
            value.view(torch.uint8).numpy().tobytes()
            if value.dim()
            else value[None].view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
