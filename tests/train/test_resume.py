"""A run that was killed, stopped or damaged resumes from its last intact checkpoint and ends with the same bits."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from kernel_coder.run import checkpoint
from kernel_coder.run.checkpoint import CheckpointError, list_checkpoints, verify
from kernel_coder.run.errors import EXIT_STOPPED, StopRequested
from kernel_coder.run.signals import listening
from kernel_coder.train.__main__ import main
from kernel_coder.train.curriculum import TrainState
from kill_trials import LONG_RUN, finish, processes, run, trial
from safetensors.torch import load_file
from tiny_run import flags, records, summary, timeless
from transformers import AutoModelForCausalLM, AutoTokenizer


@pytest.fixture(scope="module")
def straight(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "straight"
    assert finish(flags(tasks, run_dir, **LONG_RUN)) == 0
    return run_dir


@pytest.fixture(scope="module")
def finished(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with two checkpoints. A test that changes the folder copies it first."""
    run_dir = tmp_path_factory.mktemp("runs") / "finished"
    assert main(flags(tasks, run_dir, run__save_steps=2, run__save_total_limit=2)) == 0
    return run_dir


@pytest.mark.parametrize("seed", range(3))
def test_killed_and_resumed_run_ends_like_an_uninterrupted_run(
    tasks: Path, straight: Path, tmp_path: Path, seed: int
) -> None:
    trial(tasks, straight, tmp_path / "run", seed)


def test_uninterrupted_run_has_gradients_and_varied_rewards(straight: Path) -> None:
    """Without this test, the comparisons above would also pass for a run that does nothing."""
    assert summary(straight)["skipped_updates"] == 0
    assert all(record["grad_norm"] > 0 for record in records(straight / "metrics.jsonl"))
    assert len({record["reward"] for record in records(straight / "metrics.jsonl")}) > 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_a_checkpoint_and_ends_with_its_own_exit_code(
    tasks: Path, straight: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run_dir = tmp_path / "run"
    process = processes().Process(target=run, args=(flags(tasks, run_dir, **LONG_RUN),))
    process.start()
    while not (run_dir / "metrics.jsonl").exists() or not (run_dir / "metrics.jsonl").read_bytes():
        time.sleep(0.002)
    os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode == EXIT_STOPPED
    assert summary(run_dir)["status"] == "stopped"
    verify(list_checkpoints(run_dir)[0])
    assert finish([*flags(tasks, run_dir, **LONG_RUN), "--resume"]) == 0
    assert summary(run_dir)["weights_sha256"] == summary(straight)["weights_sha256"]
    assert timeless(run_dir) == timeless(straight)


def flip_a_byte(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def truncate_a_shard(folder: Path) -> None:
    file = folder / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def add_a_pickle(folder: Path) -> None:
    (folder / "optimizer.pt").write_bytes(pickle.dumps({"step": 1}))


def put_a_pickle_in_the_manifest(folder: Path) -> None:
    add_a_pickle(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["optimizer.pt"] = {"size": 1, "sha256": ""}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def remove_the_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def remove_a_file(folder: Path) -> None:
    (folder / "state.json").unlink()


DAMAGES = {
    flip_a_byte: "model.safetensors was changed",
    truncate_a_shard: "optimizer.safetensors has",
    add_a_pickle: "optimizer.pt may be a pickle",
    put_a_pickle_in_the_manifest: "optimizer.pt may be a pickle",
    remove_the_manifest: "it has no manifest.json",
    remove_a_file: "state.json is missing",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_checkpoint_is_refused_and_the_previous_one_used(
    tasks: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: object
) -> None:
    run_dir = shutil.copytree(finished, tmp_path / "run")
    arguments = flags(tasks, run_dir, run__save_steps=2, run__save_total_limit=2)
    whole, metrics = summary(run_dir)["weights_sha256"], timeless(run_dir)
    newest, previous = list_checkpoints(run_dir)
    damage(newest)  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=DAMAGES[damage]):  # type: ignore[index]
        verify(newest)
    capsys.readouterr()
    assert main([*arguments, "--resume"]) == 0
    said = capsys.readouterr().out
    assert f"refused {newest.name}: {DAMAGES[damage]}" in said  # type: ignore[index]
    assert f"resuming from {previous.name}" in said
    assert summary(run_dir)["weights_sha256"] == whole
    assert timeless(run_dir) == metrics


def test_resume_from_a_named_checkpoint_uses_no_other_checkpoint(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    assert main(flags(tasks, run_dir, run__save_steps=2)) == 0
    newest, previous = list_checkpoints(run_dir)
    flip_a_byte(newest)
    assert main(["--resume", str(newest)]) == 2
    assert f"{previous.name} beside it is whole" in capsys.readouterr().err
    assert main(["--resume", str(previous), "--run.max_steps", "3"]) == 0
    assert [record["step"] for record in records(run_dir / "metrics.jsonl")] == [1, 2, 3]
    assert [path.name for path in list_checkpoints(run_dir)] == ["checkpoint-00000003", "checkpoint-00000002"]


def test_checkpoint_is_a_hugging_face_folder_without_pickles(tasks: Path, tmp_path: Path) -> None:
    assert main(flags(tasks, tmp_path / "run", run__max_steps=1)) == 0
    folder = list_checkpoints(tmp_path / "run")[0]
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template
    assert torch.equal(model.model.norm.weight, load_file(folder / "model.safetensors")["model.norm.weight"])
    assert {path.suffix for path in folder.iterdir()} <= {".json", ".safetensors", ".jinja"}


def test_only_the_newest_checkpoints_are_kept(tasks: Path, tmp_path: Path) -> None:
    assert main(flags(tasks, tmp_path / "run", run__save_steps=1)) == 0
    assert [path.name for path in list_checkpoints(tmp_path / "run")] == ["checkpoint-00000004", "checkpoint-00000003"]
    assert not list((tmp_path / "run").glob(".checkpoint-*"))


def test_lora_run_resumes_to_the_same_adapters(tasks: Path, tmp_path: Path) -> None:
    lora = {"model__use_peft": "true", "model__lora_r": 4, "loss__beta": 0.1, "run__save_steps": 2}
    arguments = flags(tasks, tmp_path / "run", **lora)
    assert main(arguments) == 0
    whole = summary(tmp_path / "run")["weights_sha256"]
    truncated = list_checkpoints(tmp_path / "run")[0] / "adapter_model.safetensors"
    truncated.write_bytes(truncated.read_bytes()[:-1])
    assert main([*arguments, "--resume"]) == 0
    assert summary(tmp_path / "run")["weights_sha256"] == whole


def test_full_disk_leaves_the_last_checkpoint_usable(
    tasks: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    real = checkpoint.save_file

    def full(tensors: dict[str, torch.Tensor], path: Path) -> None:
        if "00000004" in str(path):
            Path(path).write_bytes(b"half")
            raise OSError(28, "No space left on device")
        real(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        main(flags(tasks, run_dir, run__save_steps=2))
    assert [path.name for path in list_checkpoints(run_dir)] == ["checkpoint-00000002"]
    monkeypatch.undo()
    assert main([*flags(tasks, run_dir, run__save_steps=2), "--resume"]) == 0
    assert summary(run_dir)["weights_sha256"] == summary(finished)["weights_sha256"]
    assert not list(run_dir.glob(".checkpoint-*"))


def test_run_killed_before_its_first_checkpoint_starts_anew_without_duplicates(tasks: Path, tmp_path: Path) -> None:
    arguments = flags(tasks, tmp_path / "run", run__eval_on_start="true", eval__num_tasks=1, run__max_steps=1)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step":0,"eval/reward":0.1}\n{"step":1,"rew')
    assert main([*arguments, "--resume"]) == 0
    assert [record["step"] for record in records(tmp_path / "run" / "metrics.jsonl")] == [0, 1]


def test_second_interrupt_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    with listening() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(StopRequested, match="SIGINT"):
            stop.poll()
        assert codes == []
        os.kill(os.getpid(), signal.SIGINT)
    assert codes == [130]
    assert signal.getsignal(signal.SIGINT) is before


def test_state_with_the_field_of_an_earlier_version_still_loads() -> None:
    start = TrainState.start("config", "data")
    values = asdict(start) | {"best": {}}
    assert TrainState.from_json(values) == start
    del values["step"]
    with pytest.raises(CheckpointError, match="has no field step"):
        TrainState.from_json(values)


def test_resume_with_other_data_is_refused(tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags(tasks, tmp_path / "run", run__max_steps=1)) == 0
    other = [*flags(tasks, tmp_path / "run", data__limit=3, run__max_steps=2), "--resume"]
    assert main(other) == 2
    assert "is not the data that checkpoint-00000001 was trained on" in capsys.readouterr().err
