"""An OpenAI-compatible server over the packaged model, for libraries that call models over HTTP."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from kernel_coder.policy.model import NANO_FOLDER
from kernel_coder.prompts import encode_prompt
from kernel_coder.rollout import Sampling, completion_seed
from kernel_coder.rollout.transformers_engine import TransformersEngine
from transformers import AutoModelForCausalLM, AutoTokenizer


@contextlib.contextmanager
def nano_served(max_completion_length: int = 384) -> Iterator[str]:
    """The base URL, ending in /v1."""
    tokenizer = AutoTokenizer.from_pretrained(NANO_FOLDER)
    engine = TransformersEngine(AutoModelForCausalLM.from_pretrained(NANO_FOLDER, dtype=torch.float32), tokenizer)
    app, one_at_a_time, count = FastAPI(), threading.Lock(), [0]

    @app.get("/v1/models")
    def models() -> Any:
        return {"object": "list", "data": [{"id": "nano", "object": "model"}]}

    @app.post("/v1/chat/completions")
    def complete(body: dict[str, Any]) -> Any:
        messages = [{"role": one["role"], "content": text_of(one["content"])} for one in body["messages"]]
        ids = encode_prompt(tokenizer, messages)
        sampling = Sampling(max_completion_length=max_completion_length, temperature=body.get("temperature") or 1.0)
        with one_at_a_time:
            count[0] += 1
            (turn,) = engine.generate([ids], sampling, [completion_seed("chat", count[0])])
        message = {"role": "assistant", "content": turn.text}
        choice = {"index": 0, "finish_reason": "stop" if turn.finish_reason == "stop" else "length"}
        about = {"id": f"chat-{count[0]}", "created": int(time.time()), "model": "nano"}
        usage = {
            "prompt_tokens": len(ids),
            "completion_tokens": len(turn.completion_ids),
            "total_tokens": len(ids) + len(turn.completion_ids),
        }
        if not body.get("stream"):
            choices = [choice | {"message": message}]
            return {**about, "object": "chat.completion", "choices": choices, "usage": usage}
        about["object"] = "chat.completion.chunk"
        chunks = [{**about, "choices": [choice | {"delta": message}]}, {**about, "choices": [], "usage": usage}]
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        return StreamingResponse(iter([*lines, "data: [DONE]\n\n"]), media_type="text/event-stream")

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.should_exit = True
        thread.join(20)


def text_of(content: Any) -> str:
    """The text of a message, whose content may be a list of parts."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
