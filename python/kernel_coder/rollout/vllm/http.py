"""JSON over HTTP to a model server. Every request has a time limit, and all requests can be ended at once."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from kernel_coder.run.errors import EngineFailed, UsageError

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""Hosts that may serve a model. The server's routes for new weights run code, so other machines must not reach them."""

SHOWN_CHARACTERS = 300
"""Upper limit, in characters, for the quotation of a server's error text in our own error."""


class Http:
    """Requests to one server. Threads may share it.

    Args:
        url: address of the server, such as ``http://127.0.0.1:8000``.

    Raises:
        UsageError: the address is not one of this machine's own.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname not in LOOPBACK or parts.path.strip("/") or parts.query:
            raise UsageError(
                f"vllm.url must be like http://127.0.0.1:8000, on this machine and without a path; got {url}"
            )
        self.url = url.rstrip("/")
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()

    def get(self, path: str, *, timeout_s: float) -> Any:
        """Return the JSON that the server answers, or None for an empty answer.

        Raises:
            EngineFailed: no answer within ``timeout_s`` seconds, a status other than 200, or no JSON.
        """
        return self._ask("GET", path, None, timeout_s)

    def post(self, path: str, body: Any = None, *, timeout_s: float) -> Any:
        """Send a POST request with a JSON body; otherwise like :meth:`get`."""
        return self._ask("POST", path, body, timeout_s)

    def abort(self) -> None:
        """Ends all requests that are in progress; each raises :class:`EngineFailed` in its own thread."""
        with self._lock:
            for open_ in self._sockets:
                _shut(open_)

    def _ask(self, method: str, path: str, body: Any, timeout_s: float) -> Any:
        deadline = time.monotonic() + timeout_s
        connection = HTTPConnection(self._host, self._port, timeout=timeout_s)
        open_: socket.socket | None = None
        try:
            connection.connect()
            open_ = connection.sock
            with self._lock:
                self._sockets.add(open_)
            content = None if body is None else json.dumps(body).encode()
            connection.request(method, path, content, {"Content-Type": "application/json", "Connection": "close"})
            data = b""
            with connection.getresponse() as response:  # it holds the socket, too
                while part := response.read1(1 << 16):
                    data += part
                    open_.settimeout(max(deadline - time.monotonic(), 0.001))  # a slow trickle must end, too
        except TimeoutError:
            raise EngineFailed(f"{self.url}{path} did not answer within {timeout_s:g} s") from None
        except (OSError, HTTPException) as error:
            raise EngineFailed(f"{self.url}{path}: {type(error).__name__} {error}".strip()) from None
        finally:
            with self._lock:
                self._sockets.discard(open_)
            connection.close()
            if open_ is not None:
                open_.close()
        text = data.decode(errors="replace").strip()
        if response.status != 200:
            raise EngineFailed(f"{self.url}{path} answered {response.status}: {text[:SHOWN_CHARACTERS]}")
        try:
            return json.loads(text) if text else None
        except ValueError:
            raise EngineFailed(f"{self.url}{path} answered no JSON: {text[:SHOWN_CHARACTERS]}") from None


def _shut(open_: socket.socket) -> None:
    """Wakes up the thread that waits for this socket."""
    with contextlib.suppress(OSError):  # it is closed already
        open_.shutdown(socket.SHUT_RDWR)
