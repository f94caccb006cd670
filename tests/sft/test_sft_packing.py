"""Packing loses no example, makes no sequence too long, and marks where examples begin and which tokens count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_coder.sft.examples import Example
from kernel_coder.sft.packing import SEQUENCE_BUCKET, Filled, best_fit, collate

CPU = torch.device("cpu")


def example(ids: list[int], learnt: list[int]) -> Example:
    return Example("e", np.array(ids, dtype=np.int32), np.array([i in learnt for i in range(len(ids))]))


@given(st.lists(st.integers(1, 32), max_size=60))
def test_packs_hold_every_example_once_and_no_two_packs_could_be_one(lengths: list[int]) -> None:
    packs = best_fit(lengths, 32)
    assert sorted(index for pack in packs for index in pack) == list(range(len(lengths)))
    sizes = sorted(sum(lengths[i] for i in pack) for pack in packs)
    assert all(size <= 32 for size in sizes)
    assert len(sizes) < 2 or sizes[0] + sizes[1] > 32


def test_an_example_goes_where_it_leaves_least_room() -> None:
    assert best_fit([6, 5, 4, 3], 10) == [[0, 2], [1, 3]]


def test_an_example_longer_than_a_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="an example of 11 tokens does not fit into a sequence of 10"):
        best_fit([11], 10)


def test_row_predicts_the_next_token_of_its_own_example_only() -> None:
    batch = collate([example([5, 6, 7], [2]), example([8, 9], [1])], CPU)
    assert batch.ids.tolist() == [5, 6, 7, 8, 9]
    assert batch.positions.tolist() == [0, 1, 2, 0, 1]
    assert batch.cu_seqlens.tolist() == [0, 3, 5]
    assert batch.mask.tolist() == [False, True, False, True, False]
    assert batch.targets[batch.mask].tolist() == [7, 9]
    assert (batch.num_targets, batch.longest) == (2, 3)


def test_last_token_of_an_example_never_predicts_the_next_example() -> None:
    wrong = Example("e", np.array([1, 2], dtype=np.int32), np.array([True, True]))
    assert collate([wrong, wrong], CPU).mask.tolist() == [True, False, True, False]


def test_filled_pass_takes_its_longest_example_length_from_the_run() -> None:
    one, other = (collate([example(list(range(n)), [])], CPU, filled=Filled(64, longest=8)) for n in (3, 8))
    assert one.longest == other.longest == 8
    assert max(int(batch.cu_seqlens.diff().max()) for batch in (one, other)) == 8


def test_padding_has_one_shape_and_is_in_no_loss() -> None:
    batch = collate([example([5, 6, 7], [1, 2]), example([8, 9], [1])], CPU, filled=Filled(12, longest=3))
    assert len(batch.ids) == len(batch.positions) == len(batch.mask) == 12
    assert batch.num_targets == 3
    assert (len(batch.cu_seqlens) - 1) % SEQUENCE_BUCKET == 0
    assert batch.cu_seqlens[-1] == 12
    assert batch.positions.tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 0, 1, 2, 0]


@given(st.lists(st.integers(1, 16), min_size=1, max_size=80), st.integers(1, 4), st.randoms())
def test_all_passes_of_a_run_have_the_same_number_of_sequences(lengths: list[int], size: int, random: Any) -> None:
    examples = [example(list(range(n)), []) for n in lengths]
    packs = [[examples[i] for i in pack] for pack in best_fit(lengths, 16)]
    filled = Filled.of([[len(each) for each in pack] for pack in packs], size, 16)
    random.shuffle(packs)
    for start in range(0, len(packs), size):
        batch = collate([each for pack in packs[start : start + size] for each in pack], CPU, filled=filled)
        assert len(batch.cu_seqlens) == filled.sequences + 1
        assert len(batch.ids) == batch.cu_seqlens[-1] == size * 16
