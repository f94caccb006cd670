"""A model behind an OpenAI-compatible server, asked by several requests at a time."""

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
"""What is sent where no key is named: servers of one's own ask for none, but the client wants some text."""

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 8.0
POLL_S = 0.2
DEAD_AFTER = 3
"""Requests in a row that came to nothing, each after all its tries."""
NEW_LENGTH_FIELD = "max_completion_tokens"

TOO_LONG = ("context_length_exceeded", "context length", "context size", "maximum context", "too long", "max_model_len")
"""How servers say that a prompt does not fit, in the code or the message of their 400."""


class Server:
    """A client of the server. What a server refuses for good is a :class:`UsageError`, or an answer with a ``problem``
    if only this prompt is too long; where it fails, the client repeats the request, waiting longer each time (or as
    long as the server says), and then gives up with :class:`ServerFailed`."""

    def __init__(self, config: EvaluateConfig) -> None:
        try:
            import openai
        except ModuleNotFoundError:
            raise UsageError("--base-url needs the package openai: pip install 'kernel-coder[eval]'") from None
        self.config = config
        self.openai = openai
        # The client retries what failed on the way, 408, 409, 429 and 5xx, and heeds Retry-After.
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
                f"prompt template {self.config.prompt_template} begins the answer itself, which a chat server "
                "cannot go on with; use another --prompt-template"
            )
        begun = 0
        running: dict[asyncio.Task[Answer], AskedT] = {}
        failure: Exception | None = None
        failed_in_a_row = 0
        try:
            while True:
                while failed_in_a_row < DEAD_AFTER and len(running) < self.config.concurrency:
                    if begun == len(requests):
                        break
                    running[self.loop.create_task(self._ask(requests[begun]))] = requests[begun]
                    begun += 1
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
                        yield request, answer  # also of one that was under way when the others failed
            if failure is not None:
                raise failure
        finally:
            for task in running:
                task.cancel()
            if running:
                self.loop.run_until_complete(asyncio.wait(running))

    async def _ask(self, request: Asked) -> Answer:
        """One answer; a reply that is none is asked for again, like a failure of the server."""
        openai, problem = self.openai, ""
        began = time.monotonic()
        for attempt in range(self.config.max_retries + 1):
            if attempt:
                await asyncio.sleep(min(FIRST_WAIT_S * 2 ** (attempt - 1), LONGEST_WAIT_S))
            try:
                return replace(self._answer(await self._post(request)), seconds=time.monotonic() - began)
            except openai.APIStatusError as error:
                if error.status_code >= 500 or error.status_code in (408, 409, 429):
                    raise self._failed(f"{error.status_code}: {_said(error)}") from None
                return self._refused(error)
            except openai.APIConnectionError as error:  # timeouts too
                raise self._failed(f"{_said(error)} {_said(error.__cause__)}".strip()) from None
            except (openai.APIError, ValueError, TypeError, AttributeError, LookupError) as error:
                problem = f"its reply is no chat completion ({type(error).__name__}: {_said(error)})"
        raise self._failed(problem)

    async def _post(self, request: Asked) -> Any:
        field = self.length_field
        try:
            return await self._create(request, field)
        except self.openai.BadRequestError as error:
            # Newer models of OpenAI's know the length by this name alone, older servers by the other.
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
            seed=request.seed % 2**31,  # some servers keep it in 32 bits
            extra_body={length_field: self.config.max_new_tokens, **self.config.extra_body},
        )

    def _answer(self, reply: Any) -> Answer:
        choice = reply.choices[0]
        text = choice.message.content
        if text is not None and not isinstance(text, str):
            raise TypeError(f"content is {type(text).__name__}")
        # Not OpenAI's: vLLM, SGLang and DeepSeek say the one or the other.
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
        said = _said(error)
        if error.status_code in (400, 413, 422) and any(text in f"{error.code} {said}".lower() for text in TOO_LONG):
            return Answer("", "refused", problem=f"the server refused the prompt: {said[:300]}")
        if error.status_code in (401, 403):
            named = self.config.api_key_env
            hint = f"the key in {named} is not accepted" if named else "name a variable with its key by --api-key-env"
            raise UsageError(f"the server at {self.config.base_url} refuses access ({error.status_code}): {hint}")
        raise UsageError(f"the server at {self.config.base_url} refuses the request ({error.status_code}): {said}")

    def _failed(self, problem: str) -> ServerFailed:
        tries = self.config.max_retries + 1
        return ServerFailed(f"the server at {self.config.base_url} gave no answer in {tries} tries: {problem}")

    def close(self) -> None:
        if not self.loop.is_closed():
            self.loop.run_until_complete(self.client.close())
            self.loop.close()


def api_key(variable: str | None) -> str:
    """The key that the environment variable holds."""
    if variable is None:
        return NO_KEY
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UsageError(f"--api-key-env names {variable}, but there is no such environment variable, or it is empty")
    return key


def _writable(text: str) -> str:
    """A reply can hold half of a surrogate pair, which no file takes."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _said(error: BaseException | None) -> str:
    return "" if error is None else " ".join(str(error).split())[:500]
