"""An engine that gets its answers from a vLLM server, which is used only if it has the policy's present weights."""

from __future__ import annotations

import copy
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from kernel_coder.policy.parts import causal_lm
from kernel_coder.rollout.engine import Sampling
from kernel_coder.rollout.transformers_engine import end_of_sequence_ids
from kernel_coder.rollout.types import Turn
from kernel_coder.rollout.vllm.config import VllmConfig
from kernel_coder.rollout.vllm.probe import PROBE, PROBE_SEEDS, TOLERANCE, largest_gap, score_turns
from kernel_coder.rollout.vllm.process import ServeOptions, VllmProcess
from kernel_coder.rollout.vllm.server import VllmServer
from kernel_coder.rollout.vllm.server_side import BACKEND
from kernel_coder.rollout.vllm.weights import Transfer, free_port, make_transfer, weights_of
from kernel_coder.run.errors import EngineFailed, UsageError

POLL_S = 0.1
"""Upper limit for a wait between two calls of ``poll``, in seconds, so that a signal to stop is noticed this soon."""

logger = logging.getLogger(__name__)


class VllmEngine:
    """The engine of this module, a :class:`kernel_coder.rollout.engine.RolloutEngine`.

    :meth:`prepare` sends the model's weights and compares log-probs. Only then does :meth:`generate` ask the server.
    After a failure before or during an update the weights of the server are unknown. A server that the engine has
    started is then started again; a server at ``config.url`` is refused until its owner has started it again.

    Args:
        model: the model whose weights are sent to the server.
        tokenizer: its tokenizer.
        config: the server.
        dtype: dtype in which the server computes; None: that of the weights.
        log: file for the output of a server that the engine starts; None: a temporary file.
        max_model_len: largest number of tokens of a sequence; None: the model's own limit.
    """

    tells_of_ends = True  # generate takes the argument ended

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        config: VllmConfig,
        *,
        dtype: torch.dtype | None = None,
        log: Path | None = None,
        max_model_len: int | None = None,
    ) -> None:
        weight = next(model.parameters())
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.dtype = dtype or weight.dtype
        self.bf16 = self.dtype == torch.bfloat16 and weight.dtype != torch.bfloat16
        self.tolerance = config.tolerance or TOLERANCE.get(self.dtype, TOLERANCE[torch.bfloat16])
        self.max_model_len = max_model_len
        self.eos_ids = end_of_sequence_ids(model, tokenizer)
        self.version: int | None = None
        """Version of the weights that the server has, or None if they are unknown."""
        self.gap = 0.0
        """Largest difference of a log-prob after the last update."""
        self._asleep = False
        self._probe_prompt = tuple(tokenizer.encode("import torch\n\nclass Model", add_special_tokens=False)) or (0,)
        self._log = log
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._process: VllmProcess | None = None
        self._server: VllmServer | None = None
        self._transfer: Transfer | None = None

    # Weights

    def prepare(self, version: int) -> None:
        """Gives the server the model's present weights unless it has this version of them.

        Args:
            version: number of updates that the weights have had. Equal numbers mean equal weights.

        Raises:
            EngineFailed: the server cannot be started, did not load the weights, or computes other log-probs with them
                than the model, even after the restarts that the config allows.
        """
        if self.version == version and not self._asleep:
            return
        for attempt in range(self.config.restarts + 1):
            try:
                self._connect()
                self._load(version)
                return
            except EngineFailed as error:
                self._disown()
                if self.config.url is not None:
                    raise EngineFailed(
                        f"{error}. The server's weights are unknown now: start it anew, then continue with --resume"
                    ) from None
                if attempt == self.config.restarts:
                    raise
                logger.warning("the vLLM server is started anew: %s", error)

    def _connect(self) -> None:
        """Starts the server if this is needed, and prepares the transfer of weights."""
        if self._server is not None:
            return
        url, check = self.config.url, lambda: None
        if url is None:
            self._temporary = self._temporary or tempfile.TemporaryDirectory(prefix="kernel-coder-model-")
            folder = Path(self._temporary.name)
            self._process = VllmProcess(self._options(folder / "model"), self._log or folder / "vllm.log")
            self._process.start()
            url, check = self._process.url, self._process.check
        server = VllmServer(url, self.eos_ids, self._decode, update_timeout_s=self.config.update_timeout_s)
        server.wait_until_ready(self.config.start_timeout_s, check)
        self._transfer = make_transfer(self.config.transfer, server, self.model, self.dtype)
        self._transfer.connect()
        self._server, self._asleep = server, False

    def _options(self, folder: Path) -> ServeOptions:
        """Return the options of the engine's own server. Writes the folder with the model if it is missing."""
        if not folder.exists():
            base = causal_lm(self.model)
            architecture = copy.deepcopy(base.config)
            architecture.architectures = [type(base).__name__]
            named = {name: weight.contiguous().cpu() for name, weight in weights_of(self.model, self.dtype)}
            architecture.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            _save_weights(named, folder)
        kind = self.config.transfer
        given = {} if self.config.python is None else {"python": self.config.python}
        return ServeOptions(
            model=str(folder),
            port=free_port(),
            gpus=self.config.gpus,
            on_cpu=next(self.model.parameters()).device.type == "cpu",
            dtype=str(self.dtype).removeprefix("torch."),
            max_model_len=self.max_model_len,
            at_once=self.config.at_once,
            backend=BACKEND if kind in ("auto", "file") else kind,
            sleep=self.config.sleep,
            args=tuple(self.config.args),
            **given,
        )

    def _load(self, version: int) -> None:
        server, transfer = self._server, self._transfer
        assert server is not None
        assert transfer is not None
        self.version = None
        if self._asleep:
            server.wake("weights")
        server.pause()
        transfer.send(str(version))
        if self._asleep:
            server.wake("kv_cache")
        server.reset_prefix_cache()
        server.resume()
        self._asleep = False
        told = server.weight_version()
        if told is not None and told != str(version):
            raise EngineFailed(f"the server says it has version {told} of the weights after it was sent {version}")
        self._probe(server)
        self.version = version

    def _probe(self, server: VllmServer) -> None:
        """Compares log-probs of a few answers.

        Raises:
            EngineFailed: they differ by more than rounding can explain.
        """
        turns = [
            server.complete(self._probe_prompt, PROBE, seed, timeout_s=self.config.answer_timeout_s)
            for seed in PROBE_SEEDS
        ]
        self.gap = largest_gap(turns, score_turns(self.model, turns, PROBE.temperature, bf16=self.bf16))
        if not self.gap <= self.tolerance:
            raw = self._gap_before_temperature(turns)
            hint = "its weights are not the model's"
            if raw <= self.tolerance:
                hint = "they are those before temperature: start it with --logprobs-mode processed_logprobs"
            raise EngineFailed(
                f"log-probs of the server differ from the model's by {self.gap:.2g}, and at most {self.tolerance:g} is "
                f"rounding (vllm.tolerance): {hint}"
            )

    def _gap_before_temperature(self, turns: Sequence[Turn]) -> float:
        return largest_gap(turns, score_turns(self.model, turns, 1.0, bf16=self.bf16))

    def _disown(self) -> None:
        """Stops using the server; ends it if it is the engine's own."""
        self.version, self._server = None, None
        transfer, self._transfer = self._transfer, None
        if self._process is not None:
            self._process.stop()
            self._process = None
        if transfer is not None:
            transfer.close()

    def rest(self) -> None:
        """Frees the server's GPU memory until the next :meth:`prepare`, if ``config.sleep`` is set."""
        if self.config.sleep and self._server is not None and not self._asleep:
            self._server.sleep()
            self._asleep = True

    def close(self) -> None:
        """Ends the engine's own server."""
        self._disown()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def __enter__(self) -> VllmEngine:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    # Answers

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        *,
        poll: Callable[[], None] | None = None,
        ended: Callable[[int, Turn], None] | None = None,
    ) -> list[Turn]:
        """See :class:`kernel_coder.rollout.engine.RolloutEngine`.

        ``ended`` is called once for each answer, with its index and turn, in the order in which they end. If the
        engine's own server dies, it is started anew and asked for the answers that are missing.

        Raises:
            UsageError: ``sampling`` has a top-k or nucleus.
            EngineFailed: the weights of the server are not known, it died, or its answer cannot be a sampled one.
        """
        if len(prompts) != len(seeds):
            raise ValueError(f"every prompt needs a seed; got {len(seeds)} seeds for {len(prompts)} prompts")
        if sampling.top_p != 1 or sampling.top_k:
            raise UsageError(
                "engine vllm gives the log-probs of the distribution after a cut, and training needs those before: "
                f"top_p must be 1 and top_k 0; got {sampling.top_p:g} and {sampling.top_k}"
            )
        turns: dict[int, Turn] = {}

        def keep(place: int, turn: Turn) -> None:
            turns[place] = turn
            if ended is not None:
                ended(place, turn)

        for attempt in range(self.config.restarts + 1):
            if self.version is None or self._server is None:
                raise EngineFailed("the server's weights are unknown: prepare the engine before it generates")
            missing = [place for place in range(len(prompts)) if place not in turns]
            try:
                self._generate(self._server, missing, prompts, sampling, seeds, poll or (lambda: None), keep)
                break
            except EngineFailed as error:
                version = self.version
                self._disown()
                if self.config.url is not None or attempt == self.config.restarts:
                    raise
                logger.warning("the vLLM server is started anew: %s", error)
                self.prepare(version)
        return [turns[place] for place in range(len(prompts))]

    def _generate(
        self,
        server: VllmServer,
        missing: Sequence[int],
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        poll: Callable[[], None],
        keep: Callable[[int, Turn], None],
    ) -> None:
        limit = self.config.answer_timeout_s
        pool = ThreadPoolExecutor(min(self.config.at_once, max(len(missing), 1)), thread_name_prefix="vllm")
        places: dict[Future[Turn], int] = {}
        try:
            for place in missing:
                future = pool.submit(server.complete, prompts[place], sampling, seeds[place], timeout_s=limit)
                places[future] = place
            open_, latest = set(places), time.monotonic()
            while open_:
                done, open_ = wait(open_, POLL_S, return_when=FIRST_COMPLETED)
                poll()
                for future in done:
                    keep(places[future], future.result())
                    latest = time.monotonic()
                if open_ and time.monotonic() - latest > limit:
                    raise EngineFailed(f"{server.http.url}: no answer in {limit:g} s, with {len(open_)} asked for")
                if self._process is not None:
                    self._process.check()
        except BaseException:
            for future in places:
                future.cancel()
            while any(not future.done() for future in places):
                server.http.abort()  # the server drops answers whose connection is closed
                wait(places, POLL_S)
            raise
        finally:
            pool.shutdown(wait=True)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _save_weights(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Writes the weights as a checkpoint of transformers."""
    from safetensors.torch import save_file

    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
