"""A model in this process. It generates with the same rollout engine as training."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator, Sequence

import torch

from kernel_coder.evaluate.answers import Answer, AskedT, Poll
from kernel_coder.evaluate.config import EvaluateConfig
from kernel_coder.evaluate.errors import UsageError
from kernel_coder.policy.config import PLAIN, ModelConfig
from kernel_coder.policy.model import load_policy
from kernel_coder.prompts import encode_prompt
from kernel_coder.rollout import RolloutEngine, Sampling
from kernel_coder.rollout.engines import make_engine

FLAGS = {
    "model.name_or_path": "--model",
    "model.chat_template": "--chat-template",
    "model.gguf_file": "--gguf-file",
}
"""The flags of ``evaluate`` for the config fields of training that the loader's messages name."""


class LocalModel:
    """The config's model in this process. Device and dtype must be resolved. Raises :class:`UsageError` if loading
    fails."""

    def __init__(self, config: EvaluateConfig) -> None:
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        description = {
            "name_or_path": config.model,
            "revision": config.revision,
            "gguf_file": config.gguf_file,
            "dtype": config.dtype,
            "device": "cpu",  # moved to the GPU below, since the loader would require GPU ops that only training needs
            "chat_template": config.chat_template,
        }
        try:
            policy = load_policy(ModelConfig.model_validate(description))
        except UsageError as error:
            raise UsageError(_in_our_flags(str(error))) from None
        policy.model.to(config.device)
        self.config = config
        self.plain = PLAIN if config.chat_template == PLAIN else None
        self.context = policy.context_length
        self.tokenizer = policy.tokenizer
        self.engine: RolloutEngine | None = make_engine(policy.model, policy.tokenizer)

    def answer(self, requests: Sequence[AskedT], poll: Poll) -> Iterator[tuple[AskedT, Answer]]:
        assert self.engine is not None, "the model was closed"
        for room, group in itertools.groupby(self._encoded(requests), key=lambda item: item[2]):
            while part := list(itertools.islice(group, self.config.batch_size)):
                if room < 1:
                    yield from ((request, self._refused(ids)) for request, ids, _ in part)
                    continue
                sampling = Sampling(
                    max_completion_length=room,
                    temperature=self.config.temperature,
                    top_p=self.config.top_p,
                    top_k=self.config.top_k,
                )
                prompts, seeds = [ids for _, ids, _ in part], [request.seed for request, _, _ in part]
                began = time.monotonic()
                try:
                    turns = self.engine.generate(prompts, sampling, seeds, poll=poll)
                except torch.OutOfMemoryError:
                    raise UsageError(
                        f"{self.config.device} has no memory for {len(part)} answers of {room} tokens at once; "
                        "use a smaller --batch-size and continue with --resume"
                    ) from None
                seconds = (time.monotonic() - began) / len(part)
                for (request, ids, _), turn in zip(part, turns, strict=True):
                    last = request.messages[-1]
                    begun = last["content"] if last["role"] == "assistant" else ""
                    counts = len(ids), len(turn.completion_ids)
                    yield request, Answer(begun + turn.text, turn.finish_reason, *counts, seconds=seconds)

    def _encoded(self, requests: Sequence[AskedT]) -> Iterator[tuple[AskedT, list[int], int]]:
        """Yield each request with its prompt's token ids and the number of tokens that its answer may have."""
        known: tuple[tuple[object, ...], list[int]] | None = None
        for request in requests:
            if known is None or known[0] is not request.messages:
                try:
                    known = request.messages, encode_prompt(self.tokenizer, request.messages, self.plain)
                except ValueError as error:
                    raise UsageError(_in_our_flags(str(error))) from None
            ids = known[1]
            room = self.config.max_new_tokens
            yield request, ids, room if self.context is None else min(room, self.context - len(ids))

    def _refused(self, ids: Sequence[int]) -> Answer:
        problem = f"the prompt has {len(ids)} tokens, which leave no room in the model's context of {self.context}"
        return Answer("", "refused", len(ids), 0, problem)

    def close(self) -> None:
        self.engine = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _in_our_flags(message: str) -> str:
    return re.sub("|".join(map(re.escape, FLAGS)), lambda match: FLAGS[match[0]], message)
