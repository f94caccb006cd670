from __future__ import annotations

import math

import pytest
import torch
from anywhere import on
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder import _C, ops, reference
from tolerances import assert_close
from torch._dynamo.testing import CompileCounterWithBackend

NAN = float("nan")
MODES = ["grpo", "dr_grpo", "batch", "rloo", "loo_std", "reinforce_pp", "maxrl"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("std", ["sample", "population"])
@pytest.mark.parametrize("size", [1, 2, 3, 31, 32, 33, 257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_the_reference_for_equal_groups(device: str, mode: str, std: str, size: int, dtype: torch.dtype) -> None:
    rewards = torch.rand(3 * size, dtype=dtype) + 0.1
    fast = ops.group_advantages(rewards.to(device), size, mode=mode, std=std)
    assert fast.dtype == dtype
    assert_close(fast.cpu(), reference.group_advantages(rewards, size, mode=mode, std=std))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-2, 2), st.one_of(st.just(NAN), st.integers(-8, 8)), st.integers(0, 5)), max_size=40
    ),
    st.sampled_from(MODES),
    st.sampled_from(["zero", "reward"]),
    st.sampled_from(["sample", "population"]),
    st.sampled_from([None, 1e-6, 0.5]),
)
def test_equals_the_reference_for_ragged_groups_in_any_order(
    device: str, rows: list[tuple[int, float, int]], mode: str, singleton: str, std: str, eps: float | None
) -> None:
    groups = torch.tensor([g for g, _, _ in rows], dtype=torch.int64)
    rewards = torch.tensor([r / 4 for _, r, _ in rows], dtype=torch.float64)
    lengths = torch.tensor([n for _, _, n in rows], dtype=torch.int64) if mode == "reinforce_pp" else None
    options = {"mode": mode, "singleton": singleton, "std": std, "eps": eps, "lengths": lengths}
    fast = ops.group_advantages(rewards.to(device), groups.to(device), **on(device, options))
    slow = reference.group_advantages(rewards, groups, **options)
    torch.testing.assert_close(fast.cpu(), slow, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        # Rewards 0, 1, 1, 2 | 4: mean 1, sample deviation sqrt(2 / 3); over the batch: mean 1.6, sum of squares 9.2.
        ("grpo", [-math.sqrt(1.5), 0, 0, math.sqrt(1.5), 0]),
        ("dr_grpo", [-1, 0, 0, 1, 0]),
        ("batch", [-1 / math.sqrt(9.2 / 4), 0, 0, 1 / math.sqrt(9.2 / 4), 0]),
        ("rloo", [-4 / 3, 0, 0, 4 / 3, 0]),
        # Without the 0: mean 4 / 3, deviation sqrt(1 / 3). Without a 1: mean 1, deviation 1.
        ("loo_std", [-4 / math.sqrt(3), 0, 0, 4 / math.sqrt(3), 0]),
        ("reinforce_pp", [-math.sqrt(1.5), 0, 0, math.sqrt(1.5), 0]),
        ("maxrl", [-1, 0, 0, 1, 0]),
    ],
)
def test_small_groups_equal_values_computed_by_hand(device: str, mode: str, expected: list[float]) -> None:
    rewards = torch.tensor([0.0, 1.0, 1.0, 2.0, 4.0], dtype=torch.float64, device=device)
    groups = torch.tensor([7, 7, 7, 7, 3], device=device)
    assert ops.group_advantages(rewards, groups, mode=mode, eps=0.0).tolist() == pytest.approx(expected, rel=1e-12)


def test_default_eps_depends_on_the_mode(device: str) -> None:
    rewards = torch.tensor([0.0, 1.0, 1.0, 2.0], dtype=torch.float64, device=device)
    for mode, eps in {"grpo": 1e-4, "batch": 1e-4, "loo_std": 1e-6, "reinforce_pp": 1e-8}.items():
        assert torch.equal(
            ops.group_advantages(rewards, 4, mode=mode), ops.group_advantages(rewards, 4, mode=mode, eps=eps)
        )
    # reinforce_pp adds eps to the variance, the others to the deviation.
    assert float(ops.group_advantages(rewards, 4, eps=1.0)[3]) == pytest.approx(1 / (math.sqrt(2 / 3) + 1))
    variance = float(ops.group_advantages(rewards, 4, mode="reinforce_pp", eps=1.0)[3])
    assert variance == pytest.approx(1 / math.sqrt(2 / 3 + 1))


@pytest.mark.parametrize("mode", MODES)
def test_unscored_reward_enters_no_statistic_and_gets_zero(device: str, mode: str) -> None:
    rewards = torch.tensor([1.0, NAN, 3.0, 5.0, NAN, NAN, 2.0, 0.5], device=device)
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2], device=device)
    scored = ~rewards.isnan()
    fast = ops.group_advantages(rewards, groups, mode=mode)
    assert torch.equal(fast[scored], ops.group_advantages(rewards[scored], groups[scored], mode=mode))
    assert (fast[~scored] == 0).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("eps", [0.0, 1e-4])
@pytest.mark.parametrize("value", [0.0, 0.1, 1e6 + 0.1, -1 / 3])
def test_a_group_without_spread_gives_exactly_zero(device: str, mode: str, eps: float, value: float) -> None:
    rewards = torch.full((7,), value, dtype=torch.float64, device=device)
    assert (ops.group_advantages(rewards, 7, mode=mode, eps=eps) == 0).all()


@pytest.mark.parametrize("mode", MODES)
def test_a_group_of_one_gives_zero_or_its_reward(device: str, mode: str) -> None:
    rewards = torch.tensor([3.0, NAN, 1.0, 2.0], device=device)
    groups = torch.tensor([0, 0, 1, 1], device=device)
    assert ops.group_advantages(rewards, groups, mode=mode)[0] == 0
    kept = float(ops.group_advantages(rewards, groups, mode=mode, singleton="reward")[0])
    deviation = {"batch": float(rewards[[0, 2, 3]].std())}.get(mode)
    if mode == "reinforce_pp":
        d = torch.tensor([3.0, -0.5, 0.5])
        assert kept == pytest.approx(float((d[0] - d.mean()) / d.std()), rel=1e-6)
    else:
        assert kept == pytest.approx(3.0 / (deviation + 1e-4) if deviation else 3.0, rel=1e-6)


@pytest.mark.parametrize("mode", ["grpo", "dr_grpo", "batch", "rloo", "loo_std", "reinforce_pp"])
def test_large_offset_of_all_rewards_does_not_change_the_advantages(device: str, mode: str) -> None:
    spread = torch.tensor([0.0, 1.0, 2.0, 4.0, 1.0, 1.0, 0.0, 3.0], device=device)
    assert_close(ops.group_advantages(spread + 1e6, 4, mode=mode), ops.group_advantages(spread.double(), 4, mode=mode))


def test_one_outlier_among_equal_rewards_is_not_divided_by_a_rounding_error(device: str) -> None:
    rewards = torch.tensor([0.1, 0.1, 0.1, 0.9], dtype=torch.float64, device=device)
    assert float(ops.group_advantages(rewards, 4, mode="loo_std")[3]) == pytest.approx(0.8, rel=1e-12)


def test_reinforce_pp_weighs_by_tokens(device: str) -> None:
    rewards = torch.tensor([0.0, 2.0], dtype=torch.float64, device=device)
    lengths = torch.tensor([1, 3], device=device)
    # Over tokens -1, 1, 1, 1: mean 0.5, sum of squares 3.
    fast = ops.group_advantages(rewards, 2, mode="reinforce_pp", lengths=lengths, eps=0.0)
    assert fast.tolist() == pytest.approx([-1.5, 0.5])


def test_infinite_reward_is_refused_on_the_cpu_and_spoils_no_other_advantage_on_cuda(device: str) -> None:
    rewards = torch.tensor([1.0, float("inf"), 3.0], device=device)
    if device == "cpu":
        with pytest.raises(ValueError, match=r"^rewards must be finite, or NaN for unscored; got inf at index 1$"):
            ops.group_advantages(rewards, 3, mode="dr_grpo")
    else:
        fast = ops.group_advantages(rewards, 3, mode="dr_grpo")
        assert fast[[0, 2]].tolist() == [-1.0, 1.0]
        assert fast[1].isnan()


def test_no_rewards_give_no_advantages(device: str) -> None:
    for mode in MODES:
        assert ops.group_advantages(torch.zeros(0, device=device), 4, mode=mode).shape == (0,)
        ids = torch.zeros(0, dtype=torch.int64, device=device)
        assert ops.group_advantages(torch.zeros(0, device=device), ids, mode=mode).shape == (0,)


def test_inputs_are_left_alone_and_the_result_carries_no_gradient(device: str) -> None:
    rewards = torch.rand(8, device=device, requires_grad=True)
    before = rewards.detach().clone()
    assert not ops.group_advantages(rewards, 4).requires_grad
    assert torch.equal(rewards.detach(), before)


def test_strided_rewards_ids_and_lengths(device: str) -> None:
    rewards = torch.rand(8, 3, device=device)
    ids, lengths = (torch.randint(0, 3, (8, 2), device=device) for _ in range(2))
    for groups in (4, ids[:, 1]):
        strided = ops.group_advantages(rewards[:, 1], groups, mode="reinforce_pp", lengths=lengths[:, 1])
        dense = [x if isinstance(x, int) else x.contiguous() for x in (groups, lengths[:, 1])]
        wanted = ops.group_advantages(rewards[:, 1].contiguous(), dense[0], mode="reinforce_pp", lengths=dense[1])
        assert torch.equal(strided, wanted)


@pytest.mark.parametrize("mode", MODES)
def test_every_run_gives_the_same_bits(device: str, mode: str) -> None:
    rewards, groups = torch.rand(3000, device=device), torch.randint(0, 40, (3000,), device=device)
    first = ops.group_advantages(rewards, groups, mode=mode)
    for _ in range(3):
        assert torch.equal(ops.group_advantages(rewards, groups, mode=mode), first)


def test_group_size_that_does_not_divide_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match="groups must divide the number of rewards; got groups of 4 for 6 rewards"):
        ops.group_advantages(torch.zeros(6, device=device), 4)


def test_tensor_on_another_device_is_refused_by_name(device: str) -> None:
    if device == "cpu":
        return
    rewards, two = torch.zeros(2, device=device), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"^groups must be on the device of rewards; got cpu.* and cuda:0$"):
        ops.group_advantages(rewards, two)
    with pytest.raises(ValueError, match=r"^lengths must be on the device of rewards; got cpu.* and cuda:0$"):
        ops.group_advantages(rewards, 2, mode="reinforce_pp", lengths=two)


def test_wrong_arguments_are_refused_in_one_sentence(device: str) -> None:
    two = torch.zeros(2, device=device)
    with pytest.raises(ValueError, match=r"^rewards must be 1-D; got shape \[2, 2\]$"):
        ops.group_advantages(torch.zeros(2, 2, device=device), 2)
    with pytest.raises(ValueError, match=r"^rewards must be float32 or float64; got bfloat16$"):
        ops.group_advantages(two.bfloat16(), 2)
    with pytest.raises(ValueError, match=r"^mode must be one of grpo, dr_grpo, batch, .*; got 'ppo'$"):
        ops.group_advantages(two, 2, mode="ppo")
    with pytest.raises(ValueError, match=r"^std must be 'sample' or 'population'; got 'n'$"):
        ops.group_advantages(two, 2, std="n")
    with pytest.raises(ValueError, match=r"^singleton must be 'zero' or 'reward'; got 'one'$"):
        ops.group_advantages(two, 2, singleton="one")
    with pytest.raises(ValueError, match=r"^eps must be at least 0; got -1$"):
        ops.group_advantages(two, 2, eps=-1.0)
    with pytest.raises(ValueError, match=r"^lengths must be given for mode 'reinforce_pp' only; got 'grpo'$"):
        ops.group_advantages(two, 2, lengths=torch.ones(2, dtype=torch.int64, device=device))
    with pytest.raises(ValueError, match=r"^lengths must have shape \[rewards\] = \[2\]; got \[3\]$"):
        ops.group_advantages(two, 2, mode="reinforce_pp", lengths=torch.ones(3, dtype=torch.int64, device=device))
    with pytest.raises(ValueError, match=r"^groups must be int64 with one group id for each reward"):
        ops.group_advantages(two, torch.zeros(2, device=device))
    with pytest.raises(ValueError, match=r"^groups must be a group size of at least 1 .*; got 0$"):
        ops.group_advantages(two, 0)


# Without the Python wrapper, torch chooses the exception: ValueError up to 2.14, RuntimeError from 2.15 on.
REFUSED = (ValueError, RuntimeError)


def test_offsets_and_order_out_of_range_are_refused_on_the_cpu() -> None:
    rest = (None, "grpo", 1e-4, "sample", "zero")
    with pytest.raises(REFUSED, match=r"^offsets must go from 0 to the number of rewards, 4; got 0 to 9$"):
        _C.group_advantages(torch.zeros(4), None, torch.tensor([0, 9]), *rest)
    with pytest.raises(REFUSED, match=r"^offsets must not decrease; got 3 before 2$"):
        _C.group_advantages(torch.zeros(4), None, torch.tensor([0, 3, 2, 4]), *rest)
    with pytest.raises(REFUSED, match=r"^order must hold indices of rewards; got 5 for 2 rewards$"):
        _C.group_advantages(torch.zeros(2), torch.tensor([0, 5]), torch.tensor([0, 2]), *rest)


@pytest.mark.parametrize("mode", MODES)
def test_opcheck(device: str, mode: str) -> None:
    offsets = torch.tensor([0, 2, 4], device=device)
    order = torch.tensor([3, 1, 0, 2], device=device)
    lengths = torch.tensor([3, 1, 0, 2], device=device) if mode == "reinforce_pp" else None
    torch.library.opcheck(
        _C.group_advantages,
        (torch.rand(4, device=device), order, offsets, lengths, mode, 1e-4, "sample", "zero"),
    )


@pytest.mark.parametrize("mode", ["grpo", "reinforce_pp"])
def test_compiles_without_a_graph_break_with_group_ids(device: str, mode: str) -> None:
    rewards = torch.rand(6, device=device)
    groups = torch.tensor([4, 0, 4, 0, 4, 9], device=device)

    def twice(rewards: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        return 2 * ops.group_advantages(rewards, groups, mode=mode)

    compiled = torch.compile(twice, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(rewards, groups), twice(rewards, groups))


@pytest.mark.parametrize("by_id", [False, True])
def test_other_numbers_of_rewards_need_no_recompilation(device: str, by_id: bool) -> None:
    counter = CompileCounterWithBackend("aot_eager")

    def twice(rewards: torch.Tensor, groups: int | torch.Tensor) -> torch.Tensor:
        return 2 * ops.group_advantages(rewards, groups)

    compiled = torch.compile(twice, fullgraph=True, backend=counter, dynamic=True)
    for number in (12, 8, 40):
        rewards = torch.rand(number, device=device)
        groups = torch.arange(number, device=device) % 3 if by_id else 4
        assert torch.equal(compiled(rewards, groups), twice(rewards, groups))
    assert counter.frame_count == 1


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_call_does_not_wait_for_the_device_and_its_graph_follows_new_inputs(
    device: str, mode: str, by_id: bool
) -> None:
    if device == "cpu":
        return
    rewards, ids = torch.rand(5000, device=device), torch.arange(5000, device=device) % 7
    others, other_ids = torch.rand(5000, device=device), torch.arange(5000, device=device) // 50
    # The second ids form other groups, and another number of groups.
    expected = [
        ops.group_advantages(rewards, ids if by_id else 50, mode=mode),
        ops.group_advantages(others, other_ids if by_id else 50, mode=mode),
    ]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        ops.group_advantages(rewards, ids if by_id else 50, mode=mode)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ops.group_advantages(rewards, ids if by_id else 50, mode=mode)
    for new, new_ids, wanted in ((rewards.clone(), ids.clone(), expected[0]), (others, other_ids, expected[1])):
        rewards.copy_(new)
        ids.copy_(new_ids)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured, wanted)
