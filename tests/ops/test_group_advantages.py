from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder import _C, ops, reference

MODES = ["grpo", "dr_grpo", "rloo"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("std", ["sample", "population"])
@pytest.mark.parametrize("size", [1, 2, 31, 32, 33, 257])
def test_equals_the_reference_for_equal_groups(device: str, mode: str, std: str, size: int) -> None:
    rewards = torch.randn(3 * size, dtype=torch.float64, device=device)
    fast = ops.group_advantages(rewards, size, mode=mode, std=std)
    torch.testing.assert_close(
        fast, reference.group_advantages(rewards, size, mode=mode, std=std), rtol=1e-12, atol=1e-14
    )


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.one_of(st.just(float("nan")), st.floats(-10, 10))), max_size=40),
    st.sampled_from(MODES),
    st.sampled_from(["zero", "reward"]),
)
def test_equals_the_reference_for_ragged_groups_in_any_order(
    rows: list[tuple[int, float]], mode: str, singleton: str
) -> None:
    groups = torch.tensor([g for g, _ in rows], dtype=torch.int64)
    rewards = torch.tensor([r for _, r in rows], dtype=torch.float64)
    fast = ops.group_advantages(rewards, groups, mode=mode, singleton=singleton)
    slow = reference.group_advantages(rewards, groups, mode=mode, singleton=singleton)
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9)


def test_large_offset_keeps_the_spread(device: str) -> None:
    rewards = torch.tensor([1e6, 1e6 + 1, 1e6 + 2, 1e6 + 3], device=device)
    torch.testing.assert_close(
        ops.group_advantages(rewards, 4), ops.group_advantages(rewards - 1e6, 4), rtol=1e-6, atol=0
    )


def test_group_size_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="groups must divide the number of rewards; got groups of 4 for 6 rewards"):
        ops.group_advantages(torch.zeros(6), 4)


def test_wrong_arguments_are_refused_in_one_sentence(device: str) -> None:
    with pytest.raises(ValueError, match=r"^rewards must be 1-D; got shape \[2, 2\]$"):
        ops.group_advantages(torch.zeros(2, 2, device=device), 2)
    with pytest.raises(ValueError, match=r"^rewards must be float32 or float64; got bfloat16$"):
        ops.group_advantages(torch.zeros(2, device=device, dtype=torch.bfloat16), 2)
    with pytest.raises(ValueError, match=r"^mode must be one of .*; got 'ppo'$"):
        ops.group_advantages(torch.zeros(2, device=device), 2, mode="ppo")


def test_opcheck(device: str) -> None:
    offsets = torch.tensor([0, 2, 4], device=device)
    torch.library.opcheck(
        _C.group_advantages, (torch.rand(4, device=device), None, offsets, "grpo", 1e-4, "sample", "zero")
    )
