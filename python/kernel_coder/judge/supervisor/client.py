"""A judge behind an HTTP service (``kernel-coder serve``), with the interface of a judge in this process."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.feedback import unjudged
from kernel_coder.judge.supervisor.admission import Admission
from kernel_coder.judge.supervisor.batching import verdicts_of
from kernel_coder.judge.supervisor.judge import as_task
from kernel_coder.judge.verdict import Outcome, Verdict
from kernel_coder.tasks.task import Task

if TYPE_CHECKING:
    import httpx

TOKEN_VARIABLE = "KERNEL_CODER_TOKEN"
"""Name of the environment variable with the service's token, for the service and its clients."""

FIRST_PAUSE_S, MAX_PAUSE_S = 0.25, 15.0
"""First and longest pause before a request is repeated, in seconds. The pause doubles each time, and a random part of
up to a half is left out, so that clients which were refused together do not come back together."""

RETRIED_STATUSES = frozenset({408, 425, 429, 499, 500, 502, 503, 504})
"""HTTP statuses after which the same request may succeed: the queue was full, or the service was restarted."""


class ServiceError(ValueError):
    """Raised if the service refuses a request, or cannot be reached when the client is opened."""


class _Requests:
    """The part that both clients share: bodies, addresses, pauses, and errors."""

    def __init__(self, url: str, token: str | None, patience_s: float, client_id: str | None) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url must begin with http:// or https://; got {url!r}")
        self.url, self.patience_s = url.rstrip("/"), patience_s
        token = token if token is not None else os.environ.get(TOKEN_VARIABLE)
        self.headers = {"X-Client-Id": client_id or f"{os.uname().nodename}-{os.getpid()}"}
        if token:
            self.headers["Authorization"] = f"Bearer {token}"

    def settings(self, library: Any) -> dict[str, Any]:
        """Return the arguments of httpx's clients."""
        return {
            "headers": self.headers,
            "timeout": library.Timeout(self.patience_s, connect=10.0),
            "limits": library.Limits(max_connections=None, max_keepalive_connections=64),
        }

    @staticmethod
    def body(task: Task, candidate: str, backend: str | None) -> dict[str, Any]:
        described = {
            "reference": task.reference,
            "id": task.id[:300],
            "entry_point": task.entry_point,
            "backend": task.backend,
            "precision": task.precision,
        }
        return {"task": described, "candidate": candidate, "backend": backend}

    @staticmethod
    def pause_s(attempt: int, retry_after: str) -> float:
        """Return the seconds until the next attempt: at least what the service asks for."""
        longest = min(FIRST_PAUSE_S * 2**attempt, MAX_PAUSE_S)
        asked = float(retry_after) if retry_after.replace(".", "", 1).isdigit() else 0.0
        return max(longest * random.uniform(0.5, 1.0), min(asked, MAX_PAUSE_S))

    @staticmethod
    def detail_of(response: httpx.Response) -> str:
        try:
            detail = response.json()["detail"]
        except (ValueError, KeyError, TypeError):
            return response.text[:200]
        if isinstance(detail, list):  # FastAPI's description of fields that do not fit
            return "; ".join(f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in detail)
        return str(detail)

    def refused(self, response: httpx.Response) -> ServiceError:
        return ServiceError(f"{self.url} refused the request ({response.status_code}): {self.detail_of(response)}")

    def attempts(self, task: Task, candidate: str, backend: str, device: str) -> _Attempts:
        return _Attempts(self, task, candidate, backend, device)


class _Attempts:
    """The attempts at one request: what each answer means, and how long to wait before the next attempt."""

    def __init__(self, requests: _Requests, task: Task, candidate: str, backend: str, device: str) -> None:
        self.body = requests.body(task, candidate, backend)
        self.url = f"{requests.url}/v1/judge"
        self._requests, self._task, self._candidate = requests, task, candidate
        self._backend, self._device = backend, device
        self._until = time.monotonic() + requests.patience_s
        self._count, self._why, self._retry_after = 0, "", ""

    def verdict_in(self, response: httpx.Response) -> Verdict | None:
        """Return the verdict; None if the request must be sent again."""
        if response.status_code == 200:
            return Verdict.from_json(response.text)
        if response.status_code != 202 and response.status_code not in RETRIED_STATUSES:
            raise self._requests.refused(response)
        self._why = self._requests.detail_of(response)
        self._retry_after = response.headers.get("retry-after", "")
        return None

    def not_answered(self, error: Exception) -> None:
        """Record that the connection failed."""
        self._why, self._retry_after = str(error) or type(error).__name__, ""

    def pause_s(self) -> float | None:
        """Return the seconds until the next attempt; None if the time is up."""
        pause_s = self._requests.pause_s(self._count, self._retry_after)
        self._count += 1
        return None if time.monotonic() + pause_s > self._until else pause_s

    def given_up(self, reason: str | None = None) -> Verdict:
        """Return the verdict ``harness_failed``, because no verdict came."""
        reason = reason or f"no verdict came from {self.url} within {self._requests.patience_s:g} s: {self._why}"
        return unjudged(
            self._task,
            self._candidate,
            Outcome.HARNESS_FAILED,
            reason,
            backend=self._backend,
            device=self._device,
        )


def _httpx() -> Any:
    """Import httpx, an optional dependency."""
    try:
        import httpx
    except ModuleNotFoundError:
        raise ServiceError("a judge behind a URL needs httpx: pip install 'kernel-coder[serve]'") from None
    return httpx


class Client:
    """A judge behind an HTTP service. It has the interface of :class:`kernel_coder.judge.Judge`.

    A request that the service cannot take now, because it is full or being restarted, is repeated for `patience_s`
    seconds. After that the verdict is ``harness_failed``, as for all failures that are not the candidate's.

    Args:
        url: address of the service, such as ``http://127.0.0.1:8400``.
        backend: the language of candidates, unless a call names another; None: that of their task.
        config: fields that differ from the defaults must equal the service's. The client compares them when it is
            opened.
        token: the service's token; None: that of the environment variable KERNEL_CODER_TOKEN.
        patience_s: time limit for one verdict in seconds, including repeated requests.
        client_id: the name under which the service queues this client; None: host name and process id.

    Raises:
        ServiceError: the service cannot be reached, refuses the token, or has another configuration.
    """

    def __init__(
        self,
        url: str,
        backend: str | None = None,
        *,
        config: JudgeConfig | None = None,
        token: str | None = None,
        patience_s: float = 1800.0,
        client_id: str | None = None,
    ) -> None:
        self._httpx = _httpx()
        self._requests = _Requests(url, token, patience_s, client_id)
        self._http = self._httpx.Client(**self._requests.settings(self._httpx))
        self._threads: ThreadPoolExecutor | None = None
        self._is_closed = self._gives_up = False
        try:
            info = self._info()
            self.config = JudgeConfig.model_validate(info["config"])
            _require_same(config, self.config, self._requests.url)
        except BaseException:
            self._http.close()
            raise
        self.device: str = info["device"]
        self.backend = backend
        self.at_once: int = info["at_once"]
        self.versions: dict[str, str] = info["versions"]
        self.profile = f"the sandbox of {self._requests.url}"

    def evaluate(self, task: Task | str, candidate: str, backend: str | None = None) -> Verdict:
        """Judge one candidate, as :meth:`kernel_coder.judge.Judge.evaluate` does.

        Raises:
            ServiceError: the service will always refuse this request: a wrong token, or a source that is too long.
        """
        if self._is_closed:
            raise ValueError("the client is closed")
        task = as_task(task)
        attempts = self._requests.attempts(task, candidate, backend or self.backend or task.backend, self.device)
        while not self._gives_up:
            try:
                if (verdict := attempts.verdict_in(self._http.post(attempts.url, json=attempts.body))) is not None:
                    return verdict
            except self._httpx.TransportError as error:
                attempts.not_answered(error)
            if (pause_s := attempts.pause_s()) is None:
                return attempts.given_up()
            time.sleep(pause_s)
        return attempts.given_up("it was given up before a verdict came")

    def evaluate_many(
        self, pairs: Iterable[Sequence[Any]], *, progress: bool = False, total: int | None = None
    ) -> Iterator[Verdict]:
        """Judge several ``(task, candidate)`` or ``(task, candidate, backend)`` at a time. Yield verdicts in order."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(2 * self.at_once, thread_name_prefix="judge-client")
        return verdicts_of(self, pairs, self._threads, progress=progress, total=total)

    def admit(self, task: Task | str) -> Admission:
        """Check a task, as :meth:`kernel_coder.judge.Judge.admit` does."""
        task = as_task(task)
        body = {"task": self._requests.body(task, "", None)["task"]}
        response = self._http.post(f"{self._requests.url}/v1/admit", json=body)
        if response.status_code != 200:
            raise self._requests.refused(response)
        found: dict[str, Any] = response.json()
        verdict = found.pop("verdict")
        found["families"] = tuple(found["families"])
        return Admission(**found, verdict=None if verdict is None else Verdict.from_json(json.dumps(verdict)))

    def give_up_waiting(self) -> None:
        """Give up requests that wait in other threads: their verdict is ``harness_failed``."""
        self._gives_up = True

    def close(self, *, wait: bool = True) -> None:
        """Close the connections. The service keeps running."""
        self._is_closed = True
        self._gives_up = self._gives_up or not wait
        if self._threads is not None:
            self._threads.shutdown(wait=wait, cancel_futures=not wait)
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(wait=kind is None)

    def _info(self) -> dict[str, Any]:
        url = f"{self._requests.url}/v1/info"
        why = ""
        for attempt in range(4):  # the service may be starting
            if attempt:
                time.sleep(self._requests.pause_s(attempt, ""))
            try:
                response = self._http.get(url, timeout=10.0)
            except self._httpx.TransportError as error:
                why = str(error) or type(error).__name__
                continue
            if response.status_code == 200:
                info: dict[str, Any] = response.json()
                return info
            raise self._requests.refused(response)
        raise ServiceError(f"no judge answers at {self._requests.url}: {why}; start one with kernel-coder serve")


class AsyncClient:
    """A client for code that runs on an event loop: ``verdict = await client.evaluate(task, candidate)``.

    The arguments are those of :class:`Client`. The constructor sends no request. ``aclose`` closes the connections.
    """

    def __init__(
        self,
        url: str,
        backend: str | None = None,
        *,
        token: str | None = None,
        patience_s: float = 1800.0,
        client_id: str | None = None,
    ) -> None:
        self._httpx = _httpx()
        self._requests = _Requests(url, token, patience_s, client_id)
        self.backend = backend
        self._http = self._httpx.AsyncClient(**self._requests.settings(self._httpx))

    async def evaluate(self, task: Task | str, candidate: str, backend: str | None = None) -> Verdict:
        """Judge one candidate. If the service cannot be reached in time, the verdict is ``harness_failed``.

        Raises:
            ServiceError: the service will always refuse this request.
        """
        task = as_task(task)
        attempts = self._requests.attempts(task, candidate, backend or self.backend or task.backend, self._requests.url)
        while True:
            try:
                response = await self._http.post(attempts.url, json=attempts.body)
                if (verdict := attempts.verdict_in(response)) is not None:
                    return verdict
            except self._httpx.TransportError as error:
                attempts.not_answered(error)
            if (pause_s := attempts.pause_s()) is None:
                return attempts.given_up()
            await asyncio.sleep(pause_s)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _require_same(wanted: JudgeConfig | None, found: JudgeConfig, url: str) -> None:
    """Raise ServiceError if the service has another configuration: the wanted one would be ignored silently."""
    if wanted is None:
        return
    for name in type(wanted).model_fields:
        mine, theirs = getattr(wanted, name), getattr(found, name)
        if name in wanted.model_fields_set and mine != theirs and mine != type(wanted).model_fields[name].default:
            raise ServiceError(
                f"judge.{name} is {mine} here, but the service at {url} judges with {theirs}: "
                "leave it out, or start the service with it"
            )
