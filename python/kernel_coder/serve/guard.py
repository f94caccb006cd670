"""Checks before a request reaches the application: the token, the size of the body, and the time that it takes to
arrive."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset({"/health"})
"""Paths that need no token, because load balancers request them."""


class Guard:
    """An ASGI middleware that reads the whole body before the application sees the request.

    Args:
        application: the application to protect.
        token: the token that ``Authorization: Bearer ...`` must carry; None: no token is required.
        max_body_bytes: a larger body is refused with 413, without being read to its end.
        max_body_s: time, in seconds, within which the body must arrive, against clients that send a byte at a time.
    """

    def __init__(self, application: Application, *, token: str | None, max_body_bytes: int, max_body_s: float) -> None:
        self._application, self._token = application, token
        self._max_body_bytes, self._max_body_s = max_body_bytes, max_body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        if self._token is not None and scope["path"] not in OPEN_PATHS:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
                await _refuse(send, 401, "the header Authorization must be 'Bearer TOKEN' with the service's token")
                return
        length = headers.get(b"content-length", b"")
        too_long = f"a body may have at most {self._max_body_bytes} bytes"
        if length.isdigit() and int(length) > self._max_body_bytes:
            await _refuse(send, 413, too_long)
            return
        body = bytearray()
        try:
            async with asyncio.timeout(self._max_body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    body += message.get("body", b"")
                    if len(body) > self._max_body_bytes:
                        await _refuse(send, 413, too_long)
                        return
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            await _refuse(send, 408, f"the body did not arrive within {self._max_body_s:g} s")
            return
        is_given = False

        async def replay() -> MutableMapping[str, Any]:
            nonlocal is_given
            if is_given:
                return await receive()  # the next message says that the client has disconnected
            is_given = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        await self._application(scope, replay, send)


async def _refuse(send: Send, status: int, detail: str) -> None:
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class HeaderTimeoutProtocol(H11Protocol):
    """uvicorn's HTTP protocol, which closes a connection whose request headers do not arrive in time.

    uvicorn itself waits for headers without a limit, so a client that sends a byte at a time could hold a connection
    for ever.
    """

    max_header_s = 10.0
    """Time limit, in seconds, from the connection, or from the end of the last answer, to complete request headers."""

    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._header_timer is not None:
            self._header_timer.cancel()

    def _expect_headers(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
        self._header_timer = self.loop.call_later(self.max_header_s, self._close_without_headers, self.cycle)

    def _close_without_headers(self, last_cycle: Any) -> None:
        if self.cycle is last_cycle and not self.transport.is_closing():
            self.transport.close()
