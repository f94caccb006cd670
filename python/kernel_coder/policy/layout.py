"""Packed rows: several sequences one after the other in one row, and the place of each token.

Letters of the shape comments: P tokens of shared prompts, A tokens of answers to them, S sequences.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LONG_SEQUENCE_TOKENS = 8192
"""Mean length, in tokens, from which sequences are attended to one by one with torch's attention instead of
FlashAttention for packed rows: for a single long sequence torch has the faster kernels."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The order of a packed row: shared prompts, then the answers to them, group by group, then whole sequences.

    ``spans`` has one entry ``(start, end, prompt_start, prompt_end)`` for each of these pieces, in tokens of the row.
    The last two are start and end of the answer's shared prompt; they are equal for a piece without a shared prompt.
    """

    spans: tuple[tuple[int, int, int, int], ...]
    cu_seqlens: Tensor  # int32 [S + 1]: the start of each piece, and the end of the last
    longest: int  # tokens of the longest piece
    prompts: int = 0  # P
    answers: int = 0  # A
    cu_prompts: Tensor | None = None  # int32 [groups + 1]: starts of the shared prompts
    cu_answers: Tensor | None = None  # int32 [groups + 1]: starts of the answers to each prompt
    longest_prompt: int = 0
    longest_answers: int = 0  # tokens of all answers to one prompt, the largest sum

    @property
    def is_long(self) -> bool:
        """Whether the sequences are so long that torch's attention is faster; see :data:`LONG_SEQUENCE_TOKENS`."""
        return not self.prompts and self.spans[-1][1] >= LONG_SEQUENCE_TOKENS * len(self.spans)


def layout_of(
    prompts: Sequence[int], answers: Sequence[Sequence[int]], others: Sequence[int], device: torch.device
) -> Layout:
    """Return the layout of a row.

    Args:
        prompts: length of each shared prompt.
        answers: for each shared prompt the lengths of its answers.
        others: lengths of the sequences that share nothing.
        device: the device of the tensors.
    """

    def ends(lengths: Sequence[int]) -> Tensor:
        return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32).to(device, non_blocking=True)

    lengths = [*prompts, *itertools.chain.from_iterable(answers), *others]
    starts = [0, *itertools.accumulate(lengths)]
    behind = [(0, 0)] * len(prompts)
    behind += [(starts[g], starts[g + 1]) for g, group in enumerate(answers) for _ in group]
    behind += [(0, 0)] * len(others)
    groups = [sum(group) for group in answers]
    return Layout(
        spans=tuple((start, start + n, *prompt) for start, n, prompt in zip(starts, lengths, behind, strict=False)),
        cu_seqlens=ends(lengths),
        longest=max(lengths),
        prompts=sum(prompts),
        answers=sum(groups),
        cu_prompts=ends(prompts) if prompts else None,
        cu_answers=ends(groups) if prompts else None,
        longest_prompt=max(prompts, default=0),
        longest_answers=max(groups, default=0),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Sequences in a packed row. Token k of sequence i stands at ``places[i][k]`` of the row."""

    ids: list[int]
    positions: list[int]  # of each token in its own sequence, from 0
    places: list[Sequence[int]]
    layout: Layout


def place(
    sequences: Sequence[tuple[int, ...]], beginnings: Sequence[tuple[int, ...]] | None, device: torch.device
) -> Placed:
    """Packs sequences into one row, in which a prompt that several of them share stands once.

    Args:
        sequences: token ids.
        beginnings: for each sequence the tokens at its start that it may share with others, usually its prompt. None:
            nothing is shared.
        device: for the tensors of the layout.

    >>> row = place([(1, 2, 8), (1, 2, 9), (5, 6)], [(1, 2), (1, 2), (5,)], torch.device("cpu"))
    >>> row.ids, row.positions
    ([1, 2, 8, 9, 5, 6], [0, 1, 2, 2, 0, 1])
    """
    members: dict[tuple[int, ...], list[int]] = {}
    for i, beginning in enumerate(beginnings or ()):
        members.setdefault(beginning, []).append(i)
    shared = {prompt: some for prompt, some in members.items() if len(some) > 1}
    inside = {i for some in shared.values() for i in some}
    others = [i for i in range(len(sequences)) if i not in inside]
    ids: list[int] = []
    positions: list[int] = []
    places: list[Sequence[int]] = [()] * len(sequences)

    def append(tokens: Sequence[int], first: int) -> range:
        start = len(ids)
        ids.extend(tokens)
        positions.extend(range(first, first + len(tokens)))
        return range(start, len(ids))

    prompts = [append(prompt, 0) for prompt in shared]
    for (prompt, some), begun in zip(shared.items(), prompts, strict=True):
        for i in some:
            places[i] = [*begun, *append(sequences[i][len(prompt) :], len(prompt))]
    for i in others:
        places[i] = append(sequences[i], 0)
    layout = layout_of(
        [len(prompt) for prompt in shared],
        [[len(sequences[i]) - len(prompt) for i in some] for prompt, some in shared.items()],
        [len(sequences[i]) for i in others],
        device,
    )
    return Placed(ids, positions, places, layout)
