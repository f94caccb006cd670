"""Checkpoints that are either complete or absent, with hashes to verify them.

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
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kernel_coder.run import distributed
from kernel_coder.run.errors import UsageError
from kernel_coder.run.hashes import sha256_file
from kernel_coder.run.optimizer import named_tensors, set_groups, settings
from kernel_coder.run.rng import RngState, capture_rng
from kernel_coder.run.shards import (
    Saveable as Saveable,  # the kinds of runs import it from here
)
from kernel_coder.run.shards import (
    ShardWriting,
    flush,
    holds_shards,
    is_divided,
    like,
    load_shards,
    whole_on_first,
)

MANIFEST = "manifest.json"
FORMAT = 1
PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npy", ".npz", ".joblib", ".dill"})
_NAME = re.compile(r"checkpoint-(\d+)")


class CheckpointError(ValueError):
    """A checkpoint cannot be used. The message is one sentence with the reason."""


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
        """Return the state before the first step."""
        return cls(0, 0, 0, 0, 0, config_hash, data_fingerprint)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the state that :func:`save_checkpoint` wrote. Fields that this version does not have are ignored.

        Version 0.1.0 also wrote ``best``, which was always empty.
        """
        try:
            return cls(**{field.name: values[field.name] for field in fields(cls)})
        except KeyError as error:
            raise CheckpointError(f"its state.json has no field {error.args[0]}") from None


State = TypeVar("State", bound=RunState)


class Writing(Protocol):
    """A checkpoint that is being written."""

    def is_done(self) -> bool:
        """Return whether this rank has written its part."""

    def finish(self) -> None:
        """Waits for all ranks, and gives the checkpoint its name. All ranks must call this together."""


def save_checkpoint(
    run_dir: Path,
    model: Saveable,
    optimizer: torch.optim.Optimizer,
    state: RunState,
    rng: RngState,
    *,
    keep: int,
    whole: bool = True,
) -> Writing | None:
    """Writes ``run_dir/checkpoint-<step>`` atomically and deletes all but the newest ``keep`` checkpoints.

    All ranks must call this at the same time. Rank 0 writes a whole checkpoint, and it is complete on return. If
    weights are divided and ``whole`` is false, each rank writes its own part (:mod:`kernel_coder.run.shards`), and the
    checkpoint is complete after :meth:`Writing.finish` of the returned object.
    """
    world = distributed.world()
    final = run_dir / f"checkpoint-{state.step:08d}"
    temporary = run_dir / f".{final.name}.tmp-{distributed.from_first(os.getpid)}"
    if world.is_first:
        for stale in (*run_dir.glob(".checkpoint-*.tmp-*"), *([final] if final.exists() else [])):
            shutil.rmtree(stale)
        temporary.mkdir(parents=True)
    divided = is_divided(model)
    record = {"format": FORMAT, "state": asdict(state), "python": rng.python, "numpy": rng.numpy}
    if divided and not whole:
        distributed.barrier()  # the folder exists
        if world.is_first:
            model.save_description(temporary)
            save_file(rng.tensors, temporary / "rng.safetensors")
        return ShardWriting(temporary, model, optimizer, partial(_complete, run_dir, temporary, final, record, keep))
    if divided or world.is_first:  # without divided weights, saving needs no other rank
        model.save_pretrained(temporary)
        tensors, groups = optimizer_tensors(optimizer, model)
    if world.is_first:
        save_file(tensors, temporary / "optimizer.safetensors")
        save_file(rng.tensors, temporary / "rng.safetensors")
        _complete(run_dir, temporary, final, record, keep, {"groups": groups}, {})
    distributed.barrier()
    return None


def _complete(
    run_dir: Path,
    temporary: Path,
    final: Path,
    record: Mapping[str, Any],
    keep: int,
    more: Mapping[str, Any],
    hashes: Mapping[str, str],
) -> None:
    """Writes the state and the manifest, flushes everything to the disk, renames the folder, and deletes old ones.

    Args:
        run_dir: the run's folder.
        temporary: the checkpoint's folder under its temporary name.
        final: its name from now on.
        record: content of ``state.json``.
        keep: number of checkpoints to keep.
        more: further entries of ``state.json``.
        hashes: SHA-256 of files that are already known and flushed, by name.
    """
    (temporary / "state.json").write_text(json.dumps({**record, **more}))
    files = {path.relative_to(temporary).as_posix(): path for path in sorted(temporary.rglob("*")) if path.is_file()}
    manifest = {
        name: {"size": path.stat().st_size, "sha256": hashes.get(name) or sha256_file(path)}
        for name, path in files.items()
    }
    (temporary / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": manifest}, indent=1))
    folders = [path for path in temporary.rglob("*") if path.is_dir()]
    for path in (
        *(path for name, path in files.items() if name not in hashes),
        temporary / MANIFEST,
        *folders,
        temporary,
    ):
        flush(path)
    os.rename(temporary, final)
    flush(run_dir)
    for old in list_checkpoints(run_dir)[keep:]:
        shutil.rmtree(old)


def list_checkpoints(run_dir: Path) -> list[Path]:
    """Return all checkpoints of a run folder, the newest first, whether or not they are valid."""
    found = [path for path in run_dir.glob("checkpoint-*") if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted(found, key=_step_of, reverse=True)


def remove_checkpoints_after(run_dir: Path, step: int) -> None:
    """Deletes the checkpoints of later steps, because the run continues from ``step``."""
    for path in list_checkpoints(run_dir):
        if _step_of(path) > step:
            shutil.rmtree(path)


def newest_valid(run_dir: Path) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint that passes :func:`verify`, and a sentence for each newer one that does not."""
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
    """Return the state, the random state, and the optimiser's settings of each parameter group, from a verified
    checkpoint."""
    record = json.loads((path / "state.json").read_text())
    rng = RngState(load_file(path / "rng.safetensors"), record["python"], record["numpy"])
    return kind.from_json(record["state"]), rng, record["groups"]


def start_or_resume(
    path: Path | None, start: State, model: Saveable, optimizer: torch.optim.Optimizer, data: str
) -> tuple[State, RngState, list[str]]:
    """Return the state and random state that a run begins with. On resume, the optimiser is filled from the checkpoint.

    Args:
        path: a verified checkpoint. If it holds the model in one piece, the model was already loaded from it; if it
            holds it in parts, its weights are filled here. None: a new run.
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
    if holds_shards(path):
        load_shards(path, model, optimizer)
        set_groups(optimizer, groups)
    else:
        load_optimizer(path, optimizer, model, groups)
    return replace(saved, config_hash=start.config_hash), rng, []


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, model: Saveable
) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Return the optimiser's tensors, named ``<parameter>.<key>``, and the settings of each parameter group.

    If they are divided, all ranks must call this at the same time, and only rank 0 gets them.
    """
    tensors = named_tensors(optimizer, model.trainable())
    if is_divided(model):
        tensors = whole_on_first(tensors)
    return {name: value.contiguous() for name, value in tensors.items()}, settings(optimizer)


def load_optimizer(path: Path, optimizer: torch.optim.Optimizer, model: Saveable, groups: list[dict[str, Any]]) -> None:
    """Fills a new optimiser with a checkpoint's tensors and settings, on the devices of the parameters.

    If these are divided between ranks, so are the tensors.
    """
    tensors = load_file(path / "optimizer.safetensors")
    for name, parameter in model.trainable().items():
        prefix = f"{name}."
        state = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        state = {key: value for key, value in state.items() if "." not in key}
        if state:
            optimizer.state[parameter] = {key: like(value, parameter) for key, value in state.items()}
    set_groups(optimizer, groups)


def _step_of(path: Path) -> int:
    return int(path.name.rpartition("-")[2])
