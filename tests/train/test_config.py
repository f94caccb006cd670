"""The config: flags override YAML, YAML overrides defaults, unknown names are refused, a saved copy loads equal."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path

import pytest
import yaml
from kernel_coder.ops import LossSpec
from kernel_coder.run.config import field_names, parse_flags
from kernel_coder.run.errors import UsageError
from kernel_coder.train.config import JudgeSection, LossConfig, TrainConfig, load_config

RECIPES = [
    path
    for path in sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
    if not path.stem.endswith(("-sft", "-pretrain", "-loop"))  # recipes of supervised runs and of the loop
]


def test_flags_beat_the_file_and_the_file_beats_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("optim:\n  learning_rate: 1.0e-4\n  weight_decay: 0.1\nrun:\n  seed: 7\n")
    config = load_config(tmp_path / "c.yaml", ["--optim.learning_rate", "1e-3", "--run.report_to", "wandb,mlflow"])
    assert config.optim.learning_rate == 1e-3
    assert config.optim.weight_decay == 0.1
    assert config.run.seed == 7
    assert config.run.report_to == ["wandb", "mlflow"]
    assert config.optim.adam_beta2 == TrainConfig().optim.adam_beta2


def test_environment_variables_do_not_change_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names as common as RUN, DATA and MODEL are set on many machines."""
    for name in ("RUN", "MODEL", "DATA", "OPTIM__LEARNING_RATE"):
        monkeypatch.setenv(name, "1")
    assert load_config(None, []) == TrainConfig()


def test_every_field_is_a_flag() -> None:
    values = {"bool": "true", "int": "3", "float": "0.5"}
    config = TrainConfig(judge=JudgeSection())
    tried = 0
    for name in field_names(TrainConfig):
        section, _, leaf = name.partition(".")
        if not leaf or isinstance(getattr(getattr(config, section), leaf), (dict, list)):
            continue
        default = getattr(getattr(config, section), leaf)
        flag = [f"--{name}", values.get(type(default).__name__, str(default) if default is not None else "null")]
        with contextlib.suppress(UsageError):  # the value may conflict with the defaults; only parsing is tested
            load_config(None, flag)
        assert parse_flags(flag, TrainConfig)[section].keys() == {leaf}
        tried += 1
    assert tried > 80


def test_flags_of_one_command_line_do_not_reach_the_next() -> None:
    flags = ["--run.seed", "3", "--rewards", '[{"name": "format"}]']
    assert parse_flags(flags, TrainConfig).keys() == {"run", "rewards"}
    assert parse_flags(["--optim.learning_rate", "1e-4"], TrainConfig) == {"optim": {"learning_rate": "1e-4"}}
    assert parse_flags([], TrainConfig) == {}


def test_rewards_can_be_given_as_json() -> None:
    rewards = [{"name": "a:b", "weight": 0.5, "params": {"x": [1, 2]}}]
    assert load_config(None, ["--rewards", json.dumps(rewards)]).rewards[0].params == {"x": [1, 2]}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_saved_config_of_every_recipe_loads_as_an_equal_config(path: Path, tmp_path: Path) -> None:
    config = load_config(path, [])
    (tmp_path / "copy.yaml").write_text(config.to_yaml())
    assert load_config(tmp_path / "copy.yaml", []) == config
    assert config.loss_spec() == load_config(tmp_path / "copy.yaml", []).loss_spec()


def test_config_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        TrainConfig().optim.learning_rate = 1.0  # type: ignore[misc]


def test_loss_section_has_the_fields_of_the_loss_spec() -> None:
    own = {"loss_type", "mask_truncated_completions"}
    assert set(LossConfig.model_fields) - own == {field.name for field in dataclasses.fields(LossSpec)}


def test_loss_fields_replace_those_of_the_preset() -> None:
    config = load_config(None, ["--loss.loss_type", "grpo", "--loss.beta", "0.04", "--loss.delta", "3"])
    assert config.loss_spec() == LossSpec.preset("grpo", beta=0.04, delta=3.0)


def test_dr_grpo_divides_by_the_maximum_completion_length() -> None:
    flags = ["--loss.loss_type", "dr_grpo", "--rollout.max_completion_length", "99"]
    assert load_config(None, flags).loss_spec().length_constant == 99


@pytest.mark.parametrize(
    ("mode", "scale", "op_mode"),
    [("grpo", "group", "grpo"), ("grpo", "none", "dr_grpo"), ("grpo", "batch", "batch"), ("rloo", "group", "rloo")],
)
def test_trl_names_select_the_advantage_mode_of_the_op(mode: str, scale: str, op_mode: str) -> None:
    config = load_config(None, ["--advantages.mode", mode, "--advantages.scale_rewards", scale])
    assert config.advantages.op_mode == op_mode


def test_sizes_of_a_generation_batch() -> None:
    flags = ["--optim.per_device_train_batch_size", "4", "--optim.gradient_accumulation_steps", "2"]
    config = load_config(None, [*flags, "--optim.steps_per_generation", "4", "--optim.num_iterations", "3"])
    assert (config.generation_batch_size, config.tasks_per_step) == (16, 2)
    assert (config.minibatches, config.updates_per_step) == (2, 6)


def test_recipe_files_have_no_unknown_key() -> None:
    for path in RECIPES:
        assert isinstance(yaml.safe_load(path.read_text()), dict)
        load_config(path, [])
