"""A small random model in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_coder.evaluate.answers import Answer, Request
from kernel_coder.evaluate.config import EvaluateConfig
from kernel_coder.evaluate.devices import resolve_device, resolve_dtype
from kernel_coder.evaluate.errors import UsageError
from kernel_coder.evaluate.local import LocalModel
from kernel_coder.models.tiny import tiny_model, tiny_tokenizer
from kernel_coder.policy.model import check_hub
from kernel_coder.prompts import Message
from kernel_coder.tasks import Task

TASK = Task(id="t", source="test", reference="...")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def config(**changes: Any) -> EvaluateConfig:
    values = {"model": "tiny", "device": "cpu", "dtype": "float32", "max_new_tokens": 6, **changes}
    return EvaluateConfig.model_validate(values)


def conversation(*texts: str) -> tuple[Message, ...]:
    return tuple(Message(role=("user", "assistant")[i % 2], content=text) for i, text in enumerate(texts))


def ask(chosen: EvaluateConfig, conversations: list[tuple[Message, ...]], samples: int = 2) -> list[Answer]:
    requests = [Request(TASK, i, one, seed=i) for one in conversations for i in range(samples)]
    model = LocalModel(chosen)
    answers = list(model.answer(requests, lambda: None))
    model.close()
    assert [request for request, _ in answers] == requests
    return [answer for _, answer in answers]


def test_answers_do_not_depend_on_the_batch_size() -> None:
    asked = [conversation(f"question {i}") for i in range(3)]
    texts = [[answer.text for answer in ask(config(batch_size=size), asked)] for size in (1, 4, 16)]
    assert texts[0] == texts[1] == texts[2]
    assert len(set(texts[0])) == 6


def test_model_saved_in_a_folder_gives_the_same_answers(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    tiny_model(len(tokenizer)).save_pretrained(tmp_path)
    asked = [conversation("question")]
    assert ask(config(model=str(tmp_path)), asked) == ask(config(), asked)


def test_beginning_of_the_answer_in_the_template_is_part_of_the_answer() -> None:
    (answer,) = ask(config(), [conversation("question", "<thinking>")], samples=1)
    assert answer.text.startswith("<thinking>")


def small(monkeypatch: pytest.MonkeyPatch, context: int) -> None:
    monkeypatch.setattr(
        "kernel_coder.models.tiny.tiny_model", lambda vocabulary: tiny_model(vocabulary, context=context)
    )


def test_answer_ends_at_the_context_limit_and_a_prompt_that_fills_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small(monkeypatch, context=40)
    asked = [conversation("q"), conversation("word " * 3), conversation("word " * 50), conversation("q")]
    chosen = config(max_new_tokens=24, temperature=0.0, batch_size=16)
    answers = ask(chosen, asked, samples=1)
    assert [answer.finish_reason == "refused" for answer in answers] == [False, False, True, False]
    assert (answers[2].problem or "").endswith("leave no room in the model's context of 40")
    for answer in (answers[0], answers[1]):
        assert (answer.prompt_tokens or 0) + (answer.completion_tokens or 0) <= 40
    assert answers[0] == answers[3]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "./no/model"}, "^--model ./no/model is neither a folder nor a hub id"),
        ({"model": "no_such_model"}, "^--model no_such_model does not exist"),
        ({"model": "nanoo"}, "did you mean nano"),
        ({"chat_template": "/no/template"}, "^--chat-template /no/template cannot be read"),
    ],
)
def test_model_that_cannot_be_loaded_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        LocalModel(config(**changes))


def test_a_hub_id_without_network_fails_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(address: tuple[str, int], timeout: float) -> None:
        raise OSError(f"no route, waited {timeout:g} s at most")

    for name in ("HF_ENDPOINT", "HTTPS_PROXY", "https_proxy", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr("socket.create_connection", unreachable)
    with pytest.raises(UsageError, match=r"owner/name is not a folder on this machine, and the hub cannot .* 5 s"):
        LocalModel(config(model="owner/name"))
    (tmp_path / "hub" / "models--owner--name").mkdir(parents=True)
    check_hub("owner/name")  # no error: the model is in the cache
    check_hub("tiny")


def test_empty_model_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no tokenizer can be loaded from"):
        LocalModel(config(model=str(tmp_path)))


def test_error_for_too_little_memory_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LocalModel(config())

    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(model.engine, "generate", fail)
    with pytest.raises(UsageError, match="no memory for 1 answers of 6 tokens at once; use a smaller --batch-size"):
        list(model.answer([Request(TASK, 0, conversation("q"), seed=0)], lambda: None))


def test_device_auto_is_the_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert (resolve_device("auto"), resolve_dtype("auto", "cuda")) == ("cuda", "bfloat16")
    assert resolve_device("cuda:1") == "cuda:1"
    with pytest.raises(UsageError, match="--device is cuda:2, but the GPUs are numbered 0 to 1"):
        resolve_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (resolve_device("auto"), resolve_dtype("auto", "cpu")) == ("cpu", "float32")
    with pytest.raises(UsageError, match="sees no GPU"):
        resolve_device("cuda")
