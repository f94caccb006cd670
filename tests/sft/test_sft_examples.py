"""The loss covers the answer and its end token, never a token of the prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kernel_coder import ops
from kernel_coder.models.tiny import CHAT_TEMPLATE, tiny_tokenizer
from kernel_coder.prompts import build_answer, build_messages, encode_prompt
from kernel_coder.rewards import load_reward
from kernel_coder.sft.config import SftDataConfig
from kernel_coder.sft.examples import (
    DroppedError,
    Encoder,
    Example,
    conversation_rows,
    encode_rows,
    encode_tasks,
    end_of_turn,
    fingerprint,
)
from kernel_coder.tasks import Task, load_tasks

# As in SmolLM2 and Qwen2.5: the template adds a system message if the conversation has none.
WITH_SYSTEM = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}<|im_start|>system\nBe useful.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As in Llama 3: a turn ends with another token than a text. A text ends with <|im_end|> here.
OTHER_END = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n\n{{ m['content'] }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
NO_END = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
TEMPLATES = {"tiny": CHAT_TEMPLATE, "with system": WITH_SYSTEM, "other end": OTHER_END, "no end": NO_END, "plain": None}
ENDS = {"tiny": "<|im_end|>", "with system": "<|im_end|>", "other end": "<|endoftext|>"}


def encoder(template: str | None = CHAT_TEMPLATE, **config: Any) -> Encoder:
    plain = "plain" if template is None else None
    return Encoder(tiny_tokenizer(template), SftDataConfig(**{"max_length": 4096, **config}), plain)


def only(made: Encoder, task: Task) -> Example:
    (example,), _ = encode_tasks(made, [task])
    return example


@pytest.fixture(scope="module")
def task() -> Task:
    return next(iter(load_tasks("packaged")))


@pytest.mark.parametrize("name", TEMPLATES)
def test_labels_are_the_answer_and_its_end_and_nothing_of_the_prompt(task: Task, name: str) -> None:
    made = encoder(TEMPLATES[name])
    example = only(made, task)
    prompt = encode_prompt(made.tokenizer, build_messages(task), made.plain)
    assert example.ids[: len(prompt)].tolist() == prompt
    assert not example.in_loss[: len(prompt)].any()
    assert example.in_loss[len(prompt) :].all()
    learnt = made.tokenizer.decode(example.ids[example.in_loss])
    assert learnt == build_answer(str(task.solution)) + ENDS.get(name, "<|im_end|>")


def test_tokens_in_the_loss_earn_the_format_reward(task: Task) -> None:
    made = encoder(thinking="Fuse everything.")
    example = only(made, task)
    text = made.tokenizer.decode(example.ids[example.in_loss], skip_special_tokens=True)
    assert load_reward("format", {})(["?"], [text]) == [1.0]
    assert ops.parse_response(text).code == str(task.solution).strip("\n")
    assert ops.parse_response(text).thinking == "Fuse everything."


def test_every_packaged_pair_is_an_example() -> None:
    examples, dropped = encode_tasks(encoder(max_length=100_000), load_tasks("packaged"))
    assert dropped == []
    assert len(examples) == 118


def test_two_processes_make_the_same_examples_as_one() -> None:
    made, tasks = encoder(max_length=600), load_tasks("packaged")
    alone, together = (encode_tasks(made, tasks, num_proc) for num_proc in (1, 2))
    assert fingerprint(together[0]) == fingerprint(alone[0])
    assert together[1] == alone[1] != []


def test_thinking_of_a_row_replaces_that_of_the_config(task: Task) -> None:
    thoughtful = Task(**{**{f: getattr(task, f) for f in task.__slots__}, "metadata": {"thinking": "Mine."}})
    made = encoder(thinking="Ours.")
    assert "<thinking>\nMine.\n</thinking>" in made.tokenizer.decode(only(made, thoughtful).ids)


def test_answer_that_the_template_begins_is_continued(task: Task, tmp_path: Path) -> None:
    template = tmp_path / "begun.jinja"
    template.write_text("{% block user %}?{% endblock %}{% block assistant %}<thinking>\n{% endblock %}")
    made = encoder(prompt_template=str(template), thinking="So.")
    example = only(made, task)
    # The template's text is stripped, so the answer continues with the line end.
    assert made.tokenizer.decode(example.ids[example.in_loss]).startswith("\nSo.\n</thinking>")
    template.write_text("{% block user %}?{% endblock %}{% block assistant %}Well,{% endblock %}")
    with pytest.raises(DroppedError, match="does not start with the beginning"):
        encoder(prompt_template=str(template)).texts_of(task)


def test_pretraining_learns_every_token_but_the_first(task: Task) -> None:
    example = only(encoder(assistant_only_loss=False), task)
    assert not example.in_loss[0]
    assert example.in_loss[1:].all()


def test_every_answer_of_a_conversation_is_learnt() -> None:
    made = encoder(WITH_SYSTEM)
    turns = [("system", "S"), ("user", "a?"), ("assistant", "A!"), ("user", "b?"), ("assistant", "B!")]
    example = made.of_messages("m", [{"role": role, "content": text} for role, text in turns])
    assert made.tokenizer.decode(example.ids[example.in_loss]) == "A!<|im_end|>B!<|im_end|>"
    whole = made.tokenizer.apply_chat_template(
        [{"role": role, "content": text} for role, text in turns], tokenize=False
    )
    assert made.tokenizer.decode(example.ids) == whole.removesuffix("\n")


def test_template_that_rewrites_earlier_answers_is_dropped() -> None:
    forgetful = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'user' or loop.last %}"
        "{{ m['content'] }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    turns = [("user", "a?"), ("assistant", "A!"), ("user", "b?"), ("assistant", "B!")]
    with pytest.raises(DroppedError, match="differently in a later turn"):
        encoder(forgetful).of_messages("m", [{"role": role, "content": text} for role, text in turns])


def test_end_of_turn_comes_from_the_template() -> None:
    for name, end in ENDS.items():
        tokenizer = tiny_tokenizer(TEMPLATES[name])
        assert tokenizer.decode(end_of_turn(tokenizer)) == end
    # As in GGUF files: the tokenizer names a wrong end token, but the template uses the right one.
    tokenizer = tiny_tokenizer(WITH_SYSTEM)
    tokenizer.eos_token = "<|im_start|>"
    assert tokenizer.decode(end_of_turn(tokenizer)) == "<|im_end|>"


def test_rows_with_the_columns_of_trl_are_encoded(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]},
        {"messages": [{"role": "user", "content": "?"}]},
    ]
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    examples, dropped = encode_rows(encoder(), conversation_rows(str(file)) or [])
    assert (len(examples), dropped) == (1, ["row 2: it has no answer"])
    table = tmp_path / "b.parquet"
    pq.write_table(pa.table({"prompt": ["a", "b"], "completion": ["x", "y"], "other": [1, 2]}), table)
    examples, dropped = encode_rows(encoder(), conversation_rows(str(table)) or [])
    assert (len(examples), dropped) == (2, [])
    assert encoder().tokenizer.decode(examples[1].ids[examples[1].in_loss]) == "y<|im_end|>"


def test_several_processes_encode_the_same_rows_in_the_same_order() -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"{k}?"}, {"role": "assistant", "content": f"{k}!"}][: 1 + k % 7]}
        for k in range(700)
    ]
    alone, together = (encode_rows(encoder(), rows, num_proc) for num_proc in (1, 2))
    assert fingerprint(alone[0]) == fingerprint(together[0])
    assert [one.id for one in alone[0][:2]] == ["row2", "row3"]
    assert alone[1] == together[1]
    assert together[1][-1] == "row 694: it has no answer"


def test_text_is_cut_into_pieces_and_refused_with_assistant_only_loss(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps({"text": "import torch\n" * 20}))
    rows = list(conversation_rows(str(tmp_path / "t.jsonl")) or [])
    made = encoder(assistant_only_loss=False, max_length=16)
    examples, dropped = encode_rows(made, rows)
    assert dropped == []
    assert max(map(len, examples)) == 16
    learnt = np.concatenate([examples[0].ids[:1], *(e.ids[e.in_loss] for e in examples)])
    assert made.tokenizer.decode(learnt) == "import torch\n" * 20 + "<|im_end|>"
    with pytest.raises(ValueError, match=r"set data\.assistant_only_loss false"):
        encode_rows(encoder(), rows)


def test_tables_of_tasks_are_no_conversations(tmp_path: Path) -> None:
    (tmp_path / "k.jsonl").write_text(json.dumps({"python_code": "x", "entry_point": "M", "text": "t"}))
    assert conversation_rows(str(tmp_path / "k.jsonl")) is None
    assert conversation_rows("packaged") is None
    assert conversation_rows(str(tmp_path)) is None


def test_dropped_tasks_are_named_with_the_reason(task: Task) -> None:
    bare = Task(id="bare", source="s", reference=task.reference, entry_point=task.entry_point)
    examples, dropped = encode_tasks(encoder(max_length=64), [task, bare])
    assert examples == []
    without, long = dropped
    assert without == "task bare: it has no known solution"
    assert long.startswith(f"task {task.id}: it has ")
    assert long.endswith("tokens, more than data.max_length = 64")


def test_fingerprint_depends_on_the_tokens_in_the_loss() -> None:
    def example(learnt: bool) -> Example:
        return Example("a", np.array([1, 2], dtype=np.int32), np.array([False, learnt]))

    assert fingerprint([example(True)]) == fingerprint([example(True)])
    assert fingerprint([example(True)]) != fingerprint([example(False)])


@pytest.mark.parametrize(
    ("code", "thinking", "sentence"),
    [
        ("  ", "", "code is empty"),
        ("x = '<answer>'", "", "code holds the tag <answer>"),
        ("x", "</thinking>", "thinking"),
    ],
)
def test_answer_that_the_form_cannot_hold_is_refused(code: str, thinking: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build_answer(code, thinking)
