"""The routes of a vLLM server that a trainer uses. All replies are checked."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from kernel_coder.rollout.engine import Sampling
from kernel_coder.rollout.types import FinishReason, Turn
from kernel_coder.rollout.vllm.http import Http
from kernel_coder.run.errors import EngineFailed

CONTROL_S = 60.0
"""Upper limit for a request that only asks or switches something, in seconds. The server may be busy with a forward
pass of a large batch, but answers within seconds."""

READY_POLL_S = 0.2
"""Time between two requests that ask whether a starting server is ready, in seconds."""

MAX_LOGPROB = 1e-4
"""Upper limit for a log-prob: that of a certain token is 0, and rounding may make it larger by this much."""


class VllmServer:
    """One server, reached by HTTP.

    Args:
        url: its address, on this machine.
        eos_ids: the tokens that end an answer.
        decode: converts token ids to text without special tokens.
        update_timeout_s: time limit of each call that replaces weights, in seconds.
    """

    def __init__(
        self,
        url: str,
        eos_ids: frozenset[int],
        decode: Callable[[Sequence[int]], str],
        *,
        update_timeout_s: float = 300.0,
    ) -> None:
        self.http = Http(url)
        self.model = ""
        self.eos_ids, self.decode, self.update_timeout_s = eos_ids, decode, update_timeout_s
        self.control_timeout_s = min(CONTROL_S, update_timeout_s)

    def wait_until_ready(self, timeout_s: float, check: Callable[[], None] = lambda: None) -> None:
        """Waits for the server and asks for the model's name.

        Args:
            timeout_s: seconds until the wait fails.
            check: called while waiting; may raise, for example because the server's process has ended.

        Raises:
            EngineFailed: the server is not ready in time, or does not say which model it serves.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            check()
            left = deadline - time.monotonic()
            try:
                self.http.get("/health", timeout_s=max(min(left, self.control_timeout_s), 0.001))
                break
            except EngineFailed as error:
                if time.monotonic() + READY_POLL_S >= deadline:
                    raise EngineFailed(f"the server was not ready within {timeout_s:g} s: {error}") from None
            time.sleep(READY_POLL_S)
        found = self.http.get("/v1/models", timeout_s=self.control_timeout_s)
        try:
            self.model = str(found["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise EngineFailed(f"{self.http.url}/v1/models names no model: {found}") from None

    def complete(self, prompt: Sequence[int], sampling: Sampling, seed: int, *, timeout_s: float) -> Turn:
        """Return one answer. ``sampling`` has no top-k and no nucleus: :class:`Sampling` asks for uncut log-probs.

        Raises:
            EngineFailed: there is no answer, or it cannot be the model's answer to this request.
        """
        body = {
            "model": self.model,
            "prompt": list(prompt),
            "seed": seed,
            "max_tokens": sampling.max_completion_length,
            "temperature": sampling.temperature,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": sorted(self.eos_ids),
            "logprobs": 0,
            "return_token_ids": True,
        }
        return self._turn(prompt, sampling, self.http.post("/v1/completions", body, timeout_s=timeout_s))

    def _turn(self, prompt: Sequence[int], sampling: Sampling, reply: Any) -> Turn:
        try:
            choice = reply["choices"][0]
            ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            asked = choice.get("prompt_token_ids") or reply.get("prompt_token_ids")
            finish_reason: FinishReason = choice["finish_reason"]
        except (KeyError, IndexError, TypeError, AttributeError):
            raise EngineFailed(
                "an answer of the server lacks token_ids or logprobs.token_logprobs; a vLLM from 0.11 on gives both "
                f"for return_token_ids and logprobs: {str(reply)[:200]}"
            ) from None
        self._check(prompt, sampling, ids, logprobs, asked, finish_reason)
        return Turn(tuple(prompt), tuple(ids), tuple(logprobs), self.decode(ids), finish_reason)

    def _check(
        self, prompt: Sequence[int], sampling: Sampling, ids: Any, logprobs: Any, asked: Any, finish_reason: str
    ) -> None:
        """Refuses an answer that cannot have been sampled in this way."""
        longest = sampling.max_completion_length
        ended = bool(ids) and ids[-1] in self.eos_ids
        complaints = {
            "has other prompt_token_ids than the request": asked is not None and list(asked) != list(prompt),
            "has no tokens, or ids that are not whole numbers": not ids or not all(type(i) is int for i in ids),
            "has not one log-prob for each token": len(logprobs) != len(ids),
            "has a log-prob that is not a number of at most 0": not all(
                isinstance(p, (int, float)) and -math.inf < p <= MAX_LOGPROB for p in logprobs
            ),
            f"has {len(ids)} tokens, and max_tokens is {longest}": len(ids) > longest,
            f"has the finish_reason {finish_reason}": finish_reason not in ("stop", "length"),
            "ends for finish_reason stop without an end-of-sequence token": finish_reason == "stop" and not ended,
            "ends for finish_reason length before max_tokens": finish_reason == "length" and len(ids) != longest,
        }
        for complaint, is_true in complaints.items():
            if is_true:
                raise EngineFailed(f"an answer of the server {complaint}")

    def pause(self) -> None:
        """Waits for the answers in progress and accepts no others."""
        self.http.post("/pause?mode=wait", timeout_s=self.update_timeout_s)

    def resume(self) -> None:
        """Accepts requests for answers again."""
        self.http.post("/resume", timeout_s=self.control_timeout_s)

    def sleep(self) -> None:
        """Frees the weights and the cache. New weights must follow :meth:`wake`."""
        self.http.post("/sleep?level=2", timeout_s=self.update_timeout_s)

    def wake(self, part: str) -> None:
        """Allocates the memory of a part again: ``weights`` or ``kv_cache``."""
        self.http.post(f"/wake_up?tags={part}", timeout_s=self.update_timeout_s)

    def reset_prefix_cache(self) -> None:
        """Drops keys and values that were computed with earlier weights."""
        self.http.post("/reset_prefix_cache", timeout_s=self.control_timeout_s)

    def weight_version(self) -> str | None:
        """Return the version that the last update named."""
        found = self.http.get("/weight_info", timeout_s=self.control_timeout_s)
        return found.get("weight_version") if isinstance(found, dict) else None

    def update_weight_version(self, version: str) -> None:
        """Names the version of the weights that the server has."""
        self.http.post("/update_weight_version", {"new_version": version}, timeout_s=self.control_timeout_s)

    # The four methods that replace the weights.

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.http.post("/init_weight_transfer_engine", {"init_info": init_info}, timeout_s=self.update_timeout_s)

    def start_weight_update(self) -> None:
        self.http.post("/start_weight_update", {}, timeout_s=self.update_timeout_s)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.http.post("/update_weights", {"update_info": update_info}, timeout_s=self.update_timeout_s)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        body = {} if weight_version is None else {"weight_version": weight_version}
        self.http.post("/finish_weight_update", body, timeout_s=self.update_timeout_s)
