"""Answers from a server that fails, is slow, or sends invalid replies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from chat_server import NO_WAIT, Behaviour, ChatServer, Reply, chat_server, completion, refusal
from kernel_coder.evaluate import server as client
from kernel_coder.evaluate.answers import Answer, Request
from kernel_coder.evaluate.config import EvaluateConfig
from kernel_coder.evaluate.errors import ServerFailed, UsageError
from kernel_coder.evaluate.server import Server, api_key
from kernel_coder.prompts import Message
from kernel_coder.tasks import Task

TASK = Task(id="t", source="test", reference="...")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_WAIT_S", 0.01)


def requests(count: int, role: str = "user") -> list[Request]:
    return [Request(TASK, i, (Message(role=role, content=f"question {i}"),), seed=2**62 + i) for i in range(count)]


def ask(
    behave: Behaviour, wanted: Sequence[Request], got: list[tuple[int, Answer]] | None = None, **changes: Any
) -> tuple[dict[int, Answer], ChatServer]:
    found = [] if got is None else got
    with chat_server(behave) as state:
        config = EvaluateConfig.model_validate({"model": "m", "base_url": state.url, "max_retries": 2, **changes})
        server = Server(config)
        try:
            for request, answer in server.answer(wanted, lambda: None):
                found.append((request.sample, answer))
        finally:
            server.close()
    return dict(found), state


def echo(number: int, body: dict[str, Any]) -> Reply:
    return completion(f"answer to {body['messages'][-1]['content']}")


def test_every_request_gets_its_own_answer_within_the_concurrency_limit() -> None:
    answers, state = ask(lambda n, body: Reply(echo(n, body).body, delay_s=0.1), requests(12), concurrency=3)
    assert {i: answer.text for i, answer in answers.items()} == {i: f"answer to question {i}" for i in range(12)}
    assert 2 <= state.most_at_a_time <= 3
    assert (answers[0].finish_reason, answers[0].prompt_tokens, answers[0].completion_tokens) == ("stop", 11, 7)


def test_request_has_the_settings_of_the_config() -> None:
    _, state = ask(echo, requests(1), temperature=0.5, max_new_tokens=99, extra_body={"top_k": 20})
    (body,) = state.requests
    assert body["messages"] == [{"role": "user", "content": "question 0"}]
    assert (body["model"], body["temperature"], body["top_p"]) == ("m", 0.5, 0.97)
    assert (body["max_tokens"], body["top_k"]) == (99, 20)
    assert 0 <= body["seed"] < 2**31


@pytest.mark.parametrize(
    "trouble",
    [
        refusal(429, "slow down"),
        refusal(500, "oops"),
        refusal(503, "loading"),
        Reply("<html>bad gateway</html>", 502, NO_WAIT),
        Reply("this is no JSON"),
        Reply("{"),
        Reply({}),
        Reply({"choices": []}),
        Reply({"choices": [{"message": None}]}),
        Reply({"choices": [{"message": {"content": ["not", "text"]}, "finish_reason": "stop"}], "usage": None}),
        Reply(b"\xff\xfe\x00garbage"),
        Reply("null"),
    ],
    ids=["429", "500", "503", "502", "text", "cut", "empty", "no choice", "no message", "list", "bytes", "null"],
)
def test_request_is_repeated_after_a_temporary_failure(trouble: Reply) -> None:
    answers, state = ask(lambda n, body: trouble if n == 0 else echo(n, body), requests(1))
    assert answers[0].text == "answer to question 0"
    assert len(state.requests) == 2


@pytest.mark.parametrize("trouble", [refusal(503, "loading"), Reply("garbage")], ids=["503", "garbage"])
def test_permanent_failure_ends_the_run_and_keeps_the_answers_so_far(trouble: Reply) -> None:
    got: list[tuple[int, Answer]] = []
    asked: set[str] = set()

    def behave(number: int, body: dict[str, Any]) -> Reply:
        asked.add(body["messages"][-1]["content"])
        return echo(number, body) if number < 4 else trouble

    with pytest.raises(ServerFailed, match="gave no answer in 3 tries"):
        ask(behave, requests(40), got, concurrency=2)
    assert len(got) == 4
    assert len(asked) < 12


def test_other_requests_are_answered_although_one_always_fails() -> None:
    got: list[tuple[int, Answer]] = []

    def behave(number: int, body: dict[str, Any]) -> Reply:
        return refusal(500, "oops") if body["messages"][-1]["content"] == "question 3" else echo(number, body)

    with pytest.raises(ServerFailed):
        ask(behave, requests(9), got, concurrency=2)
    assert sorted(i for i, _ in got) == [0, 1, 2, 4, 5, 6, 7, 8]


def test_open_requests_are_still_answered_when_another_fails() -> None:
    got: list[tuple[int, Answer]] = []

    def behave(number: int, body: dict[str, Any]) -> Reply:
        if body["messages"][-1]["content"] == "question 0":
            return refusal(500, "oops")
        return Reply(echo(number, body).body, delay_s=0.5)

    with pytest.raises(ServerFailed):
        ask(behave, requests(4), got, concurrency=4, max_retries=0)
    assert sorted(i for i, _ in got) == [1, 2, 3]


def test_error_for_an_unreachable_server_names_it() -> None:
    server = Server(EvaluateConfig(model="m", base_url="http://127.0.0.1:9/v1", max_retries=0))
    with pytest.raises(ServerFailed, match=r"http://127\.0\.0\.1:9/v1 gave no answer"):
        list(server.answer(requests(1), lambda: None))
    server.close()


def test_request_ends_after_the_time_limit() -> None:
    began = time.monotonic()
    with pytest.raises(ServerFailed, match="timed out"):
        ask(lambda n, body: Reply(b"{}", delay_s=3.0), requests(1), request_timeout_s=0.2, max_retries=0)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (refusal(401, "no key"), r"refuses access \(401\): name a variable that holds its key with --api-key-env"),
        (refusal(404, "the model m does not exist"), r"refuses the request \(404\): .*the model m does not exist"),
        (refusal(400, "temperature must be below 1"), r"refuses the request \(400\): .*temperature must be below 1"),
    ],
    ids=["key", "model", "parameter"],
)
def test_request_that_the_server_refuses_gives_a_usage_error(reply: Reply, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        ask(lambda n, body: reply, requests(3))


@pytest.mark.parametrize(
    "reply",
    [
        refusal(400, "no", code="context_length_exceeded"),
        refusal(400, "This model's maximum context length is 4096 tokens."),
    ],
    ids=["code", "message"],
)
def test_prompt_that_is_too_long_is_refused_and_other_requests_are_answered(reply: Reply) -> None:
    answers, _ = ask(
        lambda n, body: reply if body["messages"][-1]["content"].endswith("1") else echo(n, body), requests(3)
    )
    assert [answers[i].finish_reason for i in range(3)] == ["stop", "refused", "stop"]
    assert (answers[1].problem or "").startswith("the server refused the prompt")


def test_request_is_repeated_with_max_completion_tokens_if_the_server_requires_it() -> None:
    def behave(number: int, body: dict[str, Any]) -> Reply:
        if "max_tokens" in body:
            return refusal(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        return echo(number, body)

    answers, state = ask(behave, requests(4), concurrency=2, max_new_tokens=5)
    assert len(answers) == 4
    assert state.requests[-1]["max_completion_tokens"] == 5


@pytest.mark.parametrize(("text", "kept"), [(None, ""), ("half \ud800 pair", "half ? pair")], ids=["null", "surrogate"])
def test_null_and_surrogates_in_an_answer_become_writable_text(text: str | None, kept: str) -> None:
    answers, _ = ask(lambda n, body: completion(text, "length"), requests(1))
    assert answers[0].text == kept
    assert answers[0].finish_reason == "length"


def test_a_key_is_sent_only_if_a_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("MY_KEY", "mine")
    assert ask(echo, requests(1))[1].keys == ["Bearer none"]
    assert ask(echo, requests(1), api_key_env="MY_KEY")[1].keys == ["Bearer mine"]


@pytest.mark.parametrize("value", [None, " "], ids=["missing", "empty"])
def test_missing_or_empty_key_variable_is_refused(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(UsageError, match="--api-key-env names MY_KEY, but this environment variable is missing"):
        api_key("MY_KEY")


def test_a_template_that_begins_the_answer_is_refused() -> None:
    with pytest.raises(UsageError, match="begins the answer itself"):
        ask(echo, requests(1, role="assistant"))


def test_stopping_does_not_wait_for_the_server() -> None:
    def stop() -> None:
        if time.monotonic() - began > 0.3:
            raise KeyboardInterrupt

    began = time.monotonic()
    with chat_server(lambda n, body: Reply(b"{}", delay_s=40.0)) as state:
        server = Server(EvaluateConfig(model="m", base_url=state.url))
        with pytest.raises(KeyboardInterrupt):
            list(server.answer(requests(3), stop))
        server.close()
        assert time.monotonic() - began < 20
