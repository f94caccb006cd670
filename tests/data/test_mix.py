"""The corpus of right and wrong answers: its rows, the excluded families, and that every build gives the same rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from kernel_coder import ops
from kernel_coder.data.__main__ import main
from kernel_coder.data.mix import BUGS, mix
from kernel_coder.policy.model import NANO_FOLDER
from kernel_coder.prompts import build_messages, encode_prompt, extend_prompt
from kernel_coder.sft.config import SftDataConfig
from kernel_coder.sft.examples import Encoder, conversation_rows, encode_rows
from kernel_coder.tasks import load_tasks
from kernel_coder.tasks.generator.fingerprint import fingerprint
from pyarrow import parquet
from transformers import AutoTokenizer


def rows_of(path: Path) -> list[dict[str, Any]]:
    return parquet.read_table(path).to_pylist()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("mix") / "mix.parquet"
    command = ["mix", "packaged:pointwise", "--out", str(target), "--talks", "0.04", "--workers", "2"]
    assert main(command) == 0
    return target


def test_every_pair_has_a_right_answer_and_many_also_a_wrong_one(mixed: Path) -> None:
    rows = rows_of(mixed)
    single = [row for row in rows if len(row["prompt"]) == 1]
    right, wrong = ([row for row in single if bool(row["bug"]) is has_bug] for has_bug in (False, True))
    assert len(right) == 200
    assert 0.4 < len(wrong) / len(single) < 0.5
    assert {row["bug"] for row in wrong} == set(BUGS)
    answers = {row["prompt"][0]["content"]: row["completion"][0]["content"] for row in right}
    assert all(answers[row["prompt"][0]["content"]] != row["completion"][0]["content"] for row in wrong)
    assert all(ops.parse_response(row["completion"][0]["content"]).ok for row in single)
    assert all("_kernel[" not in row["completion"][0]["content"] for row in single)


def test_prompts_of_right_and_wrong_answers_are_the_same(mixed: Path) -> None:
    tasks = {build_messages(task, "nano")[0]["content"] for task in load_tasks("packaged:pointwise")}
    assert {row["prompt"][0]["content"] for row in rows_of(mixed)} == tasks


def test_excluded_families_are_left_out_and_an_unknown_name_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "mix.parquet"
    command = ["mix", "packaged:pointwise", "--out", str(target), "--talks", "0", "--exclude-families", "residual"]
    assert main(command) == 0
    left = {
        build_messages(task, "nano")[0]["content"] for task in load_tasks("packaged:pointwise", families=["residual"])
    }
    assert left
    assert not left & {row["prompt"][0]["content"] for row in rows_of(target)}
    assert main([*command, "residuals"]) == 2
    assert "--exclude-families names residuals, which no pair of packaged:pointwise is of" in capsys.readouterr().err


def test_second_turns_have_the_same_prompt_ids_as_in_training(mixed: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(NANO_FOLDER)
    talks = [row for row in rows_of(mixed) if len(row["prompt"]) > 1]
    assert talks
    examples, dropped = encode_rows(Encoder(tokenizer, SftDataConfig(max_length=2048)), talks)
    assert not dropped
    for row, example in zip(talks, examples, strict=True):
        shown, said, reply = row["prompt"]
        assert [message["role"] for message in row["prompt"]] == ["user", "assistant", "user"]
        assert said["content"] != row["completion"][0]["content"]
        first = encode_prompt(tokenizer, [shown])
        ids = [*tokenizer.encode(said["content"], add_special_tokens=False), tokenizer.eos_token_id]
        asked = extend_prompt(tokenizer, [shown], first, ids, [reply])
        assert example.ids[: len(asked)].tolist() == asked
        assert example.in_loss.tolist() == [place >= len(asked) for place in range(len(example))]


def test_mix_without_second_turns_gives_the_same_rows_again(mixed: Path, tmp_path: Path) -> None:
    found = mix("packaged:pointwise", tmp_path / "mix.parquet", talks=0.0)
    assert found["second turns"] == 0
    again = mix("packaged:pointwise", tmp_path / "again.parquet", talks=0.0)
    assert again == found
    assert (tmp_path / "mix.parquet").read_bytes() == (tmp_path / "again.parquet").read_bytes()
    assert conversation_rows(str(tmp_path / "mix.parquet")) is not None
    assert mix("packaged:pointwise", tmp_path / "clean.parquet", wrong=0.0, talks=0.0)["wrong"] == 0


def test_example_in_a_prompt_differs_in_more_than_names_and_constants(tmp_path: Path) -> None:
    found = mix("packaged:pointwise", tmp_path / "mix.parquet", talks=0.0, examples=0.5)
    plain = mix("packaged:pointwise", tmp_path / "plain.parquet", talks=0.0)
    assert {**found, "pairs with an example": 0} == plain
    rows, without = rows_of(tmp_path / "mix.parquet"), rows_of(tmp_path / "plain.parquet")
    assert [row["completion"] for row in rows] == [row["completion"] for row in without]
    shown = [row for row, other in zip(rows, without, strict=True) if row["prompt"] != other["prompt"]]
    assert 0.3 < len(shown) / len(rows) < 0.7
    for row in shown:
        example, module = row["prompt"][0]["content"].split("\nRewrite `")
        known, solution = re.findall(r"```python\n(.*?)```", example, re.DOTALL)
        own = module.split("```python\n")[1].removesuffix("```")
        assert "<thinking>\n</thinking>" in example
        assert fingerprint(known, class_name="Model") != fingerprint(own, class_name="Model")
        assert "class ModelNew" in solution
    assert mix("packaged:pointwise", tmp_path / "again.parquet", talks=0.0, examples=0.5) == found
    assert (tmp_path / "mix.parquet").read_bytes() == (tmp_path / "again.parquet").read_bytes()


def test_tunings_are_conversations_that_change_only_a_tile_size_or_the_number_of_warps(tmp_path: Path) -> None:
    found = mix("packaged:pointwise", tmp_path / "mix.parquet", talks=0.0, tunings=0.5)
    rows = [row for row in rows_of(tmp_path / "mix.parquet") if len(row["prompt"]) > 1]
    assert found["tunings"] == len(rows)
    assert 0.35 < len(rows) / 200 < 0.65
    plain = mix("packaged:pointwise", tmp_path / "plain.parquet", talks=0.0)
    assert {**found, "tunings": 0} == plain
    settings = re.compile(r", num_warps=\d+|\b(?:256|512|1024|2048|4096)\b")
    for row in rows:
        _, shown, said = row["prompt"]
        new = row["completion"][0]["content"]
        assert said["content"] == "correct\nModelNew is correct."
        assert new != shown["content"]
        assert settings.sub("", new) == settings.sub("", shown["content"])
        assert row["bug"] == ""
    tuned = [row for row in rows if "num_warps" in row["prompt"][1]["content"]]
    assert 0.1 < len(tuned) / len(rows) < 0.5


@pytest.mark.parametrize(
    ("pairs", "out", "flags", "sentence"),
    [
        ("packaged:pointwise", "mix.parquet", ["--examples", "2"], "--talks, --tunings and --examples between 0 and 1"),
        ("packaged:pointwise", "mix.parquet", ["--tunings", "-1"], "got 0.45, 0.06, -1.0 and 0.0"),
        ("packaged:pointwise", "mix.parquet", ["--wrong", "1"], "--wrong must be at least 0 and below 1"),
        ("packaged:pointwise", ".", [], "--out must be a file to write"),
        ("packaged:pointwise", "file/mix.parquet", ["--talks", "0"], "file"),
        ("no.parquet", "mix.parquet", [], "no.parquet"),
    ],
)
def test_mistake_gives_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pairs: str, out: str, flags: list[str], sentence: str
) -> None:
    (tmp_path / "file").write_text("no folder")
    assert main(["mix", pairs, "--out", str(tmp_path / out), *flags]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert sentence in said
