"""A small server for OpenAI's chat completions. A test decides each reply, and may make the server fail."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NO_WAIT = {"retry-after-ms": "1"}


@dataclass(frozen=True)
class Reply:
    """A reply of the server."""

    body: bytes | str | dict[str, Any]
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    is_dropped: bool = False  # the connection is closed without a reply


def completion(text: str | None, finish_reason: str = "stop") -> Reply:
    message = {"role": "assistant", "content": text}
    return Reply(
        {
            "id": "chat-1",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
            "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
        }
    )


def refusal(status: int, message: str, code: str | None = None) -> Reply:
    return Reply({"error": {"message": message, "type": "x", "code": code}}, status, NO_WAIT)


Behaviour = Callable[[int, dict[str, Any]], Reply]
"""The reply to the n-th request (from 0) with this body."""


@dataclass
class ChatServer:
    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    most_at_a_time: int = 0


@contextmanager
def chat_server(behave: Behaviour) -> Iterator[ChatServer]:
    lock = threading.Lock()
    running = 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            nonlocal running
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(state.requests)
                state.requests.append(body)
                state.keys.append(self.headers.get("Authorization"))
                running += 1
                state.most_at_a_time = max(state.most_at_a_time, running)
            reply = behave(number, body) if self.path.endswith("/chat/completions") else refusal(404, "no such path")
            time.sleep(reply.delay_s)
            content = json.dumps(reply.body) if isinstance(reply.body, dict) else reply.body
            data = content if isinstance(content, bytes) else content.encode()
            with lock:
                running -= 1
            if reply.is_dropped:
                self.close_connection = True
                return
            try:
                self.send_response(reply.status)
                for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:  # the client did not wait
                self.close_connection = True

        def log_message(self, *_: object) -> None: ...

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None: ...

    server = Quiet(("127.0.0.1", 0), Handler)
    state = ChatServer(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
