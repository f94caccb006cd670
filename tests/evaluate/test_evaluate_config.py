"""Mistakes on the command line, and the fields that decide whether a run can be resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_coder.evaluate.config import EvaluateConfig, differences, load_config
from kernel_coder.evaluate.errors import UsageError

MISTAKES = [
    ([], "--model is missing; a run needs at least --model"),
    (["--modle", "x"], "unknown flag --modle; did you mean --model?"),
    (["--model", "m", "--sampels", "3"], "unknown flag --sampels; did you mean --samples?"),
    (["--model", "m", "--judge.cheks", "3"], "did you mean --judge.checks?"),
    (["--model", "m", "--samples", "many"], "samples: input should be a valid integer"),
    (["--model", "m", "--samples", "0"], "samples: input should be greater than or equal to 1; got '0'"),
    (["--model", "m", "--samples", "3", "--pass-at", "1,5"], "pass@5 needs at least 5 samples of each task"),
    (["--model", "m", "--pass-at", "[0]"], "pass_at must hold numbers of at least 1"),
    (["--model", "m", "--problems", "1,x"], "problems must be numbers and ranges such as 1,2,5-9; got '1,x'"),
    (["--model", "m", "--problems", "9-5"], "problems must be numbers and ranges"),
    (["--model", "m", "--top-p", "0"], "top_p: input should be greater than 0"),
    (["--model", "m", "--temperature", "-1"], "temperature: input should be greater than or equal to 0"),
    (["--model", "m", "--judge-device", "cpu,cuda:1"], "judge_device: several devices must be different GPUs"),
    (["--model", "m", "--seeds", "1", "1"], "seeds must be different numbers, as in 0,1,2; got 1,1"),
    (
        ["--model", "m", "--seeds", "0,1", "--pass-at", "3"],
        "pass@3 needs at least 3 samples of each task; got samples = 1 with 2 seeds",
    ),
    (["--model", "m", "--device", "gpu"], "device must be auto, cpu, cuda or cuda:N; got gpu"),
    (["--model", "m", "--backend", "tritton"], "backend: input should be 'triton', 'cuda', 'cpp' or 'torch'"),
    (["--model", "m", "--base-url", "localhost:8000"], "base_url must look like http://localhost:8000/v1"),
    (["--model", "m", "--base-url", "http://me:secret@host/v1"], "base_url must not hold a password"),
    (["--model", "m", "--base-url", "http://h/v1", "--top-k", "5"], "are for local models, not for base_url"),
    (["--model", "m", "--api-key-env", "KEY"], "api_key_env and extra_body need a server; set base_url"),
    (["--model", "m", "--judge.checks", "0"], "judge.checks: input should be greater than or equal to 1"),
    (["--model"], "expected one argument"),
    (["stray", "--model", "m"], "unrecognized arguments: stray"),
]


@pytest.mark.parametrize(("flags", "sentence"), MISTAKES, ids=[" ".join(flags) for flags, _ in MISTAKES])
def test_a_mistake_gives_one_clear_sentence(flags: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_config(None, flags)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_flags_are_spelt_with_either_dash_and_switches_need_no_value() -> None:
    config = load_config(
        None, ["--model", "m", "--max_new_tokens=7", "--one-shot", "--compile-baseline", "--judge.timing", "false"]
    )
    assert (config.max_new_tokens, config.one_shot) == (7, True)
    assert (config.judge.compile_baseline, config.judge.timing) == (True, False)


def test_flags_accept_off_none_and_the_prefix_no() -> None:
    flags = [
        "--model",
        "m",
        "--judge.hidden_shapes",
        "off",
        "--no-one-shot",
        "--judge.memory-bytes",
        "none",
        "--limit",
        "none",
    ]
    config = load_config(None, flags)
    assert (config.judge.hidden_shapes, config.one_shot) == ("off", False)
    assert (config.judge.memory_bytes, config.limit) == (None, None)


def test_default_temperature_comes_from_the_model() -> None:
    assert load_config(None, ["--model", "nano"]).temperature == 0.8
    assert load_config(None, ["--model", "nano", "--temperature", "0"]).temperature == 0
    assert load_config(None, ["--model", "tiny"]).temperature == 1.0


def test_defaults_equal_those_in_the_manual() -> None:
    config = load_config(None, ["--model", "m"])
    assert (config.temperature, config.top_p, config.samples, config.backend) == (1.0, 0.97, 1, "triton")


@pytest.mark.parametrize(
    ("samples", "ks"), [(1, (1,)), (8, (1, 5, 8)), (10, (1, 5, 10)), (100, (1, 5, 10, 20, 50, 100))]
)
def test_pass_at_k_is_reported_for_round_numbers_and_all_samples(samples: int, ks: tuple[int, ...]) -> None:
    assert EvaluateConfig(model="m", samples=samples).ks == ks


def test_flags_override_single_fields_of_the_config_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("model: m\nsamples: 4\njudge: {checks: 2, threads: 2}\n")
    config = load_config(file, ["--samples", "5", "--judge.checks", "3"])
    assert (config.samples, config.judge.checks, config.judge.threads) == (5, 3, 2)
    file.write_text(config.to_yaml())
    assert load_config(file) == config


@pytest.mark.parametrize("text", ["model: [", "- 1", "modell: m", None])
def test_invalid_config_file_is_refused(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=r"c\.yaml|unknown key modell|--model is missing"):
        load_config(file)


def test_differences_lists_only_fields_that_change_answers_or_verdicts() -> None:
    before = EvaluateConfig(model="m", base_url="http://a/v1").model_dump(mode="json")
    same = EvaluateConfig(model="m", base_url="http://b/v1", samples=9, limit=3, concurrency=2, output="x")
    assert differences(before, same.model_dump(mode="json")) == []
    other = EvaluateConfig.model_validate({"model": "n", "seed": 1, "judge": {"checks": 2}})
    assert sorted(differences(before, other.model_dump(mode="json"))) == [
        "base_url was given and is None",
        "judge.checks was 5 and is 2",
        "model was m and is n",
        "seed was 42 and is 1",
    ]
