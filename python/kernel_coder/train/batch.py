"""From scored answers to what the loss takes: packed tokens, exact denominators, micro-batches.

Letters of the shape comments: N completion tokens, S sequences, B sequences of a micro-batch, L its longest sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernel_coder.ops import LossSpec, group_advantages
from kernel_coder.rollout import Turn
from kernel_coder.train.config import AdvantagesConfig


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Sequences of one generation batch. ``turns`` holds the tokens; the tensors are packed, on the CPU."""

    turns: tuple[Turn, ...]  # S
    advantages: Tensor  # float64 [S]; 0 where the answer was not scored
    counted: Tensor  # bool [S]: in the loss and in its denominator
    old_logprobs: tuple[Tensor, ...] | None = None  # S of float [completion length]
    ref_logprobs: tuple[Tensor, ...] | None = None  # likewise

    def __len__(self) -> int:
        return len(self.turns)

    def select(self, indices: Sequence[int]) -> Batch:
        def pick(values: tuple[Tensor, ...] | None) -> tuple[Tensor, ...] | None:
            return None if values is None else tuple(values[i] for i in indices)

        return replace(
            self,
            turns=tuple(self.turns[i] for i in indices),
            advantages=self.advantages[list(indices)],
            counted=self.counted[list(indices)],
            old_logprobs=pick(self.old_logprobs),
            ref_logprobs=pick(self.ref_logprobs),
        )


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """One forward pass: right-padded ids for the model, packed completion tokens for the loss."""

    ids: Tensor  # int64 [B, L]
    attention_mask: Tensor  # int64 [B, L]
    rows: Tensor  # int64 [N]: where in the flattened [B * L] the hidden state that predicts each token stands
    targets: Tensor  # int64 [N]
    advantages: Tensor  # float32 [B]
    mask: Tensor  # bool [N]
    cu_seqlens: Tensor  # int64 [B + 1]
    rollout_logprobs: Tensor  # float32 [N]
    old_logprobs: Tensor | None  # [N]
    ref_logprobs: Tensor | None  # [N]


def make_batch(
    turns: Sequence[Turn], rewards: Tensor, config: AdvantagesConfig, group: int, *, mask_truncated: bool
) -> Batch:
    """Advantages of ``rewards`` (float64 [S], NaN: not scored) in neighbouring groups, and who takes part in the loss.

    An answer that was not scored leaves the baseline of its group (``group_advantages``), the loss and the denominator.
    So does an answer cut by the length limit under ``mask_truncated``, except that its reward stays in the baseline.
    """
    scored = ~torch.isnan(rewards)
    whole = torch.tensor([turn.finish_reason == "stop" for turn in turns])
    lengths = torch.tensor([len(turn.completion_ids) for turn in turns])
    advantages = group_advantages(
        rewards, group, mode=config.op_mode, eps=config.eps, lengths=lengths if config.mode == "reinforce_pp" else None
    )
    return Batch(tuple(turns), advantages, scored & (lengths > 0) & (whole if mask_truncated else True))


def denominator(batch: Batch, spec: LossSpec, minibatches: int) -> float:
    """What the summed loss of one update is divided by.

    Counted once over the whole generation batch and shared equally by its updates, so that a token weighs the same in
    whichever update and micro-batch it lands.
    """
    if spec.reduction == "sum":
        return 1.0
    if spec.reduction == "token_mean":
        total = sum(
            len(turn.completion_ids) for turn, counted in zip(batch.turns, batch.counted, strict=True) if counted
        )
    else:
        total = int(batch.counted.sum())
    return total / minibatches


def carries_gradient(batch: Batch, spec: LossSpec) -> list[int]:
    """Sequences that the update has to compute.

    Without KL and entropy terms the gradient of a sequence is a multiple of its advantage, so one with advantage 0 can
    be left out exactly: its part of the loss and of the gradient is 0.
    """
    always = spec.beta != 0 or spec.entropy_coef != 0 or spec.ratio_penalty != 0
    return [i for i in range(len(batch)) if batch.counted[i] and (always or batch.advantages[i] != 0)]


def forward_passes(batch: Batch, spec: LossSpec, minibatches: int, size: int) -> list[list[list[int]]]:
    """For every update in turn, the sequences of each of its forward passes: at most ``size``, none without gradient.

    Scoring and updates cut the batch in this one way, so the log-probs of the first update have the bits of the old.
    """
    length = -(-len(batch) // minibatches)
    needed = [[i for i in carries_gradient(batch, spec) if i // length == m] for m in range(minibatches)]
    return [[part[start : start + size] for start in range(0, len(part), size)] for part in needed]


def collate(batch: Batch, pad_id: int, device: torch.device) -> MicroBatch:
    """Pads and packs; see :class:`MicroBatch`."""
    lengths = [len(turn.completion_ids) for turn in batch.turns]
    sequences = [turn.prompt_ids + turn.completion_ids for turn in batch.turns]
    width = max(map(len, sequences))

    def packed(values: tuple[Tensor, ...] | None) -> Tensor | None:
        return None if values is None else torch.cat(values).to(device)

    def put(values: object, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(values, dtype=dtype).to(device)

    return MicroBatch(
        ids=put([list(s) + [pad_id] * (width - len(s)) for s in sequences], torch.int64),
        attention_mask=put([[1] * len(s) + [0] * (width - len(s)) for s in sequences], torch.int64),
        rows=put(
            [b * width + len(t.prompt_ids) - 1 + i for b, t in enumerate(batch.turns) for i in range(lengths[b])],
            torch.int64,
        ),
        targets=put([token for turn in batch.turns for token in turn.completion_ids], torch.int64),
        advantages=put(batch.advantages, torch.float32),
        mask=put([bool(c) for c, n in zip(batch.counted, lengths, strict=True) for _ in range(n)], torch.bool),
        cu_seqlens=put([0, *torch.tensor(lengths).cumsum(0).tolist()], torch.int64),
        rollout_logprobs=put([logprob for turn in batch.turns for logprob in turn.logprobs], torch.float32),
        old_logprobs=packed(batch.old_logprobs),
        ref_logprobs=packed(batch.ref_logprobs),
    )


def finite_or_nan(values: Sequence[float | None]) -> Tensor:
    """Rewards as float64; None and infinities become NaN: not scored."""
    finite = [value if value is not None and math.isfinite(value) else math.nan for value in values]
    return torch.tensor(finite, dtype=torch.float64)
