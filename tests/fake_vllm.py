"""A small server with the routes of vLLM that a trainer uses. It can fail, hang and lie.

As a program, ``python fake_vllm.py serve FOLDER --port N ...`` stands for ``vllm serve``.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import torch
from kernel_coder.rollout import Sampling
from kernel_coder.rollout.transformers_engine import TransformersEngine
from safetensors.torch import load_file
from torch import nn

FAILURES = ("fail", "hang", "drop", "garbage")


@dataclass
class FakeVllm:
    """The state of the server, and the failures that it simulates.

    ``failing`` holds, for a route, one of :data:`FAILURES` or ``once`` (the first call fails). ``lie`` is one of:
    ``stale`` (new weights are ignored), ``half`` (the head keeps its old values), ``raw`` (log-probs before
    temperature), ``version``, ``prompt``, ``short``, ``positive``, ``early``, ``text``.
    """

    model: nn.Module
    tokenizer: Any
    url: str = ""
    failing: dict[str, str] = field(default_factory=dict)
    lie: str = ""
    stale_from: int | None = None  # from this update on, new weights are ignored
    delay_s: float = 0.0
    calls: list[str] = field(default_factory=list)
    version: str | None = None
    is_broken: bool = False
    is_updating: bool = False
    is_paused: bool = False
    at_a_time: int = 0
    most_at_a_time: int = 0
    left: int = 0  # replies whose client had disconnected
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        match path:
            case "/health":
                return None
            case "/v1/models":
                return {"data": [{"id": "policy"}]}
            case "/v1/completions":
                return self.complete(body)
            case "/start_weight_update":
                self.is_updating = True
            case "/update_weights":
                if not self.is_updating:
                    raise RuntimeError("no update was started")
                self.update(body["update_info"]["path"])
            case "/finish_weight_update":
                self.is_updating = False
                self.version = "another" if self.lie == "version" else body.get("weight_version")
            case "/weight_info":
                return {"weight_version": self.version}
            case "/pause":
                self.is_paused = True
            case "/resume":
                self.is_paused = False
        return {}

    def update(self, path: str) -> None:
        self.is_broken = True  # until all weights have arrived
        tensors = load_file(path)
        if self.lie == "half":
            tensors = {name: t for name, t in tensors.items() if "embed_tokens" not in name and "lm_head" not in name}
        updates = self.calls.count("/update_weights")
        if self.lie != "stale" and (self.stale_from is None or updates < self.stale_from):
            own = dict(self.model.named_parameters())
            assert set(tensors) <= set(own)
            with torch.no_grad():
                for name, tensor in tensors.items():
                    own[name].copy_(tensor)
        self.is_broken = False

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.is_broken or self.is_updating:
            raise RuntimeError("attempted to run this operator with Meta tensors")
        assert not self.is_paused
        assert (body["top_p"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (1, 0, 0, 1)
        time.sleep(self.delay_s)
        sampling = Sampling(max_completion_length=body["max_tokens"], temperature=body["temperature"])
        engine = TransformersEngine(self.model, self.tokenizer)
        with self.lock:
            (turn,) = engine.generate([body["prompt"]], sampling, [body["seed"]])
            if self.lie == "raw":
                turn = self.raw(turn)
        ids, logprobs, prompt, reason = list(turn.completion_ids), list(turn.logprobs), body["prompt"], "stop"
        reason = turn.finish_reason
        match self.lie:
            case "prompt":
                prompt = [*prompt[:-1], 0]
            case "short":
                logprobs = logprobs[1:]
            case "positive":
                logprobs = [0.5, *logprobs[1:]]
            case "early":
                ids, logprobs, reason = [5], logprobs[:1], "length"
            case "text":
                return {"choices": [{"text": "x", "finish_reason": "stop"}]}
        return {
            "choices": [
                {
                    "token_ids": ids,
                    "prompt_token_ids": prompt,
                    "logprobs": {"token_logprobs": logprobs},
                    "finish_reason": reason,
                }
            ]
        }

    def raw(self, turn: Any) -> Any:
        ids = torch.tensor([[*turn.prompt_ids, *turn.completion_ids]])
        with torch.no_grad():
            scores = torch.log_softmax(self.model(input_ids=ids).logits[0, len(turn.prompt_ids) - 1 : -1], dim=1)
        found = scores.gather(1, torch.tensor(turn.completion_ids)[:, None])[:, 0]
        return replace(turn, logprobs=tuple(found.tolist()))

    def serve(self, port: int = 0) -> ThreadingHTTPServer:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                parts = urlsplit(self.path)
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else {}
                with fake.lock:
                    fake.calls.append(self.path)
                    fake.at_a_time += 1
                    fake.most_at_a_time = max(fake.at_a_time, fake.most_at_a_time)
                self.counts = True
                try:
                    self.reply(parts.path, body)
                finally:
                    self.answered()

            do_GET = do_POST

            def answered(self) -> None:
                with fake.lock:
                    fake.at_a_time -= self.counts
                self.counts = False

            def send_response(self, code: int, message: str | None = None) -> None:
                self.answered()  # before the client has the answer and asks again
                super().send_response(code, message)

            def reply(self, path: str, body: dict[str, Any]) -> None:
                failure = fake.failing.get(path, "")
                if failure == "once":
                    failure = "fail"
                    del fake.failing[path]
                if failure == "hang":
                    fake.released.wait(30)
                if failure in ("hang", "drop"):
                    return
                status, content = 200, b"this is no JSON"
                if failure == "fail":
                    status, content = 500, b"this route is broken"
                elif not failure:
                    try:
                        found = fake.answer(path, body)
                        content = b"" if found is None else json.dumps(found).encode()
                    except Exception as error:
                        status, content = 500, str(error).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    fake.left += 1

            def log_message(self, *_: object) -> None: ...

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: object) -> None: ...

        return Quiet(("127.0.0.1", port), Handler)


@contextmanager
def fake_vllm(model: nn.Module, tokenizer: Any) -> Iterator[FakeVllm]:
    fake = FakeVllm(model, tokenizer)
    server = fake.serve()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        fake.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


def main() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    _, folder, *options = sys.argv[1:]
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    fake = FakeVllm(model, AutoTokenizer.from_pretrained(folder))
    fake.delay_s = 0.2
    fake.serve(int(options[options.index("--port") + 1])).serve_forever()


if __name__ == "__main__":
    main()
