"""Sampling on one GPU with a key-value cache of fixed size and decoding steps as CUDA graphs.

The graphs read the weights of the trained model in place, so after an optimizer step the next answers use the new
weights. All answers of a batch are decoded together. Every :data:`CHECK_EVERY` steps the host checks which answers have
ended; once the remaining ones fit into a smaller batch (:data:`SIZES`), they are moved there.

On the CPU, or if a graph cannot be captured, the same steps run without graphs.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from kernel_coder.policy.parts import causal_lm, with_dtype
from kernel_coder.rollout import decode_attention
from kernel_coder.rollout.decoder import Cache, Decoder, why_unsupported
from kernel_coder.rollout.engine import Sampling
from kernel_coder.rollout.transformers_engine import draw, end_of_sequence_ids, uniform_numbers
from kernel_coder.rollout.types import Turn

CHECK_EVERY = 16
"""Number of steps between two checks for ended answers. In a check the GPU waits for the host, but rare checks waste
steps on ended answers."""

SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768)
"""Numbers of rows that a decoding step can have; above these, multiples of 256. Each size needs its own graph."""

WIDTH_STEP = 128
"""Cache length and attention width are rounded up to a multiple of this many tokens, so that few graphs are needed."""

PREFILL_TOKENS = 32768
"""Upper limit for the prompt tokens computed at once, including padding. It limits the memory for activations."""

CACHE_SHARE = 0.5
"""Largest share of the free memory that the cache may take. Prompts that do not fit are answered in several parts."""

SLICE = 256
"""Size of the slices of the vocabulary: :func:`draw_token` first draws a slice by its summed probability, then a token
of it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Slots:
    """The tensors that a step reads and writes. A slot is a row of the cache.

    ``tokens``, ``logprobs`` and ``uniforms`` have one row per answer and a last scratch row for unused slots.
    """

    cache: Cache
    token: Tensor  # int64 [B]: the last token, which is not in the cache yet
    length: Tensor  # int64 [B]: number of tokens in the cache
    done: Tensor  # bool [B]: the answer has ended
    answer: Tensor  # int64 [B]: the row in ``tokens``
    step: Tensor  # int64 [1]: the column in ``tokens`` that is written next
    uniforms: Tensor  # float64 [B + 1, N]
    tokens: Tensor  # int64 [B + 1, N]
    logprobs: Tensor  # float32 [B + 1, N]
    eos: Tensor  # int64 [E]

    @property
    def scratch(self) -> int:
        return len(self.tokens) - 1


class StaticEngine:
    """The engine of this module.

    Args:
        model: a model that :func:`kernel_coder.rollout.decoder.why_unsupported` accepts.
        tokenizer: its tokenizer.
        batch_size: number of answers sampled at once; None: as many as fit into memory.
        dtype: dtype of the computation. If it differs from the weights', each call copies the weights.
        check_every: see :data:`CHECK_EVERY`.
        graphs: capture CUDA graphs; None: on a GPU.
        kernel: use the Triton kernel for attention; None: on a GPU, if it agrees with torch there.
    """

    tells_of_ends = True  # generate takes the argument ended

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch_size: int | None = None,
        dtype: torch.dtype | None = None,
        check_every: int = CHECK_EVERY,
        graphs: bool | None = None,
        kernel: bool | None = None,
    ) -> None:
        if reason := why_unsupported(model):
            raise ValueError(f"this model cannot be decoded with a static cache: {reason}")
        weight = next(model.parameters())
        self.model, self.tokenizer, self.batch_size, self.check_every = model, tokenizer, batch_size, check_every
        self.device = weight.device
        self.copy: nn.Module | None = None
        if dtype is not None and dtype != weight.dtype:
            self.copy = with_dtype(copy.deepcopy(model), dtype).requires_grad_(False).eval()
        self.eos_ids = end_of_sequence_ids(model, tokenizer)
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(self.eos_ids)
        self.graphs = self.device.type == "cuda" if graphs is None else graphs
        decoder = Decoder(self.copy or model)
        if kernel is None and self.device.type == "cuda":
            found = decoder.head.weight.dtype, decoder.key_heads, decoder.heads // decoder.key_heads, decoder.head_dim
            reason = decode_attention.why_not(self.device, *found)
            if reason:
                _log.warning("rollout: attention by torch over a padded cache, for %s", reason)
            kernel = reason is None
        decoder.kernel = bool(kernel)
        self.decoder = decoder
        self._slots: _Slots | None = None
        self._captured: dict[tuple[Any, ...], torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        self._weights: tuple[int, ...] = ()

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

        ``ended`` is called once for each answer, with its index and turn, soon after it has ended. Other answers may
        still be in progress then.
        """
        if len(prompts) != len(seeds):
            raise ValueError(f"every prompt needs a seed; got {len(seeds)} seeds for {len(prompts)} prompts")
        if not prompts:
            return []
        poll = poll or (lambda: None)
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                self._follow_weights()
                slots = self._make_room(len(prompts), max(map(len, prompts)), sampling.max_completion_length)
                size = min(slots.scratch, self.batch_size or slots.scratch)
                turns: list[Turn] = []
                for start in range(0, len(prompts), size):
                    part = slice(start, start + size)
                    tell = ended and _from(start, ended)
                    turns += self._generate(slots, prompts[part], sampling, seeds[part], poll, tell)
            return turns
        finally:
            self.model.train(was_training)

    def release(self) -> None:
        """Frees the cache and the graphs; the next call makes new ones."""
        self._forget_graphs()
        self._slots = None

    def _forget_graphs(self) -> None:
        """Frees the graphs together with their memory pool."""
        self._captured.clear()
        self._pool = None

    def _follow_weights(self) -> None:
        """Updates the copy of the weights. Frees the graphs if a weight has moved: they hold its old address."""
        if self.copy is not None:
            pairs = zip(self.copy.parameters(), self.model.parameters(), strict=True)
            for mine, theirs in pairs:
                mine.copy_(theirs)
        places = tuple(parameter.data_ptr() for parameter in (self.copy or self.model).parameters())
        if places != self._weights:
            self._forget_graphs()
            self._weights = places

    def _make_room(self, answers: int, prompt: int, completion: int) -> _Slots:
        """Make slots for the given number of answers, or as many as fit into memory. Later calls reuse them."""
        room = rounded(prompt + completion, WIDTH_STEP)
        rows = size_for(min(answers, self.batch_size or answers))
        old = self._slots
        if old is not None:
            room, completion = max(room, old.cache.room), max(completion, old.tokens.shape[1])
            rows = self._affordable(room, max(rows, old.cache.rows))
            if (rows, room, completion) == (old.cache.rows, old.cache.room, old.tokens.shape[1]):
                return old
            del old
            self.release()
        rows = self._affordable(room, rows)

        def full(value: int, *shape: int) -> Tensor:
            return torch.full(shape, value, dtype=torch.int64, device=self.device)

        self._slots = _Slots(
            cache=self.decoder.new_cache(rows, room),
            token=full(self.pad_id, rows),
            length=full(0, rows),
            done=torch.ones(rows, dtype=torch.bool, device=self.device),
            answer=full(rows, rows),
            step=full(0, 1),
            uniforms=torch.zeros(rows + 1, completion, dtype=torch.float64, device=self.device),
            tokens=full(self.pad_id, rows + 1, completion),
            logprobs=torch.zeros(rows + 1, completion, device=self.device),
            eos=torch.tensor(sorted(self.eos_ids), device=self.device),
        )
        return self._slots

    def _affordable(self, room: int, wanted: int) -> int:
        """Return the largest size of at most ``wanted`` rows whose cache fits into memory."""
        if self.device.type != "cuda":
            return wanted
        free = torch.cuda.mem_get_info(self.device)[0]
        free += torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        row = room * self.decoder.bytes_per_token()
        if self._slots is not None:
            free += self._slots.cache.rows * self._slots.cache.room * self.decoder.bytes_per_token()
        while wanted > 1 and wanted * row > CACHE_SHARE * free:
            wanted = size_below(wanted)
        return wanted

    def _generate(
        self,
        slots: _Slots,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        poll: Callable[[], None],
        ended: Callable[[int, Turn], None] | None,
    ) -> list[Turn]:
        count, limit = len(prompts), sampling.max_completion_length
        size = min(size_for(count), slots.scratch)
        numbers = torch.stack([uniform_numbers(seed, limit) for seed in seeds])
        slots.uniforms[:count, :limit] = numbers.to(self.device)
        slots.step.zero_()
        slots.done.fill_(True)
        slots.token.fill_(self.pad_id)
        slots.length.zero_()
        slots.answer.fill_(slots.scratch)
        slots.answer[:count] = torch.arange(count, device=self.device)
        logits = self._prefill(slots, prompts, poll)
        slots.done[:count] = False
        self._draw(slots, count, logits, sampling)
        del logits
        written, longest = 1, max(map(len, prompts))
        turns: dict[int, Turn] = {}

        def keep(answers: list[int]) -> None:
            """Makes the turns of answers that have ended."""
            if not answers:
                return
            tokens, logprobs = slots.tokens[answers, :written].tolist(), slots.logprobs[answers, :written].tolist()
            for answer, row, row_logprobs in zip(answers, tokens, logprobs, strict=True):
                turns[answer] = self._turn(prompts[answer], row, row_logprobs, limit)
                if ended is not None:
                    ended(answer, turns[answer])

        while written < limit:
            poll()
            live = (~slots.done[:size]).nonzero()[:, 0]
            if ended is not None:
                alive = set(slots.answer[:size][live].tolist())
                keep([answer for answer in range(count) if answer not in alive and answer not in turns])
            if len(live) == 0:
                break
            if (smaller := size_for(len(live))) < size:
                self._move_together(slots, live, size, smaller, longest + written)
                size = smaller
            steps = min(self.check_every, limit - written)
            width = min(rounded(longest + written + steps, WIDTH_STEP), slots.cache.room)
            for _ in range(steps):
                self._step(slots, size, width, sampling)
            written += steps
        keep([answer for answer in range(count) if answer not in turns])
        return [turns[answer] for answer in range(count)]

    def _prefill(self, slots: _Slots, prompts: Sequence[Sequence[int]], poll: Callable[[], None]) -> Tensor:
        """Fills the cache and returns logits [B, V]. A prompt that occurs several times is computed once."""
        places: dict[tuple[int, ...], list[int]] = {}
        for row, prompt in enumerate(prompts):
            places.setdefault(tuple(prompt), []).append(row)
        found: Tensor | None = None
        unique = sorted(places, key=len)
        start = 0
        while start < len(unique):
            poll()
            end = start + 1
            while end < len(unique) and (end + 1 - start) * len(unique[end]) <= PREFILL_TOKENS:
                end += 1
            part, width = unique[start:end], len(unique[end - 1])
            ids = torch.tensor([[*p, *[self.pad_id] * (width - len(p))] for p in part], device=self.device)
            lengths = torch.tensor([len(p) for p in part], device=self.device)
            source = torch.tensor([i for i, p in enumerate(part) for _ in places[p]], device=self.device)
            rows = torch.tensor([row for p in part for row in places[p]], device=self.device)
            logits = self.decoder.prefill(ids, lengths, slots.cache, source, rows)
            slots.length[rows] = lengths[source]
            found = logits.new_empty(len(prompts), logits.shape[1]) if found is None else found
            found[rows] = logits[source]
            start = end
        assert found is not None
        return found

    def _step(self, slots: _Slots, size: int, width: int, sampling: Sampling) -> None:
        """Adds one token to the first ``size`` slots. The first step of a kind runs without a graph and is then
        captured.
        """
        if not self.graphs:
            return self._advance(slots, size, width, sampling)
        if self.decoder.kernel:
            width = slots.cache.room  # not used: the kernel reads each row up to its length
        kind = (size, width, sampling.temperature, sampling.top_p, sampling.top_k)
        graph = self._captured.get(kind)
        if graph is not None:
            return graph.replay()
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            self._advance(slots, size, width, sampling)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                self._advance(slots, size, width, sampling)
        except RuntimeError as error:
            _log.warning("rollout: no CUDA graphs, decoding is slower: %s", str(error).splitlines()[0])
            self.graphs = False
            self._forget_graphs()
            return None
        self._captured[kind] = graph
        return None

    def _advance(self, slots: _Slots, size: int, width: int, sampling: Sampling) -> None:
        logits = self.decoder.step(slots.token[:size], slots.length[:size], slots.cache, width)
        slots.length[:size].add_(~slots.done[:size])
        self._draw(slots, size, logits, sampling)

    def _draw(self, slots: _Slots, size: int, logits: Tensor, sampling: Sampling) -> None:
        """Draws the next token of the first ``size`` slots. Ended answers get padding, which their turns leave out."""
        answer, column = slots.answer[:size], slots.step.expand(size)
        token, logprob = draw_token(logits, slots.uniforms[answer, column], sampling)
        token = torch.where(slots.done[:size], self.pad_id, token)
        slots.tokens[answer, column] = token
        slots.logprobs[answer, column] = logprob
        slots.token[:size] = token
        slots.done[:size].logical_or_((token[:, None] == slots.eos).any(dim=1))
        slots.step.add_(1)

    def _move_together(self, slots: _Slots, live: Tensor, size: int, smaller: int, length: int) -> None:
        """Moves the ``live`` slots among the first ``size`` into the first ``smaller`` ones; the rest become unused."""
        ended = slots.done[:smaller].nonzero()[:, 0]
        movers = live[live >= smaller]
        targets = ended[: len(movers)]
        slots.cache.move(movers, targets, length)
        for state in (slots.token, slots.length, slots.answer, slots.done):
            state[targets] = state[movers]
        idle = ended[len(movers) :]
        slots.answer[idle] = slots.scratch
        slots.length[idle] = 0

    def _turn(self, prompt: Sequence[int], tokens: list[int], logprobs: list[float], limit: int) -> Turn:
        end = next((i + 1 for i, token in enumerate(tokens) if token in self.eos_ids), None)
        kept = tokens[:end]
        assert end is not None or len(kept) == limit
        return Turn(
            prompt_ids=tuple(prompt),
            completion_ids=tuple(kept),
            logprobs=tuple(logprobs[:end]),
            text=str(self.tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)),
            finish_reason="length" if end is None else "stop",
        )


def _from(start: int, ended: Callable[[int, Turn], None]) -> Callable[[int, Turn], None]:
    """Return ``ended`` for a part of the prompts that begins at index ``start``."""
    return lambda place, turn: ended(start + place, turn)


def draw_token(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Draw as :func:`~kernel_coder.rollout.transformers_engine.draw`; without top-k and top-p with fewer passes.

    It inverts the CDF first over slices of the vocabulary, then within the chosen slice.
    """
    if sampling.temperature == 0 or sampling.top_k or sampling.top_p < 1:
        return draw(logits, uniforms, sampling)
    rows, vocabulary = logits.shape
    scores = logits.float()
    if sampling.temperature != 1:
        scores = scores / sampling.temperature
    largest = scores.amax(dim=1, keepdim=True)
    weights = torch.exp(scores - largest)  # [B, V]
    if vocabulary % SLICE:
        weights = torch.nn.functional.pad(weights, (0, -vocabulary % SLICE))
    weights = weights.view(rows, -1, SLICE)
    ends = weights.sum(dim=2, dtype=torch.float64).cumsum(dim=1)  # [B, V / SLICE]
    total = ends[:, -1:]
    wanted = uniforms[:, None] * total
    which = torch.searchsorted(ends, wanted, right=True).clamp(max=ends.shape[1] - 1)
    before = torch.where(which > 0, ends.gather(1, (which - 1).clamp(min=0)), 0.0)
    inner = weights.gather(1, which[:, :, None].expand(-1, 1, SLICE))[:, 0].double().cumsum(dim=1)  # [B, SLICE]
    # Keep the number strictly below the slice's sum despite rounding, so that no token of probability 0 is drawn.
    left = torch.minimum((wanted - before).clamp(min=0), inner[:, -1:] * (1 - 1e-15))
    token = which * SLICE + torch.searchsorted(inner, left, right=True)
    logprob = scores.gather(1, token) - largest - total.log().float()
    return token[:, 0], logprob[:, 0]


def size_for(rows: int) -> int:
    """Return the smallest size with at least this many rows.

    >>> size_for(1), size_for(33), size_for(512), size_for(769)
    (1, 48, 512, 1024)
    """
    return next((size for size in SIZES if size >= rows), rounded(rows, 256))


def size_below(size: int) -> int:
    """Return the next smaller size.

    >>> size_below(48), size_below(1024), size_below(1280)
    (32, 768, 1024)
    """
    return size - 256 if size > SIZES[-1] + 256 else max(smaller for smaller in SIZES if smaller < size)


def rounded(number: int, unit: int) -> int:
    """Return the number rounded up to a multiple of ``unit``."""
    return -(-number // unit) * unit


def supported(model: nn.Module) -> bool:
    """Return whether the model is on a GPU and its architecture is supported."""
    return causal_lm(model).get_input_embeddings().weight.is_cuda and why_unsupported(model) is None
