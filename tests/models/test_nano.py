"""The nano model's tokenizer, sizes and commands: lossless, small, and the same bytes every time."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder import ops
from kernel_coder.models.nano import (
    MAX_BYTES,
    TAGS,
    corpus,
    main,
    nano_config,
    nano_model,
    train_tokenizer,
)
from kernel_coder.prompts import build_answer, build_messages, encode_prompt
from kernel_coder.tasks import load_tasks
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nano")
    assert main(["tokenizer", "packaged", "--output", str(folder / "tokenizer"), "--vocab-size", "1024"]) == 0
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(folder / "tokenizer")


def digest(path: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(path.iterdir()))).hexdigest()


@pytest.mark.long
def test_same_corpus_gives_the_same_bytes_in_another_process(folder: Path, tmp_path: Path) -> None:
    command = ["tokenizer", "packaged", "--output", str(tmp_path / "tokenizer"), "--vocab-size", "1024"]
    subprocess.run([sys.executable, "-m", "kernel_coder.models.nano", *command], check=True, capture_output=True)
    assert digest(tmp_path / "tokenizer") == digest(folder / "tokenizer")


# The test only reads the fixture, so all examples may share it.
@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_decoding_gives_back_any_text(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_decoding_gives_back_every_packaged_pair(tokenizer: PreTrainedTokenizerFast) -> None:
    for text in corpus(["packaged"]):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_tags_and_indentation_are_one_token_and_digits_one_each(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer) == 1024
    for tag in TAGS:
        assert len(tokenizer.encode(tag, add_special_tokens=False)) == 1
    for indent in ("\n    ", "\n        ", "\n\n\n"):
        assert len(tokenizer.encode(indent, add_special_tokens=False)) == 1
    assert len(tokenizer.encode("4096", add_special_tokens=False)) == 4
    assert len(tokenizer.encode(" tl.constexpr", add_special_tokens=False)) <= 3
    # The tags are no special tokens, so a decoded answer keeps them.
    answer = build_answer("x = 1", "So.")
    ids = tokenizer.encode(answer, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == answer
    assert ops.parse_response(answer).ok


def test_packaged_prompts_and_pairs_need_few_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    tasks = list(load_tasks("packaged"))
    prompts = [len(encode_prompt(tokenizer, build_messages(task, "nano"))) for task in tasks]
    assert sum(prompts) / len(prompts) < 350
    texts = list(corpus(["packaged"]))
    assert sum(map(len, texts)) / sum(len(tokenizer.encode(text)) for text in texts) > 2.5


def test_default_model_fits_into_the_shipped_size() -> None:
    tokenizer = train_tokenizer(["import torch\n"] * 3)
    model = nano_model(nano_config(tokenizer, vocab_size=1024))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert 1.9e6 < parameters < 2.1e6
    assert 2 * parameters < 0.98 * MAX_BYTES["model.safetensors"]
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_init_and_export_give_a_loadable_model(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = json.dumps({"num_hidden_layers": 1, "hidden_size": 48, "intermediate_size": 64})
    before = torch.get_rng_state()
    for name in "ab":
        command = [
            "init",
            "--tokenizer",
            str(folder / "tokenizer"),
            "--output",
            str(tmp_path / name),
            "--config",
            small,
        ]
        assert main(command) == 0
    assert torch.equal(torch.get_rng_state(), before)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert "parameters" in capsys.readouterr().out
    assert main(["export", str(tmp_path / "a"), "--output", str(tmp_path / "shipped")]) == 0
    assert "model.safetensors" in capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "shipped")
    assert model.dtype == torch.float16
    assert AutoTokenizer.from_pretrained(tmp_path / "shipped").chat_template
    assert {file.suffix for file in (tmp_path / "shipped").iterdir()} <= {".json", ".safetensors", ".jinja"}


def test_model_that_is_too_large_is_not_exported(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = json.dumps({"num_hidden_layers": 1, "intermediate_size": 16_000})
    command = ["init", "--tokenizer", str(folder / "tokenizer"), "--output", str(tmp_path / "a"), "--config", large]
    assert main(command) == 0
    assert main(["export", str(tmp_path / "a"), "--output", str(tmp_path / "shipped")]) == 2
    assert "more than the 15,000,000 that are shipped" in capsys.readouterr().err


def test_corpus_takes_files_tables_and_folders(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.jsonl").write_text('{"text": "two"}\n{"text": "three"}\n')
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "d.py").write_text("four")
    assert list(corpus([tmp_path / "a.txt", tmp_path / "b.jsonl", tmp_path / "c"])) == ["one", "two", "three", "four"]


def test_corpus_takes_conversations(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": said[:1], "completion": said[1:]}))
    (tmp_path / "b.jsonl").write_text(json.dumps({"messages": said}))
    assert list(corpus([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])) == ["one", "two"] * 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tokenizer", "packaged", "--vocab-size", "9"], "vocab_size must be at least 265"),
        (["tokenizer", "no.jsonl"], "names no file or folder: no.jsonl"),
        (["export", "no/model"], "no/model is not a folder"),
    ],
)
def test_mistake_gives_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main([*arguments, "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert sentence in said
