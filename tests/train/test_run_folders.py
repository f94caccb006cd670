"""The folder of a run, the notes of a resumed run, packaged recipes, and the defaults stored in a model's folder."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import yaml
from kernel_coder.evaluate.config import load_config as evaluate_config
from kernel_coder.loop.config import load_config as load_loop
from kernel_coder.policy.defaults import FILE, defaults_of, write_defaults
from kernel_coder.refine.config import parse
from kernel_coder.run.config import RunConfig, load
from kernel_coder.run.errors import UsageError
from kernel_coder.run.files import METRICS
from kernel_coder.run.folder import choose_folder
from kernel_coder.run.logs import RunLog
from kernel_coder.run.recipe import find_recipe, recipe_folder, recipe_names
from kernel_coder.run.stopwatch import Stopwatch
from kernel_coder.sft.__main__ import main as sft
from kernel_coder.sft.config import SftConfig
from kernel_coder.train.__main__ import main
from kernel_coder.train.config import TrainConfig
from tiny_run import flags, records, summary


def folder_of(first: Path, resume: str | None = None, **changes: bool) -> str:
    config = RunConfig(output_dir=str(first), new_folder=True, **changes)
    return Path(choose_folder(config, resume).output_dir).name


def test_each_run_gets_the_next_free_folder(tmp_path: Path) -> None:
    first = tmp_path / "run"
    assert folder_of(first) == "run"
    assert folder_of(first, "auto") == "run"
    for name, following in (("run", "run-2"), ("run-2", "run-3"), ("run-10", "run-11")):
        (tmp_path / name).mkdir()
        (tmp_path / name / METRICS).touch()
        assert folder_of(first) == following
        assert folder_of(first, "auto") == name
    (tmp_path / "run-sft").mkdir()
    (tmp_path / "run-sft" / METRICS).touch()
    (tmp_path / "run-12").mkdir()  # holds no run
    assert folder_of(first) == "run-11"
    assert folder_of(first, overwrite_output_dir=True) == "run"


def test_second_run_gets_a_new_folder_and_latest_points_to_it(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = flags(tasks, tmp_path / "run", run__max_steps=1, run__new_folder="true")
    assert main(run) == 0
    before = summary(tmp_path / "run")
    assert main(run) == 0
    assert summary(tmp_path / "run") == before
    assert (tmp_path / "latest").resolve() == tmp_path / "run-2"
    assert capsys.readouterr().out.splitlines()[-1] == f"next: kernel-coder report {tmp_path / 'run-2'}"
    assert main([*run, "--run.max_steps", "2", "--resume"]) == 0
    assert len(records(tmp_path / "run-2" / METRICS)) == 2
    assert main(["--resume", str(tmp_path / "latest"), "--run.max_steps", "2"]) == 0
    assert summary(tmp_path / "run-2")["steps"] == 2
    assert main(["--resume", str(tmp_path / "run")]) == 0  # a path selects exactly that run
    assert len(records(tmp_path / "run" / METRICS)) == 1
    assert not (tmp_path / "run-3").exists()


def test_resumed_run_names_changed_config_fields_once(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags(tasks, tmp_path / "run", run__max_steps=1)) == 0
    longer = [*flags(tasks, tmp_path / "run", run__max_steps=2, optim__learning_rate=0.5), "--resume"]
    capsys.readouterr()
    assert main(longer) == 0
    note = next(line for line in capsys.readouterr().out.splitlines() if "differs" in line)
    assert note.startswith("the config differs from that of checkpoint-00000001: optim.learning_rate was ")
    assert "and is 0.5; run.max_steps was 1 and is 2" in note
    assert main(longer) == 0
    assert "differs" not in capsys.readouterr().out


def test_every_packaged_recipe_loads_by_name() -> None:
    assert {"nano", "tiny", "tiny-sft", "smollm2-135m"} <= set(recipe_names())
    for name in recipe_names():
        values = yaml.safe_load(find_recipe(name).read_text(encoding="utf-8"))
        if "rounds" in values.get("run", {}):
            load_loop(str(find_recipe(name)))
            continue
        load(TrainConfig if "rollout" in values else SftConfig, name)


def test_a_copied_recipe_finds_its_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    template = str(recipe_folder() / "tiny_prompt.jinja")
    assert load(TrainConfig, "tiny").data.prompt_template == template
    copied = tmp_path / "mine" / "copy.yaml"
    copied.parent.mkdir()
    copied.write_text(find_recipe("tiny").read_text(encoding="utf-8"))
    assert load(TrainConfig, copied).data.prompt_template == template
    (copied.parent / "tiny_prompt.jinja").write_text("{% block user %}{{ reference }}{% endblock %}")
    assert load(TrainConfig, "mine/copy.yaml").data.prompt_template == "mine/tiny_prompt.jinja"


def test_error_for_a_missing_template_names_the_file(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = flags(tasks, tmp_path / "run", data__prompt_template="no.jinja")
    assert main(run) == 2
    assert "no.jinja" in capsys.readouterr().err


def test_checkpoint_stores_its_prompt_template_tasks_and_token_limit(tasks: Path, tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{% block user %}{{ reference }}{% endblock %}")
    run = flags(tasks, tmp_path / "run", run__max_steps=1, data__prompt_template=template)
    assert main(run) == 0
    checkpoint = tmp_path / "run" / "checkpoint-00000001"
    found = defaults_of(str(checkpoint))
    assert found["prompt_template"] == str(checkpoint / "own.jinja")
    assert found["tasks"] == str(tasks)
    config = evaluate_config(None, ["--model", str(checkpoint)])
    assert (config.prompt_template, config.tasks) == (found["prompt_template"], str(tasks))
    assert config.max_new_tokens == found["max_new_tokens"]
    assert evaluate_config(None, ["--model", str(checkpoint), "--prompt-template", "nano"]).prompt_template == "nano"
    refined, _ = parse(["module.py", "--model", str(checkpoint), "--max-new-tokens", "7"])
    assert (refined.prompt_template, refined.max_new_tokens) == (found["prompt_template"], 7)


def test_checkpoint_of_a_supervised_run_stores_its_defaults(tasks: Path, tmp_path: Path) -> None:
    text = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ..."
    row = {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "answer"}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    arguments = ["--model.name_or_path", "tiny", "--data.path", str(tmp_path / "rows.jsonl"), "--run.max_steps", "1"]
    arguments += ["--data.prompt_template", "nano", "--run.output_dir", str(tmp_path / "run"), "--run.num_threads", "1"]
    assert sft(arguments) == 0
    found = defaults_of(str(tmp_path / "run" / "checkpoint-00000001"))
    assert found == {"prompt_template": "nano", "max_new_tokens": 1024}


def test_the_packaged_model_has_its_own_defaults() -> None:
    assert defaults_of("nano")["prompt_template"] == "nano"
    config = evaluate_config(None, ["--model", "nano"])
    assert (config.prompt_template, config.feedback_template, config.max_new_tokens) == ("nano", "nano", 384)
    assert config.tasks == "packaged:pointwise_heldout"
    served = evaluate_config(None, ["--model", "nano", "--base-url", "http://localhost:8000/v1"])
    assert served.prompt_template == "kernel_coder"


def test_invalid_defaults_file_is_refused(tmp_path: Path) -> None:
    write_defaults(tmp_path, {"prompt_template": "nano", "tasks": None})
    assert json.loads((tmp_path / FILE).read_text()) == {"prompt_template": "nano"}
    for text, said in {
        "{": "",
        '{"max_new_tokens": 0}': r"max_new_tokens: .*got 0$",
        '{"temperature": -1}': r"temperature: .*got -1$",
        "[]": "",
    }.items():
        (tmp_path / FILE).write_text(text)
        with pytest.raises(UsageError, match=rf"kernel-coder.json cannot be read: {said}"):
            defaults_of(str(tmp_path))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_shows_the_current_phase_between_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    shown = Terminal()
    log = RunLog(tmp_path, TrainConfig(), 0, total=2, shown={}, stream=shown)
    watch = Stopwatch(log.doing)
    with watch.phase("rollout"):
        log._progress.refresh()  # type: ignore[union-attr]
    log.judged(3, 8)
    log._progress.refresh()  # type: ignore[union-attr]
    log.close()
    assert "sampling answers" in shown.getvalue()
    assert "3 of 8 answers judged" in shown.getvalue()
