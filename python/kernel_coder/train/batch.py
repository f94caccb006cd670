"""Turns rewarded answers into the inputs of the loss: advantages, exact denominators, micro-batches of packed tokens.

Letters of the shape comments: N completion tokens, S sequences (turns), B sequences of a micro-batch, R rows of its
ids, L tokens of its longest row, T tokens of all its rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernel_coder.ops import LossSpec, group_advantages, turn_advantages
from kernel_coder.policy.layout import Layout, place
from kernel_coder.rollout import Turn
from kernel_coder.train.config import AdvantagesConfig


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The sequences of one generation batch, on the CPU. A sequence is one turn: its prompt and its answer."""

    turns: tuple[Turn, ...]  # S
    advantages: Tensor  # float64 [S]; 0 where the answer was not scored
    counted: Tensor  # bool [S]: whether it is in the loss and in its denominator
    old_logprobs: tuple[Tensor, ...] | None = None  # S of float [completion length]
    ref_logprobs: tuple[Tensor, ...] | None = None  # likewise
    token_advantages: tuple[Tensor, ...] | None = None  # likewise; None: every token has the advantage of its sequence
    rollouts: tuple[int, ...] | None = None  # S: index of the rollout of each turn; None: one turn each

    @property
    def num_rollouts(self) -> int:
        """Rollouts of the batch."""
        return len(self.turns) if self.rollouts is None else max(self.rollouts, default=-1) + 1

    def rollout_of(self, index: int) -> int:
        """Return the index of the rollout to which a sequence belongs."""
        return index if self.rollouts is None else self.rollouts[index]

    def __len__(self) -> int:
        return len(self.turns)

    def select(self, indices: Sequence[int]) -> Batch:
        """Return a batch with only these sequences."""

        def pick(values: tuple[Tensor, ...] | None) -> tuple[Tensor, ...] | None:
            return None if values is None else tuple(values[i] for i in indices)

        return replace(
            self,
            turns=tuple(self.turns[i] for i in indices),
            advantages=self.advantages[list(indices)],
            counted=self.counted[list(indices)],
            old_logprobs=pick(self.old_logprobs),
            ref_logprobs=pick(self.ref_logprobs),
            token_advantages=pick(self.token_advantages),
            rollouts=None if self.rollouts is None else tuple(self.rollouts[i] for i in indices),
        )


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """The tensors of one forward pass: ids for the model, and the completion tokens, one after the other, for the loss.

    A row of ids holds one turn, or several turns of a rollout if each prompt begins with all ids of the turn before.
    The rows are padded on the right, or packed into a single row of T tokens that the layout describes.
    """

    ids: Tensor  # int64 [R, L]; packed: [1, T]
    attention_mask: Tensor | None  # int64 [R, L]; packed: None
    rows: Tensor  # int64 [N]: index in the flattened ids of the hidden state that predicts each token
    targets: Tensor  # int64 [N]
    advantages: Tensor  # float32 [B], or [N] if tokens of a sequence differ
    mask: Tensor  # bool [N]: whether the token is in the loss
    cu_seqlens: Tensor  # int64 [B + 1]: start of each sequence's completion tokens
    rollout_logprobs: Tensor  # float32 [N]
    old_logprobs: Tensor | None  # [N]
    ref_logprobs: Tensor | None  # [N]
    layout: Layout | None = None
    positions: Tensor | None = None  # int64 [T]: position of each token in its sequence; padded: None


@dataclass(frozen=True, slots=True)
class Form:
    """How forward passes are computed. It changes results only by rounding.

    Attributes:
        packing: the rows are packed into one row without padding.
        sharing: with packing, a prompt at the beginning of several rows is computed once.
        bf16: compute in bfloat16, whatever the weights' dtype.
    """

    packing: bool = False
    sharing: bool = False
    bf16: bool = False


PADDED = Form()
"""The plain form: padded rows, in the weights' dtype."""


def make_batch(
    turns: Sequence[Turn],
    rewards: Tensor,
    config: AdvantagesConfig,
    group: int,
    *,
    mask_truncated: bool,
    turn_counts: Sequence[int] | None = None,
    thinking: tuple[Tensor, Sequence[int]] | None = None,
    rejected: Sequence[bool] | None = None,
) -> Batch:
    """Computes advantages, and decides which answers are in the loss.

    An answer that was not scored is left out of the baseline of its group, of the loss and of the denominator. An
    answer that is ``rejected``, or was cut by the length limit under ``mask_truncated``, is left out of the loss and of
    the denominator, but its reward stays in the baseline.

    Args:
        turns: of all rollouts, one rollout after another. The rollouts of a group are next to each other.
        rewards: of each turn, float64 [S]; NaN: not scored.
        config: how rewards become advantages.
        group: rollouts in a group.
        mask_truncated: leave answers that were cut out of the loss.
        turn_counts: number of turns of each rollout; None: one each.
        thinking: separate rewards (float64 [S]) for the reasoning, and the number of its tokens, which come first, in
            each turn. None: all tokens have the same reward.
        rejected: for each turn, whether to leave it out of the loss; None: none.
    """
    whole = torch.tensor([turn.finish_reason == "stop" for turn in turns])
    lengths = torch.tensor([len(turn.completion_ids) for turn in turns])
    kept = torch.ones(len(turns), dtype=torch.bool) if rejected is None else ~torch.tensor(list(rejected))
    advantages = advantages_of(rewards, config, group, lengths, turn_counts)
    scored = ~torch.isnan(rewards)
    token_advantages = None
    if thinking is not None:
        thought, first = thinking
        scored &= ~torch.isnan(thought)
        of_thinking = advantages_of(thought, config, group, lengths, turn_counts)
        token_advantages = tuple(
            torch.cat([of_thinking[i].expand(first[i]), advantages[i].expand(int(lengths[i]) - first[i])])
            for i in range(len(turns))
        )
    rollouts = None
    if turn_counts is not None:
        rollouts = tuple(number for number, count in enumerate(turn_counts) for _ in range(count))
    counted = scored & kept & (lengths > 0) & (whole if mask_truncated else True)
    return Batch(tuple(turns), advantages, counted, token_advantages=token_advantages, rollouts=rollouts)


def advantages_of(
    rewards: Tensor, config: AdvantagesConfig, group: int, lengths: Tensor, turn_counts: Sequence[int] | None
) -> Tensor:
    """Return the advantage of each turn (float64 [S]), from its reward, or in conversations from its return."""
    if turn_counts is None:
        return group_advantages(
            rewards,
            group,
            mode=config.op_mode,
            eps=config.eps,
            singleton=config.op_singleton,
            lengths=lengths if config.mode == "reinforce_pp" else None,
        )
    return turn_advantages(
        rewards,
        group,
        gamma=config.gamma,
        mode={"rloo": "trloo"}.get(config.op_mode, config.op_mode),
        returns=config.turn_returns,
        cu_turns=torch.tensor([0, *turn_counts]).cumsum(0),
        baseline=config.baseline,
        eps=config.eps,
        singleton=config.op_singleton,
    )


def denominator(batch: Batch, spec: LossSpec, minibatches: int) -> float:
    """Return the divisor of an update's summed loss: a number of tokens or sequences, as the loss defines.

    It is counted over the whole generation batch and divided equally between its updates. So a token has the same
    weight in every update and micro-batch.
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
    """Return the sequences that an update has to compute.

    Without KL and entropy terms the gradient of a sequence is a multiple of its advantage. A sequence with advantage 0
    then contributes exactly 0 to loss and gradient, and is left out.
    """
    always = spec.beta != 0 or spec.entropy_coef != 0 or spec.ratio_penalty != 0

    def is_zero(i: int) -> bool:
        return not (batch.advantages[i] if batch.token_advantages is None else batch.token_advantages[i]).any()

    return [i for i in range(len(batch)) if batch.counted[i] and (always or not is_zero(i))]


def forward_passes(batch: Batch, spec: LossSpec, minibatches: int, size: int) -> list[list[list[int]]]:
    """Return the sequences of each forward pass of each update: at most ``size`` rows in a pass, none without gradient.

    Scoring uses the same passes as the updates, so the first update computes the same bits as the old log-probs.
    """
    needed = carries_gradient(batch, spec)
    rows = [forward_rows(batch, part) for part in by_update(batch, needed, minibatches)]
    return [
        [[i for row in part[start : start + size] for i in row] for start in range(0, len(part), size)] for part in rows
    ]


def ranks_passes(batch: Batch, spec: LossSpec, minibatches: int, size: int, ranks: int) -> list[list[list[list[int]]]]:
    """Return the forward passes of each rank in each update: ``[rank][update][pass]`` is a list of sequences.

    The rows of an update are distributed so that the ranks' numbers of tokens are as equal as possible. All ranks have
    equally many passes in an update; a rank with fewer rows gets empty passes, see :func:`idle`. With one rank the
    result is that of :func:`forward_passes`.
    """
    if ranks == 1:
        return [forward_passes(batch, spec, minibatches, size)]
    needed = carries_gradient(batch, spec)
    found: list[list[list[list[int]]]] = [[] for _ in range(ranks)]
    for part in by_update(batch, needed, minibatches):
        spread = spread_rows(batch, forward_rows(batch, part), ranks)
        count = max(-(-len(rows) // size) for rows in spread)
        for rank, rows in enumerate(spread):
            # All passes have about the same number of rows, so that ranks with different numbers of rows have equally
            # many passes.
            ends = [len(rows) * k // count for k in range(count + 1)] if count else [0]
            found[rank].append([[i for row in rows[a:b] for i in row] for a, b in itertools.pairwise(ends)])
    return found


def spread_rows(batch: Batch, rows: Sequence[list[int]], ranks: int) -> list[list[list[int]]]:
    """Divides rows between ranks so that the rank with the most tokens has as few as possible.

    A prompt counts once on each rank that has an answer to it, because its answers share it. Two ways are tried, and
    the better one is used: cutting the rows in order, which keeps groups together; and giving the longest rows out
    first, each to the rank that then has the fewest tokens. Within a rank the rows keep their order.
    """
    prompts = [batch.turns[row[0]].prompt_ids for row in rows]
    last = [batch.turns[row[-1]] for row in rows]
    numbers: dict[tuple[int, ...], int] = {}
    groups = [numbers.setdefault(prompt, len(numbers)) for prompt in prompts]
    shared = [len(prompt) for prompt in prompts]
    own = [len(turn.prompt_ids) + len(turn.completion_ids) - n for turn, n in zip(last, shared, strict=True)]
    parts = min((cut_rows(own, shared, groups, ranks), deal_rows(own, shared, groups, ranks)), key=lambda one: one[0])[
        1
    ]
    return [[rows[i] for i in sorted(part)] for part in parts]


def cut_rows(
    own: Sequence[int], shared: Sequence[int], groups: Sequence[int], ranks: int
) -> tuple[int, list[list[int]]]:
    """Cuts rows, in order, into parts whose largest has as few tokens as possible.

    Args:
        own: tokens of each row without its prompt.
        shared: tokens of each row's prompt.
        groups: index of each row's prompt.
        ranks: number of parts.

    Returns:
        The tokens of the largest part, and the rows of each part.

    >>> cut_rows([5, 5, 5, 5], [10, 10, 10, 10], [0, 0, 1, 1], 2)
    (20, [[0, 1], [2, 3]])
    """

    def cut(limit: int) -> list[list[int]] | None:
        parts: list[list[int]] = [[]]
        total, seen = 0, set[int]()
        for i, group in enumerate(groups):
            more = own[i] + (0 if group in seen else shared[i])
            if total + more > limit and parts[-1]:
                parts.append([])
                total, seen, more = 0, set(), own[i] + shared[i]
            if more > limit or len(parts) > ranks:
                return None
            parts[-1].append(i)
            total += more
            seen.add(group)
        return parts + [[] for _ in range(ranks - len(parts))]

    low, high = 0, sum(own) + sum(shared)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if cut(middle) is not None else (middle + 1, high)
    return high, cut(high) or []


def deal_rows(
    own: Sequence[int], shared: Sequence[int], groups: Sequence[int], ranks: int
) -> tuple[int, list[list[int]]]:
    """Assigns the longest rows first, each to the part that then has the fewest tokens; see :func:`cut_rows`."""
    parts: list[list[int]] = [[] for _ in range(ranks)]
    totals, seen = [0] * ranks, [set[int]() for _ in range(ranks)]
    for i in sorted(range(len(own)), key=lambda i: -own[i] - shared[i]):
        after = [totals[r] + own[i] + (0 if groups[i] in seen[r] else shared[i]) for r in range(ranks)]
        rank = after.index(min(after))
        parts[rank].append(i)
        totals[rank] = after[rank]
        seen[rank].add(groups[i])
    return max(totals), parts


def idle(batch: Batch, token: int) -> Batch:
    """Return a batch of one sequence that is not in the loss, for a rank that has no rows but must make a pass.

    Args:
        batch: a batch; the result has the same optional fields.
        token: any token id.
    """
    turn = Turn((token,), (token,), (0.0,), "", "stop")

    def zero(values: object) -> tuple[Tensor, ...] | None:
        return None if values is None else (torch.zeros(1),)

    return Batch(
        turns=(turn,),
        advantages=torch.zeros(1, dtype=torch.float64),
        counted=torch.zeros(1, dtype=torch.bool),
        old_logprobs=zero(batch.old_logprobs),
        ref_logprobs=zero(batch.ref_logprobs),
        token_advantages=zero(batch.token_advantages),
        rollouts=None if batch.rollouts is None else (0,),
    )


def by_update(batch: Batch, indices: Sequence[int], minibatches: int) -> list[list[int]]:
    """Divides sequences between the updates. The turns of a rollout stay in the same update."""
    length = -(-batch.num_rollouts // minibatches)
    return [[i for i in indices if batch.rollout_of(i) // length == m] for m in range(minibatches)]


def forward_rows(batch: Batch, indices: Sequence[int]) -> list[list[int]]:
    """Return the sequences of each row. Turns of a rollout share a row if the later prompt begins with the whole
    earlier turn."""
    rows: list[list[int]] = []
    for i in indices:
        last = rows[-1][-1] if rows else None
        if (
            last is not None
            and batch.rollout_of(last) == batch.rollout_of(i)
            and batch.turns[i].continues(batch.turns[last])
        ):
            rows[-1].append(i)
        else:
            rows.append([i])
    return rows


def collate(batch: Batch, pad_id: int, device: torch.device, form: Form = PADDED) -> MicroBatch:
    """Builds the tensors of one forward pass over all sequences of the batch."""
    lengths = [len(turn.completion_ids) for turn in batch.turns]
    together = forward_rows(batch, range(len(batch)))
    row_of = {i: r for r, row in enumerate(together) for i in row}
    sequences = [batch.turns[row[-1]].prompt_ids + batch.turns[row[-1]].completion_ids for row in together]

    def packed(values: tuple[Tensor, ...] | None) -> Tensor | None:
        return None if values is None else torch.cat(values).to(device, non_blocking=True)

    def put(values: object, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(values, dtype=dtype).to(device, non_blocking=True)

    layout: Layout | None = None
    positions: Tensor | None = None
    if form.packing:
        beginnings = [batch.turns[row[0]].prompt_ids for row in together]
        placed = place(sequences, beginnings if form.sharing else None, device)
        ids, mask, places, layout = put(placed.ids, torch.int64)[None], None, placed.places, placed.layout
        positions = put(placed.positions, torch.int64)
    else:
        width = max(map(len, sequences))
        ids = put([list(s) + [pad_id] * (width - len(s)) for s in sequences], torch.int64)
        mask = put([[1] * len(s) + [0] * (width - len(s)) for s in sequences], torch.int64)
        places = [range(r * width, (r + 1) * width) for r in range(len(sequences))]
    before = [
        places[row_of[b]][len(t.prompt_ids) - 1 : len(t.prompt_ids) - 1 + lengths[b]] for b, t in enumerate(batch.turns)
    ]
    return MicroBatch(
        ids=ids,
        attention_mask=mask,
        rows=put([row for some in before for row in some], torch.int64),
        targets=put([token for turn in batch.turns for token in turn.completion_ids], torch.int64),
        advantages=put(
            batch.advantages if batch.token_advantages is None else torch.cat(batch.token_advantages), torch.float32
        ),
        mask=put([bool(c) for c, n in zip(batch.counted, lengths, strict=True) for _ in range(n)], torch.bool),
        cu_seqlens=put([0, *torch.tensor(lengths).cumsum(0).tolist()], torch.int64),
        rollout_logprobs=put([logprob for turn in batch.turns for logprob in turn.logprobs], torch.float32),
        old_logprobs=packed(batch.old_logprobs),
        ref_logprobs=packed(batch.ref_logprobs),
        layout=layout,
        positions=positions,
    )


def finite_or_nan(values: Sequence[float | None]) -> Tensor:
    """Rewards as float64. None and infinities become NaN, which means "not scored"."""
    finite = [value if value is not None and math.isfinite(value) else math.nan for value in values]
    return torch.tensor(finite, dtype=torch.float64)
