"""From messages to ids, with and without a chat template, and prompts that are too long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder.prompts import Message, build_messages, check_prompt_length, encode_prompt
from kernel_coder.tasks import Task
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if not loop.last or add_generation_prompt %}"
    "[end]{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
MESSAGES: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Warum ü?"}]


def byte_tokenizer(chat_template: str | None = None, bos: bool = True) -> Any:
    """A real transformers tokenizer with one token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(["<s>", *alphabet])}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, **({"bos_token": "<s>"} if bos else {}))
    tokenizer.chat_template = chat_template
    tokenizer.name_or_path = "mine"
    return tokenizer


def test_the_tokenizers_own_template_is_used_and_special_tokens_are_not_doubled() -> None:
    tokenizer = byte_tokenizer(CHAT)
    ids = encode_prompt(tokenizer, MESSAGES)
    assert tokenizer.decode(ids) == "<s>[system]Be brief.[end][user]Warum ü?[end][assistant]"
    assert ids.count(tokenizer.bos_token_id) == 1
    assert all(type(i) is int for i in ids)


def test_prompt_ends_with_the_given_beginning_of_the_answer() -> None:
    tokenizer = byte_tokenizer(CHAT)
    begun: list[Message] = [*MESSAGES, {"role": "assistant", "content": "<thinking>"}]
    assert tokenizer.decode(encode_prompt(tokenizer, begun)).endswith("[end][assistant]<thinking>")
    assert tokenizer.decode(encode_prompt(tokenizer, begun, "plain")).endswith("Warum ü?\n\n<thinking>")


def test_plain_template_writes_only_the_text() -> None:
    with_bos, without = byte_tokenizer(), byte_tokenizer(bos=False)
    assert with_bos.decode(encode_prompt(with_bos, MESSAGES, "plain")) == "<s>Be brief.\n\nWarum ü?\n"
    assert without.decode(encode_prompt(without, MESSAGES, "plain")) == "Be brief.\n\nWarum ü?\n"


def test_given_template_as_text_or_file_overrides_that_of_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(CHAT)
    template = "{{ messages[-1].content }}"
    (tmp_path / "chat.jinja").write_text(template)
    for given_template in (template, tmp_path / "chat.jinja", str(tmp_path / "chat.jinja")):
        assert tokenizer.decode(encode_prompt(tokenizer, MESSAGES, given_template)) == "Warum ü?"


def test_every_byte_of_a_task_reaches_the_model() -> None:
    tokenizer = byte_tokenizer(CHAT)
    task = Task(id="t", source="test", reference="class Model:\n    'ünïcödé \U0001f980'\n\tpass")
    assert task.reference in tokenizer.decode(encode_prompt(tokenizer, build_messages(task)))


# Mistakes


def test_error_for_a_tokenizer_without_chat_template_names_the_field() -> None:
    with pytest.raises(ValueError, match="has no chat template") as caught:
        encode_prompt(byte_tokenizer(), MESSAGES)
    assert str(caught.value) == (
        "the tokenizer mine has no chat template; set model.chat_template to plain (text without role marks, for a "
        "base model) or to a file with a Jinja chat template"
    )


def test_error_repeats_why_a_template_refused_a_role() -> None:
    template = "{{ raise_exception('no system role here') }}"
    with pytest.raises(ValueError, match="refused messages with the roles system, user: no system role here"):
        encode_prompt(byte_tokenizer(template), MESSAGES)


def test_error_for_a_missing_template_file_names_it() -> None:
    with pytest.raises(ValueError, match=r"model\.chat_template must be plain, .*; chat\.jinja cannot be read"):
        encode_prompt(byte_tokenizer(), MESSAGES, "chat.jinja")


def test_empty_list_of_messages_is_refused() -> None:
    with pytest.raises(ValueError, match="messages is empty"):
        encode_prompt(byte_tokenizer(CHAT), [])


def test_a_prompt_that_is_too_long_gets_one_sentence() -> None:
    assert check_prompt_length(17, "relu", max_prompt_length=16) == (
        "the prompt of task relu has 17 tokens, more than data.max_prompt_length = 16"
    )
    assert check_prompt_length(17, "relu", context_length=32, max_completion_length=16) == (
        "the prompt of task relu has 17 tokens, which with 16 for the answer is more than the context of 32"
    )


@settings(deadline=None)
@given(tokens=st.integers(0, 99), limit=st.none() | st.integers(1, 99), context=st.none() | st.integers(1, 99))
def test_a_prompt_passes_exactly_when_it_fits(tokens: int, limit: int | None, context: int | None) -> None:
    reason = check_prompt_length(tokens, "t", max_prompt_length=limit, context_length=context, max_completion_length=8)
    fits = (limit is None or tokens <= limit) and (context is None or tokens + 8 <= context)
    assert (reason is None) == fits
