"""The real run: its commands have valid flags, and their files become rows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from kernel_coder.evaluate.config import EvaluateConfig
from kernel_coder.evaluate.config import load_config as load_evaluation
from kernel_coder.judge import example_verdict
from kernel_coder.run.config import load
from kernel_coder.sft.config import SftConfig
from kernel_coder.train.config import TrainConfig

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
KINDS = {"sft": SftConfig, "train": TrainConfig}


@pytest.fixture(autouse=True)
def benchmarks_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (BENCHMARKS, BENCHMARKS / "judge", BENCHMARKS / "training"):
        monkeypatch.syspath_prepend(str(folder))


def options(folder: Path, *more: str) -> Namespace:
    from real_run.recipe import parse

    paths = ["--work", str(folder / "work"), "--results", str(folder / "results"), "--out", str(folder / "out")]
    given = ["--model", "models/m", "--gguf-file", "m.gguf", "--pairs", "pairs.parquet", "--kernelbench", "kb"]
    return parse([*given, *paths, "--commit", "abc", *more])


def write_lines(path: Path, lines: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def pretend(driver: Any, commands: dict[str, Any], rates: dict[int, float]) -> Any:
    """Replaces ``Driver.call``: reads the flags like the command, and writes files like those of the command."""
    from real_run.processes import Ended

    def call(name: str, command: list[str], limit_s: float, is_enough: Any = None, *, environment: Any = None) -> Ended:
        assert limit_s > 0
        words = list(command[1:])
        driver.state["commands"][name] = " ".join(words)
        commands[name] = words, dict(environment or {})
        if words[0] != "-m" or words[1] == "kernel_coder.report":
            return Ended(0, False, 1.0)
        kind, flags = words[1].rpartition(".")[2], words[2:]
        if kind == "evaluate":
            flags.remove("--resume")
            commands[name] = load_evaluation(None, flags), dict(environment or {})
            leave_evaluation(commands[name][0])
            return Ended(0, False, 1.0)
        config = load(KINDS[kind], flags[1], [flag for flag in flags[2:] if flag != "--resume"])  # type: ignore[type-var]
        commands[name] = config, "--resume" in flags
        folder = Path(config.run.output_dir)
        for step in rates if kind == "sft" else (20, 40):
            (folder / f"checkpoint-{step:08d}").mkdir(parents=True, exist_ok=True)
        lines = [{"step": step, "eval/judge/correct": rate, "loss": 1.0} for step, rate in rates.items()]
        if kind == "train":
            lines = [{"step": step, "reward": step / 40, "time/judge_s": 2.0} for step in range(1, 41)]
            answer = {"id": "1/0/t/0", "verdict": {"outcome": "wrong_output", "reason": "output 'x' is 3 off"}}
            write_lines(folder / "samples.jsonl", [{"step": step, **answer} for step in range(1, 41)])
        write_lines(folder / "metrics.jsonl", lines)
        return Ended(0, False, 1.0)

    return call


def leave_evaluation(config: EvaluateConfig) -> None:
    samples, verdicts = [], []
    for task in ("a", "b"):
        for number in range(config.answers):
            found = example_verdict("correct", speedup=1.5) if number % 2 == 0 else example_verdict("wrong_output")
            samples.append(
                {
                    "task": task,
                    "sample": number,
                    "text": f"{task} {number}",
                    "completion_tokens": 10,
                    "messages": [{"role": "user", "content": "Rewrite."}],
                }
            )
            verdicts.append({"task": task, "sample": number, "verdict": json.loads(found.to_json())})
    write_lines(Path(config.output) / "samples.jsonl", samples)
    write_lines(Path(config.output) / "verdicts.jsonl", verdicts)


def test_every_command_has_valid_flags_and_the_right_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from real_run.recipe import HELD_OUT
    from real_run.results import records
    from real_run.stages import Driver

    driver = Driver(options(tmp_path, "--target", "0.5"))
    commands: dict[str, Any] = {}
    monkeypatch.setattr(driver, "call", pretend(driver, commands, {40: 0.1, 80: 0.62, 120: 0.9}))
    driver.run()

    sft, rl = commands["sft"][0], commands["rl-2"][0]
    assert (sft.model.device, sft.judge.device, sft.model.gguf_file) == ("cuda:0", "cuda:1,cuda:2", "m.gguf")
    assert (rl.model.device, rl.judge.device) == ("cuda:0", "cuda:1,cuda:2")
    assert rl.model.name_or_path.endswith("sft/checkpoint-00000080")  # its rate is nearest to the target
    assert (commands["rl-1"][1], commands["rl-2"][1]) == (False, True)
    assert tuple(rl.data.exclude_families) == HELD_OUT
    for model in ("base", "sft", "rl"):
        compositions, families, kernelbench = (
            commands[f"{model}-{name}"][0] for name in ("compositions", "families", "kernelbench")
        )
        assert compositions.exclude_families == HELD_OUT
        assert (compositions.tasks, families.tasks) == ("packaged:heldout", "packaged:heldout_families")
        assert compositions.seeds == families.seeds == (0, 1, 2)
        assert compositions.pass_at == (1, 8)
        assert (kernelbench.temperature, kernelbench.top_p, kernelbench.answers) == (1.0, 0.97, 1)
        assert all(one.judge.timing and one.remember for one in (compositions, families, kernelbench))
    assert commands["base-compositions"][1] == {"CUDA_VISIBLE_DEVICES": "3"}
    assert not commands["sft-compositions"][0].judged_elsewhere  # the model writes first, then the judge uses its GPU
    final = commands["rl-compositions"][0]
    assert (final.device, final.judge_device, final.judged_elsewhere) == ("cuda:0", "cuda:1,cuda:2", True)

    rows = (tmp_path / "results/real_run_cuda.csv").read_text().splitlines()
    assert len(rows) == 10
    assert rows[1].startswith("base,compositions,1.0,1.0,1.0,0.5556,")
    thirds = (tmp_path / "results/real_run_rejections_cuda.csv").read_text().splitlines()
    assert thirds[1] == "1,wrong_output,output '' is N off,14,1.0,14,output 'x' is 3 off"
    kept = json.loads((tmp_path / "out/results/real_run_cuda.json").read_text())
    assert kept["training"]["seconds_a_step"]["judge"] == 2.0
    assert kept["state"]["done"].keys() >= {"sft", "rl", "rl-kernelbench", "remeasure", "page-rl"}
    assert "### Answer" in (tmp_path / "out/answers.md").read_text()
    assert list(records(tmp_path / "out/rl/metrics.jsonl"))


def test_few_untimed_answers_do_not_remove_the_speed_of_the_others(tmp_path: Path) -> None:
    from real_run.stages import Driver

    driver = Driver(options(tmp_path))
    folder = driver.work / "evaluations" / "rl-compositions"

    def row(untimed: int) -> dict[str, Any]:
        found = [example_verdict("correct", speedup=None if number < untimed else 1.5) for number in range(40)]
        lines = [{"task": f"t{i % 8}", "sample": i, "verdict": json.loads(v.to_json())} for i, v in enumerate(found)]
        write_lines(folder / "verdicts.jsonl", lines)
        return driver.results.row("rl", "compositions") or {}

    assert [(row(n)["fast_1"], row(n)["untimed"], row(n)["correct"]) for n in (0, 2, 3)] == [
        (1.0, 0, 1.0),
        (1.0, 2, 1.0),
        (None, 3, 1.0),
    ]


def test_finished_stages_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from real_run.stages import Driver

    first: dict[str, Any] = {}
    driver = Driver(options(tmp_path))
    monkeypatch.setattr(driver, "call", pretend(driver, first, {40: 0.5}))
    driver.run()
    again: dict[str, Any] = {}
    driver = Driver(options(tmp_path))
    monkeypatch.setattr(driver, "call", pretend(driver, again, {40: 0.5}))
    driver.run()
    assert len(first) == 15
    assert again == {}


@pytest.mark.long
def test_command_is_stopped_by_sigterm_when_its_time_is_over(tmp_path: Path) -> None:
    from real_run.stages import Driver

    driver = Driver(options(tmp_path))
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); print('x'); time.sleep(60)"
    )
    began = time.monotonic()
    ended = driver.call("slow", [sys.executable, "-c", code], 5.5)
    assert (ended.code in (75, -signal.SIGTERM), ended.was_stopped, ended.failed) == (True, True, False)
    assert time.monotonic() - began < 20
    ended = driver.call("broken", [sys.executable, "-c", "raise SystemExit(2)"], 30)
    assert ended.failed
    assert driver.call("late", [sys.executable, "-c", ""], 3.0).seconds == 0.0


def test_signal_ends_the_run_and_its_state_is_saved(tmp_path: Path) -> None:
    """A real process whose commands only wait."""
    code = (
        "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); from real_run import recipe, stages; "
        "driver = stages.Driver(recipe.parse()); slow = [sys.executable, '-c', 'import time; time.sleep(60)']; "
        "driver.sft = lambda: driver.call('sft', slow, 60); "
        "driver.evaluate_beside = lambda: driver.call('base', slow, 60); driver.run()"
    )
    words = ["--model", "m", "--pairs", "p", "--work", str(tmp_path / "work"), "--results", str(tmp_path / "results")]
    process = subprocess.Popen(
        [sys.executable, "-c", code, f"{BENCHMARKS}:{BENCHMARKS / 'training'}", *words],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    begun = [process.stdout.readline() for _ in range(2)]
    assert all("60 s" in line for line in begun)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "the same command continues" in said
    assert json.loads((tmp_path / "work/state.json").read_text())["elapsed"] > 0


@pytest.mark.parametrize(
    ("text", "found"),
    [("", {}), ("--a 1 --b=x", {"a": "1", "b": "x"}), ("--a '1 2'", {"a": "1 2"})],
)
def test_flags_of_parses_further_flags(text: str, found: dict[str, str]) -> None:
    from real_run.recipe import flags_of

    assert flags_of(text) == found


def test_only_faster_answers_are_timed_again_highest_lower_bound_first(tmp_path: Path) -> None:
    from remeasure import faster_answers

    config = EvaluateConfig(model="m", tasks="packaged:heldout", limit=3, output=str(tmp_path))
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    from kernel_coder.evaluate.run import select_tasks

    one, two, three = (task.id for task in select_tasks(config))
    speeds = {(one, 0): (1.2, 1.1), (one, 1): (3.0, 0.8), (two, 0): (1.5, 1.4), (three, 0): (0.9, 0.8)}
    samples = [{"task": task, "sample": number, "code": f"code {number}"} for task, number in speeds]
    verdicts = [
        {
            "task": task,
            "sample": number,
            "verdict": json.loads(
                example_verdict("correct", speedup=speed, speedup_low=low, speedup_high=9.0).to_json()
            ),
        }
        for (task, number), (speed, low) in speeds.items()
    ]
    write_lines(tmp_path / "samples.jsonl", samples)
    write_lines(tmp_path / "verdicts.jsonl", verdicts)
    assert [(found["task"], found["candidate"]) for found in faster_answers(tmp_path)] == [
        (two, "code 0"),
        (one, "code 0"),
    ]


@pytest.mark.long
def test_supervised_model_is_evaluated_on_the_side_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from real_run.stages import Driver

    driver = Driver(options(tmp_path, "--judge-gpus", "0", "--side-gpu", "1", "--straight"))
    commands: dict[str, Any] = {}
    monkeypatch.setattr(driver, "call", pretend(driver, commands, {40: 0.1, 80: 0.62, 120: 0.9}))
    driver.run()
    assert commands["rl-2"][0].model.name_or_path.endswith("sft/checkpoint-00000120")  # the last checkpoint
    assert "rl-1" not in commands
    assert commands["sft-families"][1] == commands["base-kernelbench"][1] == {"CUDA_VISIBLE_DEVICES": "1"}
    assert commands["rl-compositions"][1] == commands["rl-kernelbench"][1] == {"CUDA_VISIBLE_DEVICES": "0"}


def test_side_gpu_with_several_judge_gpus_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(tmp_path, "--side-gpu", "1")
    assert "--judge-gpus must be the same as --train-gpu; got 1,2,3 and 0" in capsys.readouterr().err
