"""Checkpoints that are either complete or absent, and that can prove it.

A checkpoint is a Hugging Face model folder (``from_pretrained`` works on it) with ``optimizer.safetensors``,
``rng.safetensors``, ``state.json`` and ``manifest.json``. The manifest is written last and holds the size and SHA-256
of every other file. The folder is written under a temporary name, flushed to disk, and renamed. It contains no pickle,
and a checkpoint with one is refused, because loading a pickle can run code.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kernel_coder.run.errors import UsageError
from kernel_coder.run.hashes import sha256_file
from kernel_coder.run.rng import RngState, capture_rng

MANIFEST = "manifest.json"
FORMAT = 1
PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npy", ".npz", ".joblib", ".dill"})
_NAME = re.compile(r"checkpoint-(\d+)")


class CheckpointError(ValueError):
    """Why a checkpoint cannot be used, in one sentence."""


@dataclass(frozen=True, slots=True)
class RunState:
    """How far a run has come, without its tensors. A kind of run that must remember more derives its own class."""

    step: int  # finished steps
    update: int  # attempted updates: the position in the learning-rate schedule
    skipped: int  # updates that were skipped
    skipped_in_a_row: int  # of these, since the last update that was taken
    trained_tokens: int
    config_hash: str
    data_fingerprint: str

    @classmethod
    def start(cls, config_hash: str, data_fingerprint: str) -> Self:
        """The state before the first step."""
        return cls(0, 0, 0, 0, 0, config_hash, data_fingerprint)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The state that :func:`save_checkpoint` wrote. Fields that this version does not have are ignored.

        Version 0.1.0 also wrote ``best``, which was always empty.
        """
        try:
            return cls(**{field.name: values[field.name] for field in fields(cls)})
        except KeyError as error:
            raise CheckpointError(f"its state.json has no field {error.args[0]}") from None


State = TypeVar("State", bound=RunState)


class Saveable(Protocol):
    """A model whose trainable weights a checkpoint holds."""

    def save_pretrained(self, folder: Path) -> None:
        """Writes the model, and whatever is needed to use it, in Hugging Face's format."""

    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that the optimiser updates, by name."""


def save_checkpoint(
    run_dir: Path, model: Saveable, optimizer: torch.optim.Optimizer, state: RunState, rng: RngState, *, keep: int
) -> Path:
    """Writes ``run_dir/checkpoint-<step>`` atomically and deletes all but the newest ``keep`` checkpoints."""
    final = run_dir / f"checkpoint-{state.step:08d}"
    temporary = run_dir / f".{final.name}.tmp-{os.getpid()}"
    for stale in (*run_dir.glob(".checkpoint-*.tmp-*"), *([final] if final.exists() else [])):
        shutil.rmtree(stale)
    temporary.mkdir(parents=True)
    model.save_pretrained(temporary)
    tensors, groups = optimizer_tensors(optimizer, model)
    save_file(tensors, temporary / "optimizer.safetensors")
    save_file(rng.tensors, temporary / "rng.safetensors")
    record = {"format": FORMAT, "state": asdict(state), "groups": groups, "python": rng.python, "numpy": rng.numpy}
    (temporary / "state.json").write_text(json.dumps(record))
    files = {path.relative_to(temporary).as_posix(): path for path in sorted(temporary.rglob("*")) if path.is_file()}
    manifest = {name: {"size": path.stat().st_size, "sha256": sha256_file(path)} for name, path in files.items()}
    (temporary / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": manifest}, indent=1))
    for path in (*files.values(), temporary / MANIFEST, temporary):
        _flush(path)
    os.rename(temporary, final)
    _flush(run_dir)
    for old in list_checkpoints(run_dir)[keep:]:
        shutil.rmtree(old)
    return final


def list_checkpoints(run_dir: Path) -> list[Path]:
    """All checkpoints of a run folder, the newest first, whether or not they are valid."""
    found = [path for path in run_dir.glob("checkpoint-*") if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted(found, key=_step_of, reverse=True)


def remove_checkpoints_after(run_dir: Path, step: int) -> None:
    """Deletes later checkpoints, which a run that continues from ``step`` refused or abandons."""
    for path in list_checkpoints(run_dir):
        if _step_of(path) > step:
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
    """Checks that the manifest lists every file with its size and hash, and that no file is a pickle.

    Raises:
        CheckpointError: the checkpoint is incomplete, changed, or of another format.
    """
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
        if sha256_file(file) != digest:
            raise CheckpointError(f"{name} was changed: its SHA-256 is not the one in the {MANIFEST}")


def load_state(path: Path, kind: type[State]) -> tuple[State, RngState, list[dict[str, Any]]]:
    """The state, the random state, and the optimiser's settings of each parameter group, from a verified checkpoint."""
    record = json.loads((path / "state.json").read_text())
    rng = RngState(load_file(path / "rng.safetensors"), record["python"], record["numpy"])
    return kind.from_json(record["state"]), rng, record["groups"]


def start_or_resume(
    path: Path | None, start: State, model: Saveable, optimizer: torch.optim.Optimizer, data: str
) -> tuple[State, RngState, list[str]]:
    """The state and random state that a run begins with. On resume, the optimiser is filled from the checkpoint.

    Args:
        path: a verified checkpoint, from which the model was already loaded. None: a new run.
        start: the state that a new run with the present config and data begins with.
        model: owner of the parameters that the optimiser updates.
        optimizer: a new optimiser over them.
        data: name of the data, for the error message.

    Returns:
        The state, the random state, and notes for the user.

    Raises:
        UsageError: the checkpoint was trained on other data, or its state is of another version.
    """
    if path is None:
        return start, capture_rng(), []
    try:
        saved, rng, groups = load_state(path, type(start))
    except CheckpointError as error:
        raise UsageError(f"checkpoint {path} is refused: {error}") from None
    if saved.data_fingerprint != start.data_fingerprint:
        raise UsageError(f"{data} is not the data that {path.name} was trained on; resume needs the same rows")
    load_optimizer(path, optimizer, model, groups)
    return replace(saved, config_hash=start.config_hash), rng, []


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, model: Saveable
) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The optimiser's tensors, named ``<parameter>.<key>``, and the settings of each parameter group."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.trainable().items()}
    tensors = {
        f"{names[parameter]}.{key}": value.contiguous()
        for parameter, values in optimizer.state.items()
        for key, value in values.items()
        if isinstance(value, Tensor)
    }
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return tensors, groups


def load_optimizer(path: Path, optimizer: torch.optim.Optimizer, model: Saveable, groups: list[dict[str, Any]]) -> None:
    """Fills a new optimiser with a checkpoint's tensors and settings, on the devices of the parameters."""
    tensors = load_file(path / "optimizer.safetensors")
    for name, parameter in model.trainable().items():
        prefix = f"{name}."
        state = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        state = {key: value for key, value in state.items() if "." not in key}
        if state:
            optimizer.state[parameter] = {key: value.to(parameter.device, copy=True) for key, value in state.items()}
    for group, numbers in zip(optimizer.param_groups, groups, strict=True):
        group.update({key: tuple(value) if isinstance(value, list) else value for key, value in numbers.items()})


def _step_of(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _flush(path: Path) -> None:
    """Waits until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
