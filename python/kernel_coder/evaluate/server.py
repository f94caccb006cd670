"""A model behind an OpenAI-compatible server. Several requests run at once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from kernel_coder.evaluate.answers import Answer, Asked, AskedT, Poll
from kernel_coder.evaluate.config import EvaluateConfig
from kernel_coder.evaluate.errors import ServerFailed, UsageError

NO_KEY = "none"
"""API key that is sent if no key is configured: a local server needs none, but the client requires one."""

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 8.0
"""Shortest and longest wait before a retry, in seconds; the wait doubles with each retry. The client's own defaults."""

POLL_S = 0.2
"""Upper limit for a wait between two calls of ``poll``, in seconds, so that a signal to stop is noticed this soon."""

DEAD_AFTER = 3
"""Number of failed requests in a row, each with all its retries, after which the client gives up on the server."""

NEW_LENGTH_FIELD = "max_completion_tokens"
"""The name of ``max_tokens`` in requests to newer OpenAI models."""

TOO_LONG = ("context_length_exceeded", "context length", "context size", "maximum context", "too long", "max_model_len")
"""Texts in the code or message of a status 400 by which servers say that a prompt does not fit the context."""


class Server:
    """A client of the server.

    Failed requests are retried with growing waits, or waits of the length that the server asks for. After the last
    retry the client raises :class:`ServerFailed`. A request that the server refuses is a :class:`UsageError`; if only
    its prompt is too long, the result is an answer with a ``problem``.
    """

    def __init__(self, config: EvaluateConfig) -> None:
        import openai

        self.config = config
        self.openai = openai
        # The client itself retries connection errors and statuses 408, 409, 429 and 5xx, and obeys Retry-After.
        self.client = openai.AsyncOpenAI(
            base_url=config.base_url,
            api_key=api_key(config.api_key_env),
            timeout=config.request_timeout_s,
            max_retries=config.max_retries,
        )
        self.length_field = "max_tokens"
        self.loop = asyncio.new_event_loop()

    def answer(self, requests: Sequence[AskedT], poll: Poll) -> Iterator[tuple[AskedT, Answer]]:
        if any(request.messages[-1]["role"] == "assistant" for request in requests[:1]):
            raise UsageError(
                f"prompt template {self.config.prompt_template} begins the answer itself, and a chat server cannot "
                "continue it; use another --prompt-template"
            )
        started = 0
        running: dict[asyncio.Task[Answer], AskedT] = {}
        failure: Exception | None = None
        failed_in_a_row = 0
        try:
            while True:
                while failed_in_a_row < DEAD_AFTER and len(running) < self.config.concurrency:
                    if started == len(requests):
                        break
                    running[self.loop.create_task(self._ask(requests[started]))] = requests[started]
                    started += 1
                if not running:
                    break
                poll()
                done, _ = self.loop.run_until_complete(
                    asyncio.wait(running, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                )
                for task in done:
                    request = running.pop(task)
                    try:
                        answer = task.result()
                    except UsageError as error:
                        failure, failed_in_a_row = error, DEAD_AFTER
                    except ServerFailed as error:
                        failure, failed_in_a_row = failure or error, failed_in_a_row + 1
                    else:
                        if failed_in_a_row < DEAD_AFTER:
                            failed_in_a_row = 0
                        yield request, answer  # also answers that arrive after other requests failed
            if failure is not None:
                raise failure
        finally:
            for task in running:
                task.cancel()
            if running:
                self.loop.run_until_complete(asyncio.wait(running))

    async def _ask(self, request: Asked) -> Answer:
        """Return one answer. A reply that is no chat completion is retried like a failed request."""
        openai, problem = self.openai, ""
        began = time.monotonic()
        for attempt in range(self.config.max_retries + 1):
            if attempt:
                await asyncio.sleep(min(FIRST_WAIT_S * 2 ** (attempt - 1), LONGEST_WAIT_S))
            try:
                return replace(self._answer(await self._post(request)), seconds=time.monotonic() - began)
            except openai.APIStatusError as error:
                if error.status_code >= 500 or error.status_code in (408, 409, 429):
                    raise self._failed(f"{error.status_code}: {_one_line(error)}") from None
                return self._refused(error)
            except openai.APIConnectionError as error:  # also timeouts
                raise self._failed(f"{_one_line(error)} {_one_line(error.__cause__)}".strip()) from None
            except (openai.APIError, ValueError, TypeError, AttributeError, LookupError) as error:
                problem = f"its reply is no chat completion ({type(error).__name__}: {_one_line(error)})"
        raise self._failed(problem)

    async def _post(self, request: Asked) -> Any:
        field = self.length_field
        try:
            return await self._create(request, field)
        except self.openai.BadRequestError as error:
            # Newer OpenAI models accept only the new name, older servers only the old one.
            if field == NEW_LENGTH_FIELD or NEW_LENGTH_FIELD not in str(error):
                raise
            self.length_field = NEW_LENGTH_FIELD
            return await self._create(request, NEW_LENGTH_FIELD)

    async def _create(self, request: Asked, length_field: str) -> Any:
        return await self.client.chat.completions.create(
            model=self.config.model,
            messages=[dict(message) for message in request.messages],  # type: ignore[misc]
            temperature=self.config.temperature,
            top_p=self.config.top_p,
            seed=request.seed % 2**31,  # some servers store seeds in 32 bits
            extra_body={length_field: self.config.max_new_tokens, **self.config.extra_body},
        )

    def _answer(self, reply: Any) -> Answer:
        choice = reply.choices[0]
        text = choice.message.content
        if text is not None and not isinstance(text, str):
            raise TypeError(f"content is {type(text).__name__}")
        # Fields beyond OpenAI's: vLLM, SGLang and DeepSeek use one of the two names.
        reasoning = getattr(choice.message, "reasoning_content", None) or getattr(choice.message, "reasoning", None)
        usage = reply.usage
        return Answer(
            _writable(text or ""),
            str(choice.finish_reason or "stop"),
            None if usage is None else usage.prompt_tokens,
            None if usage is None else usage.completion_tokens,
            reasoning=_writable(reasoning) if isinstance(reasoning, str) else None,
        )

    def _refused(self, error: Any) -> Answer:
        message = _one_line(error)
        if error.status_code in (400, 413, 422) and any(text in f"{error.code} {message}".lower() for text in TOO_LONG):
            return Answer("", "refused", problem=f"the server refused the prompt: {message[:300]}")
        if error.status_code in (401, 403):
            name = self.config.api_key_env
            hint = (
                f"it does not accept the key in {name}"
                if name
                else "name a variable that holds its key with --api-key-env"
            )
            raise UsageError(f"the server at {self.config.base_url} refuses access ({error.status_code}): {hint}")
        raise UsageError(f"the server at {self.config.base_url} refuses the request ({error.status_code}): {message}")

    def _failed(self, problem: str) -> ServerFailed:
        tries = self.config.max_retries + 1
        return ServerFailed(f"the server at {self.config.base_url} gave no answer in {tries} tries: {problem}")

    def close(self) -> None:
        if not self.loop.is_closed():
            self.loop.run_until_complete(self.client.close())
            self.loop.close()


def api_key(variable: str | None) -> str:
    """Return the API key in the environment variable. Raises :class:`UsageError` if the variable is missing or
    empty."""
    if variable is None:
        return NO_KEY
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UsageError(f"--api-key-env names {variable}, but this environment variable is missing or empty")
    return key


def _writable(text: str) -> str:
    """Replaces unpaired surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _one_line(error: BaseException | None) -> str:
    return "" if error is None else " ".join(str(error).split())[:500]
