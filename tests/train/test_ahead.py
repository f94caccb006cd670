"""Sampling ahead of learning (`rollout.lag`): which weights wrote which answers, and stopped and resumed runs."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_judge import FakeJudge
from kernel_coder.judge.gpu import turns
from kernel_coder.run.checkpoint import list_checkpoints, load_state
from kernel_coder.run.errors import EXIT_STOPPED
from kernel_coder.train import loop, verdicts
from kernel_coder.train.__main__ import main
from kernel_coder.train.config import load_config
from kernel_coder.train.curriculum import TrainState
from kernel_coder.train.setup import prepare
from tiny_run import flags, records, summary, timeless

LETTERS = json.dumps([{"name": "tiny_run:letters"}, {"name": "tiny_run:noise", "weight": 0.5}])


def lagging(tasks: Path, run_dir: Path, lag: int, **changes: Any) -> list[str]:
    return flags(tasks, run_dir, rollout__lag=lag, optim__lr_scheduler_type="constant", **changes)


def samples(run_dir: Path) -> list[dict[str, Any]]:
    return records(run_dir / "samples.jsonl")


@pytest.mark.parametrize("lag", [1, 2])
@pytest.mark.parametrize("engine", ["transformers", "static"])
def test_answers_come_from_weights_that_are_lag_steps_old(tasks: Path, tmp_path: Path, lag: int, engine: str) -> None:
    run_dir = tmp_path / "run"
    assert main(lagging(tasks, run_dir, lag, rollout__engine=engine, run__max_steps=5)) == 0
    versions = {(line["step"], line["version"]) for line in samples(run_dir)}
    assert versions == {(step + 1, max(0, step - lag)) for step in range(5)}
    steps = records(run_dir / "metrics.jsonl")
    assert [step["sampling/staleness"] for step in steps] == [min(step, lag) for step in range(5)]
    assert abs(steps[0]["sampling/logratio_mean"]) < 1e-5  # step 1 samples from the current weights
    assert abs(steps[-1]["sampling/logratio_mean"]) > 1e-5


def test_first_answers_equal_those_of_a_run_without_lag(tasks: Path, tmp_path: Path) -> None:
    for lag in (0, 1):
        assert main(lagging(tasks, tmp_path / str(lag), lag, run__max_steps=3)) == 0
    now, ahead = (samples(tmp_path / name) for name in "01")
    assert [line["completion"] for line in now if line["step"] == 1] == [
        line["completion"] for line in ahead if line["step"] == 1
    ]
    assert [line["task"] for line in now] == [line["task"] for line in ahead]
    assert [line["completion"] for line in now if line["step"] == 3] != [
        line["completion"] for line in ahead if line["step"] == 3
    ]
    assert "version" not in now[0]


def test_metrics_and_weights_do_not_depend_on_timing(
    tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {"run__eval_steps": 2, "eval__num_tasks": 2, "run__max_steps": 5}
    assert main(lagging(tasks, tmp_path / "a", 1, **changes)) == 0
    original = loop.learning_batch

    def slow(*given: Any) -> Any:
        time.sleep(0.2)
        return original(*given)

    monkeypatch.setattr(loop, "learning_batch", slow)
    assert main(lagging(tasks, tmp_path / "b", 1, **changes)) == 0
    assert timeless(tmp_path / "a") == timeless(tmp_path / "b")
    assert summary(tmp_path / "a")["weights_sha256"] == summary(tmp_path / "b")["weights_sha256"]


@pytest.mark.parametrize("lag", [1, 2])
def test_resumed_run_learns_from_the_same_answers(tasks: Path, tmp_path: Path, lag: int) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    assert main(lagging(tasks, straight, lag, run__max_steps=6)) == 0
    assert main(lagging(tasks, broken, lag, run__max_steps=6, run__save_steps=3, run__save_total_limit=2)) == 0
    newest, middle = list_checkpoints(broken)
    state, _, _ = load_state(middle, TrainState)
    assert [(saved["number"], saved["version"]) for saved in state.ahead] == [
        (3 + place, max(0, 3 + place - lag)) for place in range(lag)
    ]
    assert load_state(newest, TrainState)[0].ahead == ()
    (newest / "model.safetensors").write_bytes(b"")  # the run died after step 3
    assert main([*lagging(tasks, broken, lag, run__max_steps=6), "--resume"]) == 0
    assert timeless(broken) == timeless(straight)
    assert summary(broken)["weights_sha256"] == summary(straight)["weights_sha256"]
    ids = [line["id"] for line in samples(broken)]
    assert len(ids) == len(set(ids)) == 6 * 8


def test_signal_saves_the_answers_that_were_sampled_ahead(
    tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    assert main(lagging(tasks, straight, 1, run__max_steps=5)) == 0
    original, calls = loop.learning_batch, []

    def interrupted(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*given)

    monkeypatch.setattr(loop, "learning_batch", interrupted)
    assert main(lagging(tasks, stopped, 1, run__max_steps=5)) == EXIT_STOPPED
    state, _, _ = load_state(list_checkpoints(stopped)[0], TrainState)
    assert (state.step, [saved["number"] for saved in state.ahead]) == (2, [2])
    monkeypatch.undo()
    assert main([*lagging(tasks, stopped, 1, run__max_steps=5), "--resume"]) == 0
    assert timeless(stopped) == timeless(straight)
    assert summary(stopped)["weights_sha256"] == summary(straight)["weights_sha256"]


def test_no_sampling_thread_runs_after_an_error(tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(loop, "learning_batch", broken)
    with pytest.raises(ZeroDivisionError):
        main(lagging(tasks, tmp_path / "run", 1))
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("ahead")]


def test_equal_answers_are_judged_once_over_the_whole_run(
    tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(device: str, backend: str, config: Any) -> FakeJudge:
        return FakeJudge(device, backend, config)

    parse = verdicts.ops.parse_response

    def coded(text: str) -> Any:
        return parse(f"<answer>\n```python\n# {text[:1].isalpha()}\n```\n</answer>")

    monkeypatch.setattr(verdicts, "open_judge", judge)
    monkeypatch.setattr(verdicts.ops, "parse_response", coded)
    FakeJudge.made.clear()
    assert main(lagging(tasks, tmp_path / "run", 1, run__max_steps=5, judge__device="cpu")) == 0
    (made,) = FakeJudge.made
    distinct = {(line["task"], line["completion"][:1].isalpha()) for line in samples(tmp_path / "run")}
    assert len(made.judged) == len(distinct)


def test_lag_turns_on_mismatch_correction_unless_the_config_or_the_loss_has_one() -> None:
    def spec(*given: str) -> Any:
        return load_config(None, list(given)).loss_spec()

    assert spec().mismatch == "none"
    assert (spec("--rollout.lag", "1").mismatch, spec("--rollout.lag", "1").mismatch_max) == ("token_truncate", 2.0)
    assert spec("--rollout.lag", "1", "--loss.mismatch", "none").mismatch == "none"
    assert spec("--rollout.lag", "1", "--loss.loss_type", "dr_kernel").mismatch == "geometric_mask"
    assert spec("--rollout.lag", "1", "--loss.loss_type", "prime").mismatch == "none"  # it has its own ratio
    assert spec("--rollout.lag", "1", "--loss.loss_type", "vespo").mismatch == "none"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rollout__max_resampling_rounds": 1}, "set one of the two to 0"),
        ({"vllm__sleep": "true"}, "vllm.sleep frees"),
        ({"rollout__engine": "vllm", "rollout__top_p": 0.9}, "top_p must be 1"),
    ],
)
def test_settings_that_conflict_with_lag_are_refused(
    tasks: Path, tmp_path: Path, changes: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(lagging(tasks, tmp_path / "run", 1, **changes)) == 2
    assert said in capsys.readouterr().err


def test_updates_do_not_change_the_sampling_copy_of_the_weights(tasks: Path, tmp_path: Path) -> None:
    run = prepare(load_config(None, lagging(tasks, tmp_path / "run", 1)), None)
    engine: Any = run.worker.engine
    engine.prepare(0)
    with torch.no_grad():
        for parameter in run.policy.model.parameters():
            parameter.add_(1.0)
    ours, theirs = (next(iter(model.parameters())) for model in (engine.copy, run.policy.model))
    assert torch.equal(ours + 1.0, theirs)
    engine.prepare(1)
    assert torch.equal(ours, theirs)


def test_sampling_and_learning_take_turns_with_a_judge_that_times_on_the_same_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns.nvml, "minor_number", lambda gpu: 10 + gpu)
    monkeypatch.setattr(turns.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(turns.SharedGpu, "_finish_work", lambda self: None)
    gpu = turns.SharedGpu(torch.device("cuda:1"))
    assert Path(gpu.path).name.endswith("-gpu11.lock")
    times: list[tuple[float, float]] = []
    end = threading.Event()

    def judge() -> None:
        lock = os.open(gpu.path, os.O_RDWR)
        with os.fdopen(lock):
            while not end.is_set():
                with turns.GpuTurns(lock).alone():
                    begin = time.perf_counter()
                    time.sleep(0.02)
                    times.append((begin, time.perf_counter()))
                time.sleep(0.01)

    thread = threading.Thread(target=judge)
    thread.start()
    used: list[float] = []
    with gpu.use() as pause:
        for _ in range(40):
            time.sleep(0.005)
            used.append(time.perf_counter())
            pause()
    end.set()
    thread.join()
    assert len([one for one in times if one[0] > used[0] and one[1] < used[-1]]) >= 2
    assert not [at for at in used for begin, until in times if begin < at < until]
