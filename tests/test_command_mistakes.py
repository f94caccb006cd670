"""Typical mistakes over all commands: one sentence on stderr that names the remedy, exit code 2, and no traceback.

The mistakes in a training config are in tests/train/test_mistakes.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from kernel_coder import cli

TASK = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(4, 4) - 0.5]


def get_init_inputs():
    return []
"""

FILES = {
    "task.py": TASK,
    "raises.py": TASK.replace("torch.relu(x)", "torch.no_such_function(x)"),
    "no_inputs.py": TASK.replace("def get_inputs", "def inputs"),
    "no_model.py": TASK.replace("class Model", "class Net"),
    "broken.py": "class Model(:\n",
    "candidate.py": TASK.replace("class Model", "class ModelNew"),
    "list.yaml": "- model\n",
    "unknown.yaml": "models: {}\n",
    "empty/notes.txt": "",
    "run/metrics.jsonl": '{"step":1,"reward":0.5}\n',
}

MISTAKES: list[tuple[str, str]] = [
    # kernel-coder itself
    ("", "usage: kernel-coder COMMAND"),
    ("trian", "did you mean train?"),
    ("jugde task.py candidate.py", "did you mean judge?"),
    # train and sft
    ("train --model nano", "--model is a section, whose fields are flags; did you mean --model.name_or_path nano?"),
    ("train --optim.lr 1e-4", "unknown flag --optim.lr; did you mean optim.learning_rate?"),
    ("train --lr 1e-4", "unknown flag --lr; did you mean optim.learning_rate?"),
    ("train --tasks packaged", "unknown flag --tasks; did you mean data.path?"),
    ("train --zzz 1", "unknown flag --zzz; kernel-coder train --help-all lists the flags"),
    ("train --config nanoo", "config file nanoo does not exist; did you mean the packaged recipe nano?"),
    ("train --config mine.yaml", "config file mine.yaml does not exist; packaged recipes: "),
    ("train --config list.yaml", "must hold sections such as model and data; got a list"),
    ("train --config unknown.yaml", "unknown key models in the config; did you mean model?"),
    ("train --config", "--config: expected one argument"),
    ("train --config smollm2-135m --model.device cpu --judge.device cpu", "kernel-coder sft --config smollm2-135m-sft"),
    ("train --resume nowhere", "--resume nowhere is not a folder"),
    ("train --model.name_or_path nanoo", "did you mean nano?"),
    (
        "train --data.prompt_template nanno",
        "prompt template nanno is neither one of bare, kernel_coder, kernelbench, nano nor a file",
    ),
    ("train --run.max_steps 0", "run.max_steps: input should be greater than or equal to 1; got '0'"),
    ("train --run.max_steps", "run.max_steps"),
    ("sft --run.max_steps 0", "run.max_steps is 0: give a number of updates, or -1"),
    ("sft --rollout.num_generations 4", "unknown flag --rollout.num_generations"),
    ("sft --data.path rows.jsonl", "rows.jsonl"),
    # evaluate
    ("evaluate", "--model is missing; a run needs at least --model"),
    ("evaluate --model nanoo --limit 1", "did you mean nano?"),
    ("evaluate --model nano --temprature 1", "unknown flag --temprature; did you mean --temperature?"),
    ("evaluate --model nano --tasks nowhere", "nowhere"),
    ("evaluate --model nano --tasks empty", "empty"),
    ("evaluate --model nano --samples 0", "samples: input should be greater than or equal to 1; got '0'"),
    ("evaluate --model nano --samples 2 --pass-at 8", "pass@8 needs at least 8 samples of each task; got samples = 2"),
    ("evaluate --model nano --device gpu", "device must be auto, cpu, cuda or cuda:N; got gpu"),
    ("evaluate --model m --base-url localhost:8000", "base_url must look like http://localhost:8000/v1"),
    (
        "evaluate --model m --base-url http://localhost:1/v1 --api-key-env NO_SUCH_VARIABLE --limit 1",
        "NO_SUCH_VARIABLE",
    ),
    (
        "evaluate --model nano --prompt-template nanno --limit 1",
        "prompt template nanno is neither one of bare, kernel_coder, kernelbench, nano nor a file",
    ),
    ("evaluate --model nano --config no.yaml", "config file no.yaml does not exist"),
    # refine
    ("refine", "the following arguments are required: module"),
    ("refine missing.py", "missing.py"),
    ("refine no_inputs.py", "no function get_inputs"),
    ("refine task.py --stratgy serial", "unknown flag --stratgy; did you mean --strategy?"),
    ("refine task.py --strategy best", "'serial', 'parallel', 'best_of_turns' or 'evolve'; got 'best'"),
    ("refine task.py --turns 0", "--turns: input should be greater than or equal to 1"),
    # library, loop, serve-model
    ("library", "the following arguments are required: command"),
    ("library show x", "invalid int value: 'x'"),
    ("loop --config none.yaml", "none.yaml"),
    ("serve-model", "the following arguments are required: model"),
    # judge
    ("judge", "give TASK.py CANDIDATE.py, --pairs with --out, or --admit"),
    ("judge task.py", "judge takes two files, TASK.py CANDIDATE.py; only the task is given"),
    ("judge task.py candidate.py task.py", "judge takes two files, TASK.py CANDIDATE.py; got 3 files"),
    ("judge task.py missing.py --device cpu", "--candidate: missing.py cannot be read: No such file or directory"),
    ("judge task.py candidate.py --backend tritn", "--backend must be one of triton, cuda, cpp, torch; got tritn"),
    ("judge no_model.py candidate.py --device cpu", "the reference has no class Model"),
    ("judge broken.py candidate.py --device cpu", "the reference does not parse: invalid syntax (line 1)"),
    ("judge raises.py candidate.py --backend torch --device cpu", "raises.py cannot be judged against: the reference"),
    ("judge --pairs pairs.jsonl", "--pairs needs --out"),
    ("judge task.py candidate.py --checks 0", "--checks: input should be greater than or equal to 1; got '0'"),
    ("judge task.py candidate.py --timout-s 5", "unknown argument --timout-s; did you mean --timeout-s?"),
    (
        "judge task.py candidate.py --device tpu",
        "--device must be cpu, cuda, cuda:N or several such as cuda:1,cuda:2; got tpu",
    ),
    # data, report, serve, env
    ("data", "the following arguments are required: command"),
    ("data biuld", "invalid choice: 'biuld'"),
    ("data build --out pairs.csv --count 1", "--out must end in .parquet; got pairs.csv"),
    ("data build --out pairs.parquet", "--count"),
    ("data mix missing.parquet --out mixed.parquet", "missing.parquet"),
    ("data collect --count 1", "the following arguments are required: --out"),
    ("data collect --out c.jsonl --count 0 --config nano", "--count must be at least 1; got 0"),
    ("data distill --out d.parquet --model nano", "--implement"),
    ("report", "the following arguments are required: RUN"),
    ("report nowhere", "nowhere"),
    ("report empty", "empty"),
    ("report run --samples -1", "--samples must be at least 0; got -1"),
    ("serve --host 0.0.0.0", "set KERNEL_CODER_TOKEN to a secret, or listen on 127.0.0.1"),
    ("serve --port many", "--port: invalid int value: 'many'"),
    ("env --jsn", "unknown argument --jsn; did you mean --json?"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KERNEL_CODER_TOKEN", raising=False)
    return tmp_path


def command(words: list[str]) -> Callable[[], int]:
    """The function behind a command line; ``kernel-coder`` itself where there is no such command."""
    if not words or words[0] not in cli.COMMANDS:
        return lambda: cli.main(words)
    name = words[0].replace("-", "_")
    module = importlib.import_module(f"kernel_coder.{name}" + ("" if name in ("env", "serve_model") else ".__main__"))
    return lambda: int(module.main(words[1:]))


@pytest.mark.parametrize(("line", "sentence"), MISTAKES, ids=[line or "nothing" for line, _ in MISTAKES])
def test_mistake_gives_one_sentence(line: str, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        assert command(line.split())() == 2
    finally:
        torch.set_num_threads(threads)
    out, err = capsys.readouterr()
    if not line:
        assert out.startswith(sentence)
        return
    told = [one for one in err.splitlines() if one.startswith("error: ")]
    assert len(told) == 1, err
    assert sentence in told[0]
    assert err.splitlines()[-1] == told[0]
    assert "Traceback" not in err


def test_there_are_at_least_50_different_mistakes() -> None:
    assert len(MISTAKES) >= 50
    assert len({line for line, _ in MISTAKES}) == len(MISTAKES)


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_has_a_mistake_in_the_list(name: str) -> None:
    assert any(line.split()[:1] == [name] for line, _ in MISTAKES)


def test_missing_gpu_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    words = ["judge", "task.py", "candidate.py", "--device", "cuda"]
    assert command(words)() == 2
    assert capsys.readouterr().err == "error: --device: cuda is not there; torch sees 0 GPUs\n"
