"""The supervised run on a two-layer model: golden curve, exact resume, held-out answers, mistakes, trained model."""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import kernel_coder.judge.supervisor.open
import pytest
import torch
from fake_judge import FakeJudge
from kernel_coder.models.tiny import tiny_model, tiny_tokenizer
from kernel_coder.policy.config import ModelConfig
from kernel_coder.policy.model import load_policy
from kernel_coder.rollout import Turn
from kernel_coder.rollout.transformers_engine import TransformersEngine
from kernel_coder.run.checkpoint import list_checkpoints, verify
from kernel_coder.run.config import field_names, load
from kernel_coder.run.errors import EXIT_DIVERGED, EXIT_STOPPED
from kernel_coder.sft import loop, setup
from kernel_coder.sft.__main__ import main
from kernel_coder.sft.compilation import Acceleration, accelerate
from kernel_coder.sft.config import SftConfig
from kernel_coder.sft.graphs import GraphedBody
from sft_golden import CURVE, GOLDEN, curve
from sft_recorder import Spoiling
from sft_run import flags, records, summary, timeless
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM

CONFIGS = Path(__file__).parents[2] / "configs"
HELD_OUT = {"eval__num_tasks": 3, "run__eval_steps": 2, "eval__num_answered": 2}
LONG_RUN = {**HELD_OUT, "run__max_steps": 8, "run__save_steps": 2, "run__eval_steps": 3, "eval__temperature": 1.0}


def test_eight_steps_follow_the_golden_curve(tmp_path: Path) -> None:
    golden, found = json.loads(GOLDEN.read_text()), curve(tmp_path)
    assert len(found) == len(golden) == 8
    for step, (now, then) in enumerate(zip(found, golden, strict=True), start=1):
        for name in CURVE:
            assert now[name] == pytest.approx(then[name], rel=1e-3, abs=1e-6), f"{name} at step {step}"


@pytest.fixture(scope="module")
def run_dir(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    assert main(flags(pairs, run_dir, **HELD_OUT, run__eval_on_start="true")) == 0
    return run_dir


def test_metrics_samples_tensorboard_and_config_are_written(run_dir: Path) -> None:
    lines = records(run_dir / "metrics.jsonl")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert {"loss", "grad_norm", "learning_rate", "epoch", "num_tokens", "entropy", "time/tokens_per_second"} <= set(
        lines[1]
    )
    assert {"eval/loss", "eval/format", "eval/completions/mean_length"} <= set(lines[0]) & set(lines[2]) & set(lines[4])
    assert "eval/loss" not in lines[1]
    samples = records(run_dir / "samples.jsonl")
    assert len(samples) == 3 * 2
    assert {"task", "prompt", "completion", "format_error", "finish_reason"} <= set(samples[0])
    board = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    assert [event.step for event in board.Scalars("loss")] == [1, 2, 3, 4]
    assert load(SftConfig, run_dir / "config.yaml", []).run.output_dir == str(run_dir)


def test_summary_is_flat_and_has_the_first_and_the_last_loss(run_dir: Path, pairs: Path, tmp_path: Path) -> None:
    assert main(flags(pairs, tmp_path / "run", run__max_steps=1)) == 0
    assert list(summary(run_dir)) == list(summary(tmp_path / "run"))
    found = summary(run_dir)
    assert not any(isinstance(value, (dict, list)) for value in found.values())
    assert found["eval_loss_last"] < found["eval_loss_first"]
    assert (found["status"], found["steps"], found["held_out_tasks"]) == ("finished", 4, 3)


def test_pairs_are_learnt_by_heart(pairs: Path, tmp_path: Path) -> None:
    assert main(flags(pairs, tmp_path / "run", run__num_train_epochs=20, run__max_steps=-1)) == 0
    losses = [record["loss"] for record in records(tmp_path / "run" / "metrics.jsonl")]
    assert losses[0] > 6
    assert sum(losses[-5:]) / 5 < 0.5


def test_every_epoch_has_every_sequence_once_and_its_last_step_may_be_smaller() -> None:
    config = load(SftConfig, None, ["--optim.per_device_train_batch_size", "3"])
    steps = [loop.draw(8, step, config) for step in range(6)]
    assert [len(step) for step in steps] == [3, 3, 2, 3, 3, 2]
    assert sorted(steps[0] + steps[1] + steps[2]) == sorted(steps[3] + steps[4] + steps[5]) == list(range(8))
    assert steps[:3] != steps[3:]


def test_number_of_forward_passes_does_not_change_the_update(pairs: Path, tmp_path: Path) -> None:
    """The loss is a mean over tokens, so four passes of one sequence equal one pass of four."""
    for name, size, passes in (("a", 1, 4), ("b", 4, 1)):
        cut = {"optim__per_device_train_batch_size": size, "optim__gradient_accumulation_steps": passes}
        assert main(flags(pairs, tmp_path / name, run__max_steps=1, **cut)) == 0
    a, b = (records(tmp_path / name / "metrics.jsonl")[0] for name in "ab")
    assert a["tokens_in_loss"] == b["tokens_in_loss"]
    assert a["loss"] == pytest.approx(b["loss"], rel=1e-6)
    assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-5)


COMPILED = {**HELD_OUT, "run__max_steps": 2, "model__torch_compile": "true"}


@pytest.mark.parametrize("checkpointing", ["auto", "true"])
def test_compiled_run_gives_the_same_metrics_and_can_be_resumed(
    checkpointing: str, run_dir: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs: list[int] = []

    def compiler(graph: Any, example: list[Any]) -> Any:
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    monkeypatch.setattr(torch.nn.Module, "compile", functools.partialmethod(torch.nn.Module.compile, backend=compiler))
    torch.compiler.reset()
    changes = {**COMPILED, "model__gradient_checkpointing": checkpointing}
    assert main(flags(pairs, tmp_path / "run", **changes)) == 0
    compiled = len(graphs)
    assert compiled > 0
    assert main([*flags(pairs, tmp_path / "run", **{**changes, "run__max_steps": 4}), "--resume"]) == 0
    found, expected = (records(path / "metrics.jsonl") for path in (tmp_path / "run", run_dir))
    for now, then in zip(found, expected[1:], strict=True):
        names = {"loss", "grad_norm", "eval/loss"} & set(then)
        assert {name: now[name] for name in names} == pytest.approx({name: then[name] for name in names}, rel=1e-4)


def test_run_with_graphs_gives_the_same_metrics_and_can_be_resumed(
    run_dir: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Acceleration] = []

    def accelerated(*given: Any, **named: Any) -> Acceleration:
        made.append(accelerate(*given, **named, recorder=Spoiling()))
        return made[-1]

    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: None)
    monkeypatch.setattr(setup, "accelerate", accelerated)
    assert main(flags(pairs, tmp_path / "run", **COMPILED)) == 0
    assert main([*flags(pairs, tmp_path / "run", **COMPILED | {"run__max_steps": 4}), "--resume"]) == 0
    for each in made:
        assert isinstance(each.states_of, GraphedBody), each.notes
        assert each.states_of.passes == 2 + 2 * 2  # two passes of the trial, and two updates of two passes
    found, expected = (records(path / "metrics.jsonl") for path in (tmp_path / "run", run_dir))
    for now, then in zip(found, expected[1:], strict=True):
        names = {"loss", "grad_norm", "eval/loss"} & set(then)
        assert {name: now[name] for name in names} == pytest.approx({name: then[name] for name in names}, rel=1e-4)


def test_run_that_cannot_be_compiled_says_why_and_runs_uncompiled(
    run_dir: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    no_compiler = {"cpp.cxx": ("no-such-compiler",), "fx_graph_cache": False}
    torch.compiler.reset()
    with torch._inductor.config.patch(no_compiler):
        assert main(flags(pairs, tmp_path / "run", **COMPILED)) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "model.torch_compile: the layers are not compiled: InvalidCxxCompiler:" in said, said[300:900]
    found, expected = timeless(tmp_path / "run"), timeless(run_dir)[1:3]
    assert [(line["loss"], line["grad_norm"]) for line in found] == [
        (line["loss"], line["grad_norm"]) for line in expected
    ]


def run(arguments: list[str]) -> None:
    """Runs the whole command and ends this process."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        os._exit(main(arguments))


def start(arguments: list[str]) -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kernel_coder.sft.loop", "test_sft_run"])
    process = context.Process(target=run, args=(arguments,))
    process.start()
    return process


def wait_for(metrics: Path, lines: int, process: Any) -> None:
    while process.is_alive() and (metrics.read_bytes().count(b"\n") if metrics.exists() else 0) < lines:
        time.sleep(0.002)


@pytest.fixture(scope="module")
def straight(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "straight"
    assert main(flags(pairs, run_dir, **LONG_RUN)) == 0
    return run_dir


def assert_same(run_dir: Path, straight: Path) -> None:
    assert summary(run_dir)["weights_sha256"] == summary(straight)["weights_sha256"]
    assert timeless(run_dir) == timeless(straight)
    assert (run_dir / "samples.jsonl").read_bytes() == (straight / "samples.jsonl").read_bytes()


@pytest.mark.parametrize("seed", range(3))
def test_killed_and_resumed_run_equals_an_uninterrupted_run(
    pairs: Path, straight: Path, tmp_path: Path, seed: int
) -> None:
    choose = random.Random(seed)
    arguments = [*flags(pairs, tmp_path / "run", **LONG_RUN), "--resume"]
    process = start(arguments)
    wait_for(tmp_path / "run" / "metrics.jsonl", choose.randrange(1, 8), process)
    time.sleep(choose.random() * 0.05)
    process.kill()
    process.join()
    assert main(arguments) == 0
    assert_same(tmp_path / "run", straight)


def test_signal_saves_a_checkpoint_and_gives_its_own_exit_code(pairs: Path, straight: Path, tmp_path: Path) -> None:
    arguments = flags(pairs, tmp_path / "run", **LONG_RUN)
    process = start(arguments)
    wait_for(tmp_path / "run" / "metrics.jsonl", 1, process)
    os.kill(process.pid, signal.SIGTERM)
    process.join(60)
    assert process.exitcode == EXIT_STOPPED
    verify(list_checkpoints(tmp_path / "run")[0])
    assert main([*arguments, "--resume"]) == 0
    assert_same(tmp_path / "run", straight)


def test_adapters_resume_and_are_merged_into_the_trained_model(pairs: Path, tmp_path: Path) -> None:
    lora = {"model__use_peft": "true", "model__lora_r": 4, "model__lora_dropout": 0.1, "run__save_steps": 2}
    assert main(flags(pairs, tmp_path / "straight", **lora)) == 0
    arguments = flags(pairs, tmp_path / "run", **lora)
    assert main(arguments) == 0
    newest = list_checkpoints(tmp_path / "run")[0] / "adapter_model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert main([*arguments, "--resume"]) == 0
    assert summary(tmp_path / "run")["weights_sha256"] == summary(tmp_path / "straight")["weights_sha256"]
    assert (
        records(tmp_path / "run" / "metrics.jsonl")[-1]["loss"] < records(tmp_path / "run" / "metrics.jsonl")[0]["loss"]
    )

    merged = AutoModelForCausalLM.from_pretrained(summary(tmp_path / "run")["trained_model"]).eval()
    config = ModelConfig(use_peft=True, lora_r=4, lora_dropout=0.1)
    adapted = load_policy(config, resume_from=list_checkpoints(tmp_path / "run")[0]).model.eval()
    ids = torch.arange(20)[None]
    torch.testing.assert_close(merged(ids).logits, adapted(ids).logits, rtol=1e-4, atol=1e-4)


def test_reinforcement_run_takes_the_trained_model(run_dir: Path, pairs: Path, tmp_path: Path) -> None:
    from kernel_coder.train.__main__ import main as train

    arguments = {
        "model.name_or_path": summary(run_dir)["trained_model"],
        "data.path": pairs,
        "data.prompt_template": pairs / "_short.jinja",
        "rollout.max_completion_length": 8,
        "run.output_dir": tmp_path / "run",
        "run.max_steps": 1,
    }
    assert train([part for name, value in arguments.items() for part in (f"--{name}", str(value))]) == 0
    assert summary(tmp_path / "run")["model"] == summary(run_dir)["checkpoint"]


@pytest.fixture
def fake_judge(monkeypatch: pytest.MonkeyPatch) -> type[FakeJudge]:
    monkeypatch.setattr(kernel_coder.judge.supervisor.open, "Judge", FakeJudge)
    monkeypatch.setattr(FakeJudge, "made", [])
    return FakeJudge


def test_held_out_answers_are_judged(
    pairs: Path, tmp_path: Path, fake_judge: type[FakeJudge], monkeypatch: pytest.MonkeyPatch
) -> None:
    def generate(self: TransformersEngine, prompts: list[Any], *rest: Any, **options: Any) -> list[Turn]:
        outcomes = ["correct", "wrong_output", "correct"]
        text = "<thinking>\n</thinking>\n<answer>\n```python\n# outcome: {}\n```\n</answer>"
        return [
            Turn(tuple(prompt), (1,), (0.0,), text.format(outcomes[i % 3]), "stop") for i, prompt in enumerate(prompts)
        ]

    monkeypatch.setattr(TransformersEngine, "generate", generate)
    judged = {**HELD_OUT, "eval__num_answered": 3, "judge__device": "cpu"}
    assert main(flags(pairs, tmp_path / "run", **judged)) == 0
    last = records(tmp_path / "run" / "metrics.jsonl")[-1]
    assert last["eval/judge/correct"] == pytest.approx(2 / 3)
    assert last["eval/format"] == 1
    assert summary(tmp_path / "run")["eval_judge_correct_last"] == pytest.approx(2 / 3)
    assert {sample["outcome"] for sample in records(tmp_path / "run" / "samples.jsonl")} == {"correct", "wrong_output"}
    assert [judge.is_open for judge in fake_judge.made] == [False]


def test_held_out_tasks_may_come_from_another_folder_without_solutions(pairs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.py").write_text((pairs / "scale1.py").read_text())
    changes = {"eval__path": other, "eval__num_tasks": 1, "eval__num_answered": 1, "run__eval_steps": 4}
    assert main(flags(pairs, tmp_path / "run", **changes)) == 0
    assert summary(tmp_path / "run")["examples"] == 10
    assert "eval/loss" not in records(tmp_path / "run" / "metrics.jsonl")[-1]
    assert "eval/format" in records(tmp_path / "run" / "metrics.jsonl")[-1]


def test_pretraining_on_texts_lowers_the_loss(tmp_path: Path, pairs: Path) -> None:
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps({"text": f"import torch\nx = {i}\n" * 9}) for i in range(9)))
    changes = {"data__path": tmp_path / "t.jsonl", "data__assistant_only_loss": "false", "data__max_length": 64}
    assert main(flags(pairs, tmp_path / "run", **changes)) == 0
    losses = [record["loss"] for record in records(tmp_path / "run" / "metrics.jsonl")]
    assert losses[-1] < losses[0] - 0.5


def test_model_with_overflowing_activations_is_refused_or_ends_the_run(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer))
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = 3e38
        model.model.layers[0].mlp.gate_proj.weight[0, 0] = 3e38
        model.model.layers[0].mlp.down_proj.weight[0, 0] = 3e38
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    changes = {"model__name_or_path": tmp_path / "model", "run__max_skipped_updates": 2}
    # A check at the start compares numbers, and those that are not finite fail it. So it may already refuse the model.
    assert main(flags(pairs, tmp_path / "run", **changes)) in (2, EXIT_DIVERGED)
    assert capsys.readouterr().err.startswith("error: ")


def test_diverging_run_is_stopped(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernel_coder.sft import update

    monkeypatch.setattr(update, "clip", lambda *given: torch.tensor(torch.inf))
    assert main(flags(pairs, tmp_path / "run", run__max_skipped_updates=2)) == EXIT_DIVERGED
    assert "error: 2 updates in a row were refused (run.max_skipped_updates)" in capsys.readouterr().err
    assert records(tmp_path / "run" / "metrics.jsonl")[0]["skipped_updates"] == 1


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"optim__lerning_rate": 1}, "unknown flag --optim.lerning_rate; did you mean optim.learning_rate?"),
    ({"data__max_lenght": 1}, "unknown flag --data.max_lenght; did you mean data.max_length?"),
    ({"rollout__temperature": 1}, "unknown flag --rollout.temperature; did you mean eval.temperature?"),
    ({"run__max_steps": 0}, "run.max_steps is 0"),
    ({"run__eval_steps": 1}, "run.eval_steps is set but eval.num_tasks is 0"),
    ({"eval__num_tasks": 1, "eval__num_answered": 2}, "eval.num_answered = 2 is more than eval.num_tasks = 1"),
    ({"judge__device": "cpu"}, "there is a judge but eval.num_answered is 0"),
    ({"data__max_length": 5000}, "data.max_length = 5000 is more than the model's context of 4096"),
    ({"data__max_length": 10}, "tokens, more than data.max_length = 10"),
    ({"eval__num_tasks": 10}, "all its tasks are held out"),
    ({"eval__num_tasks": 11}, "eval.num_tasks: cannot hold out 11 of 10"),
    ({"optim__lr_scheduler_type": "cosin"}, "optim.lr_scheduler_type cosin cannot be used"),
    ({"data__path": "no.jsonl"}, "data.path names no file or folder: no.jsonl"),
]


@pytest.mark.parametrize(("changes", "sentence"), MISTAKES, ids=[m[1][:40] for m in MISTAKES])
def test_mistake_gives_one_sentence(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], sentence: str
) -> None:
    assert main(flags(pairs, tmp_path / "run", **changes)) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert sentence in said


def test_resume_with_other_data_is_refused(pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags(pairs, tmp_path / "run", run__max_steps=1)) == 0
    assert main([*flags(pairs, tmp_path / "run", data__limit=3, run__max_steps=2), "--resume"]) == 2
    assert "is not the data that checkpoint-00000001 was trained on" in capsys.readouterr().err


def test_every_field_is_a_flag_and_every_recipe_reads_back(tmp_path: Path) -> None:
    names = field_names(SftConfig)
    assert {"data.packing", "data.assistant_only_loss", "judge.device", "run.num_train_epochs", "model.bf16"} <= set(
        names
    )
    recipes = list(CONFIGS.glob("*-sft.yaml"))
    assert len(recipes) >= 2
    for path in recipes:
        config = load(SftConfig, path, [])
        (tmp_path / "copy.yaml").write_text(config.to_yaml())
        assert load(SftConfig, tmp_path / "copy.yaml", []) == config


def test_loop_has_fewer_than_300_lines() -> None:
    assert len(Path(loop.__file__).read_text().splitlines()) < 300


def test_sft_command_in_a_subprocess_reports_a_mistake(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kernel_coder.cli", "sft", "--run.max_steps", "0"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: run.max_steps is 0")


def test_token_that_ends_an_answer_also_ends_sampling(pairs: Path, tmp_path: Path) -> None:
    template = tmp_path / "other_end.jinja"
    template.write_text(
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|endoftext|>{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    assert main(flags(pairs, tmp_path / "run", model__chat_template=template, run__max_steps=1)) == 0
    model = AutoModelForCausalLM.from_pretrained(summary(tmp_path / "run")["trained_model"])
    assert model.generation_config.eos_token_id == [0, 2]


def test_run_learns_in_bf16_with_checkpointing_and_without_packing(pairs: Path, tmp_path: Path) -> None:
    options = {"model__bf16": "true", "model__gradient_checkpointing": "true", "data__packing": "false"}
    assert main(flags(pairs, tmp_path / "run", **options, run__max_steps=5)) == 0
    losses = [record["loss"] for record in records(tmp_path / "run" / "metrics.jsonl")]
    assert losses[-1] < losses[0] - 1
