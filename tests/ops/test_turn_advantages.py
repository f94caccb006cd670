from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder import _C, ops, reference
from tolerances import assert_close
from torch import Tensor

NAN = float("nan")
MODES = ["trloo", "grpo", "dr_grpo", "loo_std", "maxrl"]
BASELINES = ["turn", "group"]


def bounds_of(rollouts: list[list[float]], device: str = "cpu") -> Tensor:
    lengths = torch.tensor([0, *map(len, rollouts)], dtype=torch.int64)
    return lengths.cumsum(0).to(device)


def packed(rollouts: list[list[float]], device: str = "cpu") -> Tensor:
    return torch.tensor([r for rollout in rollouts for r in rollout], dtype=torch.float64, device=device)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("std", ["sample", "population"])
@pytest.mark.parametrize("size", [1, 2, 31, 33, 257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_the_reference_for_equal_rollouts(
    device: str, mode: str, baseline: str, std: str, size: int, dtype: torch.dtype
) -> None:
    turns = 11 if size < 257 else 3
    rewards = torch.rand(2 * size, turns, dtype=dtype, device=device) + 0.1
    options = {"gamma": 0.9, "mode": mode, "baseline": baseline, "std": std}
    fast = ops.turn_advantages(rewards, size, **options)
    assert fast.dtype == dtype
    assert_close(fast, reference.turn_advantages(rewards, size, **options))


def rollouts_of(
    scored: st.SearchStrategy[float], *, max_size: int = 12
) -> st.SearchStrategy[list[tuple[int, list[float]]]]:
    """Rollouts of 0 to 5 turns, each with a group."""
    turns = st.lists(st.one_of(st.just(NAN), scored), max_size=5)
    return st.lists(st.tuples(st.integers(-1, 2), turns), max_size=max_size)


@settings(max_examples=300, deadline=None)
@given(
    rollouts_of(st.integers(-8, 8).map(lambda r: r / 4)),
    st.sampled_from(MODES),
    st.sampled_from(BASELINES),
    st.sampled_from([0.0, 0.5, 1.0, 1.25]),
    st.sampled_from(["zero", "reward"]),
    st.sampled_from(["sample", "population"]),
    st.sampled_from([None, 1e-6, 0.5]),
)
def test_equals_the_reference_for_ragged_rollouts_in_any_order(
    rollouts: list[tuple[int, list[float]]],
    mode: str,
    baseline: str,
    gamma: float,
    singleton: str,
    std: str,
    eps: float | None,
) -> None:
    groups = torch.tensor([g for g, _ in rollouts], dtype=torch.int64)
    turns = [rewards for _, rewards in rollouts]
    rewards, cu_turns = packed(turns), bounds_of(turns)
    options = {"gamma": gamma, "mode": mode, "baseline": baseline, "singleton": singleton, "std": std, "eps": eps}
    fast = ops.turn_advantages(rewards, groups, cu_turns=cu_turns, **options)
    slow = reference.turn_advantages(rewards, groups, cu_turns=cu_turns, **options)
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("gamma", [0.0, 0.4, 1.0])
def test_equals_the_reference_for_many_ragged_rollouts(
    device: str, mode: str, baseline: str, gamma: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 40, (90,), generator=generator)
    lengths[torch.rand(90, generator=generator) < 0.2] = 0
    cu_turns = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(device)
    rewards = torch.rand(int(lengths.sum()), generator=generator) + 0.1
    rewards[torch.rand(len(rewards), generator=generator) < 0.02] = NAN
    groups = torch.randint(-5, 5, (90,), generator=generator).to(device)
    rewards = rewards.to(device)
    options = {"gamma": gamma, "mode": mode, "baseline": baseline, "cu_turns": cu_turns}
    fast = ops.turn_advantages(rewards, groups, **options)
    assert_close(fast, reference.turn_advantages(rewards, groups, **options))
    assert torch.equal(fast, ops.turn_advantages(rewards, groups, **options))  # the same bits every time


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Returns 0.75, 0.5, 1 | 1.5, 1 | 0.25, 0.5, with gamma 0.5.
        ({}, [-0.125, -0.25, 1.0, 1.0, 0.5, -0.875, -0.25]),
        ({"mode": "dr_grpo"}, [0.75 - 2.5 / 3, -1 / 6, 1.0, 1.5 - 2.5 / 3, 1 / 3, 0.25 - 2.5 / 3, -1 / 6]),
        ({"mode": "maxrl"}, [-0.1, -0.25, 1.0, 0.8, 0.5, -0.7, -0.25]),
        ({"singleton": "zero"}, [-0.125, -0.25, 0.0, 1.0, 0.5, -0.875, -0.25]),
        # All seven: mean 5.5 / 7.
        (
            {"mode": "dr_grpo", "baseline": "group"},
            [g - 5.5 / 7 for g in (0.75, 0.5, 1.0, 1.5, 1.0, 0.25, 0.5)],
        ),
        ({"baseline": "group"}, [(7 * g - 5.5) / 6 for g in (0.75, 0.5, 1.0, 1.5, 1.0, 0.25, 0.5)]),
        # Rewards alone: 0.5, 0, 1 | 1, 1 | 0, 0.5; means 0.5 and 0.5.
        ({"mode": "dr_grpo", "gamma": 0.0}, [0.0, -0.5, 1.0, 0.5, 0.5, -0.5, 0.0]),
    ],
)
def test_small_rollouts_equal_values_computed_by_hand(
    device: str, options: dict[str, object], expected: list[float]
) -> None:
    rollouts = [[0.5, 0.0, 1.0], [1.0, 1.0], [0.0, 0.5]]
    fast = ops.turn_advantages(
        packed(rollouts, device), 3, cu_turns=bounds_of(rollouts, device), **{"gamma": 0.5, **options}
    )
    assert fast.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_rollouts_of_one_turn_equal_group_advantages(device: str, mode: str) -> None:
    rewards = torch.rand(40, 1, device=device)
    group_mode = "rloo" if mode == "trloo" else mode
    expected = ops.group_advantages(rewards[:, 0], 8, mode=group_mode, singleton="reward")
    for baseline in BASELINES:
        assert_close(ops.turn_advantages(rewards, 8, mode=mode, baseline=baseline)[:, 0], expected)


@pytest.mark.parametrize("mode", MODES)
def test_equals_group_advantages_of_the_returns(device: str, mode: str) -> None:
    rewards = torch.rand(6, 4, dtype=torch.float64, device=device)
    returns = rewards.flip(1).cumsum(1).flip(1)
    group_mode = "rloo" if mode == "trloo" else mode
    by_turn = ops.turn_advantages(rewards, 3, mode=mode)
    keys = torch.arange(6, device=device)[:, None] // 3 * 4 + torch.arange(4, device=device)
    assert_close(
        by_turn.flatten(), ops.group_advantages(returns.flatten(), keys.flatten(), mode=group_mode, singleton="reward")
    )
    by_group = ops.turn_advantages(rewards, 3, mode=mode, baseline="group")
    assert_close(by_group.flatten(), ops.group_advantages(returns.flatten(), 12, mode=group_mode))


def test_two_dimensions_are_packed_rollouts_of_equal_length(device: str) -> None:
    rewards = torch.rand(6, 4, device=device)
    cu_turns = torch.arange(0, 25, 4, device=device)
    fast = ops.turn_advantages(rewards, 3, gamma=0.5)
    assert fast.shape == rewards.shape
    assert torch.equal(fast.flatten(), ops.turn_advantages(rewards.flatten(), 3, gamma=0.5, cu_turns=cu_turns))


def test_trloo_of_a_group_sums_to_zero_over_each_turn(device: str) -> None:
    rewards = torch.rand(8, 5, dtype=torch.float64, device=device)
    totals = ops.turn_advantages(rewards, 8).sum(0)
    assert totals.abs().max() < 1e-12


def test_reward_for_a_late_turn_is_credited_to_the_earlier_ones(device: str) -> None:
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]], device=device)
    assert ops.turn_advantages(rewards, 2).tolist() == [[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]]
    assert ops.turn_advantages(rewards, 2, gamma=0.5).tolist() == [[0.25, 0.5, 1.0], [-0.25, -0.5, -1.0]]
    assert ops.turn_advantages(rewards, 2, gamma=0.0).tolist() == [[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]]


def test_an_unscored_turn_makes_the_earlier_returns_of_its_rollout_unknown(device: str) -> None:
    rewards = torch.tensor([[1.0, NAN, 2.0], [3.0, 1.0, 4.0], [5.0, 2.0, 8.0]], device=device)
    fast = ops.turn_advantages(rewards, 3, mode="dr_grpo")
    # Returns: -, -, 2 | 8, 5, 4 | 15, 10, 8.
    assert fast[:, 0].tolist() == [0.0, -3.5, 3.5]
    assert fast[:, 1].tolist() == [0.0, -2.5, 2.5]
    assert fast[:, 2].tolist() == pytest.approx([2 - 14 / 3, 4 - 14 / 3, 8 - 14 / 3])


def test_unscored_turn_does_not_change_earlier_turns_if_gamma_is_0(device: str) -> None:
    rewards = torch.tensor([[1.0, NAN, 2.0], [3.0, 1.0, 4.0]], device=device)
    fast = ops.turn_advantages(rewards, 2, mode="dr_grpo", gamma=0.0)
    assert fast.tolist() == [[-1.0, 0.0, -1.0], [1.0, 1.0, 1.0]]  # turn 2 of the second: nothing to compare with


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("baseline", BASELINES)
def test_an_unscored_rollout_changes_nothing_for_the_others(device: str, mode: str, baseline: str) -> None:
    rewards = torch.rand(5, 3, device=device)
    with_unscored = torch.cat([rewards[:2], torch.full((1, 3), NAN, device=device), rewards[2:]])
    fast = ops.turn_advantages(with_unscored, 6, mode=mode, baseline=baseline)
    assert_close(fast[[0, 1, 3, 4, 5]], ops.turn_advantages(rewards, 5, mode=mode, baseline=baseline))
    assert (fast[2] == 0).all()


@pytest.mark.parametrize("mode", MODES)
def test_turn_reached_by_only_one_rollout_gives_its_return_or_zero(device: str, mode: str) -> None:
    rollouts = [[1.0, 0.5, 0.25], [2.0, 1.0]]
    given = {"cu_turns": bounds_of(rollouts, device), "mode": mode}
    assert ops.turn_advantages(packed(rollouts, device), 2, **given)[2] == 0.25
    assert ops.turn_advantages(packed(rollouts, device), 2, singleton="zero", **given)[2] == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("eps", [0.0, 1e-4])
@pytest.mark.parametrize("value", [0.0, 0.1, 1e6 + 0.1, -1 / 3])
def test_returns_without_spread_give_exactly_zero(
    device: str, mode: str, baseline: str, eps: float, value: float
) -> None:
    rewards = torch.full((7, 3), value, dtype=torch.float64, device=device)
    gamma = 0.0 if baseline == "group" else 0.7
    assert (ops.turn_advantages(rewards, 7, mode=mode, baseline=baseline, eps=eps, gamma=gamma) == 0).all()


@pytest.mark.parametrize("mode", ["trloo", "grpo", "dr_grpo", "loo_std"])
def test_large_offset_of_all_rewards_does_not_change_the_advantages(device: str, mode: str) -> None:
    spread = torch.tensor([[0.0, 1.0], [2.0, 4.0], [1.0, 1.0], [0.0, 3.0]], device=device)
    fast = ops.turn_advantages(spread + 1e6, 4, mode=mode)
    assert_close(fast, ops.turn_advantages(spread.double(), 4, mode=mode))


def test_groups_by_size_and_by_id_agree(device: str) -> None:
    rollouts = [[0.5, 0.0, 1.0], [], [1.0], [0.0, 0.5], [2.0, 0.25], [0.75]]
    rewards, cu_turns = packed(rollouts, device), bounds_of(rollouts, device)
    by_size = ops.turn_advantages(rewards, 3, cu_turns=cu_turns)
    by_id = ops.turn_advantages(rewards, torch.tensor([9, 9, 9, -4, -4, -4], device=device), cu_turns=cu_turns)
    assert torch.equal(by_size, by_id)


def test_default_eps_depends_on_the_mode() -> None:
    rewards = torch.rand(4, 3, dtype=torch.float64)
    for mode, eps in {"grpo": 1e-4, "loo_std": 1e-6}.items():
        assert torch.equal(
            ops.turn_advantages(rewards, 4, mode=mode), ops.turn_advantages(rewards, 4, mode=mode, eps=eps)
        )


@pytest.mark.parametrize("baseline", BASELINES)
def test_no_rollouts_or_no_turns_give_no_advantages(device: str, baseline: str) -> None:
    nothing, ids = torch.zeros(0, device=device), torch.zeros(0, dtype=torch.int64, device=device)
    for groups in (4, ids):
        assert ops.turn_advantages(torch.zeros(0, 3, device=device), groups, baseline=baseline).shape == (0, 3)
        cu_turns = torch.zeros(1, dtype=torch.int64, device=device)
        assert ops.turn_advantages(nothing, groups, cu_turns=cu_turns, baseline=baseline).shape == (0,)
    assert ops.turn_advantages(torch.zeros(4, 0, device=device), 2, baseline=baseline).shape == (4, 0)
    cu_turns = torch.zeros(5, dtype=torch.int64, device=device)
    assert ops.turn_advantages(nothing, 2, cu_turns=cu_turns, baseline=baseline).shape == (0,)


def test_infinite_reward_is_refused_on_the_cpu_and_spoils_no_other_rollout_on_cuda(device: str) -> None:
    rewards = torch.tensor([[1.0, float("inf"), 0.0], [1.0, 0.0, 1.0], [2.0, 1.0, 2.0]], device=device)
    if device == "cpu":
        with pytest.raises(ValueError, match=r"^rewards must be finite, or NaN for unscored; got inf at index 1$"):
            ops.turn_advantages(rewards, 3)
    else:
        fast = ops.turn_advantages(rewards, 3, mode="dr_grpo")
        # Returns: inf, inf, 0 | 2, 1, 1 | 5, 3, 2.
        assert fast[0, :2].isnan().all()
        assert fast[:, 2].tolist() == [-1.0, 0.0, 1.0]
        assert fast[1:, :2].tolist() == [[-1.5, -1.0], [1.5, 1.0]]


def test_turn_bounds_out_of_range_are_refused_on_the_cpu_and_clamped_on_cuda(device: str) -> None:
    rewards = torch.ones(3, device=device)
    bounds = torch.tensor([-(2**40), 2, 2**40], device=device)
    if device == "cpu":
        with pytest.raises(ValueError, match=r"^cu_turns must go from 0 to the number of rewards, 3; got -1099"):
            ops.turn_advantages(rewards, 2, cu_turns=bounds)
    else:
        assert ops.turn_advantages(rewards, 2, cu_turns=bounds).tolist() == [1.0, 1.0, -1.0]


def test_inputs_are_left_alone_and_the_result_carries_no_gradient(device: str) -> None:
    rewards = torch.rand(4, 2, device=device, requires_grad=True)
    before = rewards.detach().clone()
    assert not ops.turn_advantages(rewards, 4).requires_grad
    assert torch.equal(rewards.detach(), before)


def test_strided_arguments_give_the_same_bits(device: str) -> None:
    rewards = torch.rand(3, 8, device=device)
    assert torch.equal(ops.turn_advantages(rewards.T, 4), ops.turn_advantages(rewards.T.contiguous(), 4))
    cu_turns = torch.tensor([[0, 9], [3, 9], [8, 9]], device=device)[:, 0]
    groups = torch.tensor([[1, 0], [1, 0]], device=device)[:, 0]
    column = torch.rand(8, 2, device=device)[:, 0]
    fast = ops.turn_advantages(column, groups, cu_turns=cu_turns)
    expected = ops.turn_advantages(column.contiguous(), groups.contiguous(), cu_turns=cu_turns.contiguous())
    assert torch.equal(fast, expected)


def test_wrong_arguments_are_refused_in_one_sentence(device: str) -> None:
    two = torch.zeros(2, 2, device=device)
    turns = torch.tensor([0, 1, 2], device=device)

    def refuses(call: Callable[[], Tensor], sentence: str) -> None:
        with pytest.raises(ValueError, match=f"^{sentence}$"):
            call()

    refuses(
        lambda: ops.turn_advantages(two[0], 2),
        r"rewards must be 2-D without cu_turns, \[rollouts, turns\]; got .* \[2\]",
    )
    refuses(
        lambda: ops.turn_advantages(two, 2, cu_turns=turns), r"rewards must be 1-D with cu_turns; got shape \[2, 2\]"
    )
    refuses(
        lambda: ops.turn_advantages(two[0], 2, cu_turns=turns[:0]),
        r"cu_turns must be 1-D and not empty; got shape \[0\]",
    )
    refuses(lambda: ops.turn_advantages(two[0], 2, cu_turns=turns.int()), "cu_turns must be int64; got int32")
    refuses(lambda: ops.turn_advantages(two.half(), 2), "rewards must be float32 or float64; got float16")
    refuses(
        lambda: ops.turn_advantages(two, 2, mode="rloo"),
        "mode must be one of trloo, grpo, dr_grpo, loo_std, maxrl; got 'rloo'",
    )
    refuses(lambda: ops.turn_advantages(two, 2, baseline="prompt"), "baseline must be 'turn' or 'group'; got 'prompt'")
    for gamma, shown in ((-0.5, "-0.5"), (float("inf"), "inf"), (NAN, "nan")):
        refuses(
            lambda gamma=gamma: ops.turn_advantages(two, 2, gamma=gamma),
            f"gamma must be finite and at least 0; got {shown}",
        )
    refuses(lambda: ops.turn_advantages(two, 2, eps=-1.0), "eps must be at least 0; got -1")
    refuses(lambda: ops.turn_advantages(two, 2, std="n"), "std must be 'sample' or 'population'; got 'n'")
    refuses(lambda: ops.turn_advantages(two, 2, singleton="one"), "singleton must be 'zero' or 'reward'; got 'one'")
    refuses(
        lambda: ops.turn_advantages(two, 3),
        "groups must divide the number of rollouts; got groups of 3 for 2 rollouts",
    )
    refuses(
        lambda: ops.turn_advantages(two, turns),
        r"groups must be int64 with one group id for each rollout, shape \[2\]; got torch.int64 with shape \[3\]",
    )


def test_arguments_on_different_devices_are_refused(device: str) -> None:
    if device == "cpu":
        return
    rewards, turns = torch.zeros(2, device=device), torch.tensor([0, 1, 2])
    with pytest.raises(ValueError, match=r"^cu_turns must be on the device of rewards; got cpu:.* and cuda:0$"):
        ops.turn_advantages(rewards, 2, cu_turns=turns)
    with pytest.raises(ValueError, match=r"^groups must be on the device of rewards; got cpu and cuda:0$"):
        ops.turn_advantages(rewards, torch.tensor([0, 0]), cu_turns=turns.to(device))


def test_decreasing_turn_bounds_are_refused_on_the_cpu() -> None:
    with pytest.raises(ValueError, match=r"^cu_turns must not decrease; got 3 before 2$"):
        ops.turn_advantages(torch.zeros(4), 3, cu_turns=torch.tensor([0, 3, 2, 4]))
    with pytest.raises(ValueError, match=r"^cu_turns must go from 0 to the number of rewards, 4; got 0 to 3$"):
        ops.turn_advantages(torch.zeros(4), 2, cu_turns=torch.tensor([0, 1, 3]))


# Without the Python wrapper, torch chooses the exception: ValueError up to 2.14, RuntimeError from 2.15 on.
REFUSED = (ValueError, RuntimeError)


def test_offsets_and_order_out_of_range_are_refused_on_the_cpu() -> None:
    rewards, turns = torch.zeros(4), torch.tensor([0, 2, 4])
    rest = (1.0, "trloo", "turn", 1e-4, "sample", "reward")
    with pytest.raises(REFUSED, match=r"^offsets must go from 0 to the number of rollouts, 2; got 0 to 9$"):
        _C.turn_advantages(rewards, turns, None, torch.tensor([0, 9]), *rest)
    with pytest.raises(REFUSED, match=r"^order must hold indices of rollouts; got 5 for 2 rollouts$"):
        _C.turn_advantages(rewards, turns, torch.tensor([0, 5]), torch.tensor([0, 2]), *rest)
    with pytest.raises(REFUSED, match=r"^order must have shape \[rollouts\] = \[2\]; got \[3\]$"):
        _C.turn_advantages(rewards, turns, torch.tensor([0, 1, 2]), torch.tensor([0, 2]), *rest)
    with pytest.raises(REFUSED, match=r"^rewards must be 1-D; got shape \[2, 2\]$"):
        _C.turn_advantages(rewards.view(2, 2), turns, None, torch.tensor([0, 2]), *rest)


@pytest.mark.parametrize("baseline", BASELINES)
def test_opcheck(device: str, baseline: str) -> None:
    turns = torch.tensor([0, 1, 3, 6], device=device)
    order = torch.tensor([2, 0, 1], device=device)
    offsets = torch.tensor([0, 2, 3, 3], device=device)
    rest = (0.5, "trloo", baseline, 1e-4, "sample", "reward")
    torch.library.opcheck(_C.turn_advantages, (torch.rand(6, device=device), turns, order, offsets, *rest))


def test_compiles_without_a_graph_break_with_groups_by_size_and_by_id(device: str) -> None:
    rewards = torch.rand(6, device=device)
    turns = torch.tensor([0, 1, 3, 3, 6], device=device)
    ids = torch.tensor([1, 0, 1, 0], device=device)

    def twice(rewards: Tensor, groups: int | Tensor) -> Tensor:
        return 2 * ops.turn_advantages(rewards, groups, gamma=0.5, cu_turns=turns)

    compiled = torch.compile(twice, fullgraph=True, backend="aot_eager")
    for groups in (2, ids):
        assert torch.equal(compiled(rewards, groups), twice(rewards, groups))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_call_does_not_wait_for_the_device_and_can_be_captured_in_a_graph(device: str) -> None:
    if device == "cpu":
        return
    rewards = torch.rand(600, device=device)
    turns = torch.tensor([0, 1, 3, 3, 600], device=device)
    ids = torch.tensor([1, 0, 1, 0], device=device)

    def call() -> Tensor:
        return ops.turn_advantages(rewards, ids, cu_turns=turns, gamma=0.9)

    expected = call()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, expected)


RETURNS = ["sum", "max", "last", "per_turn"]


@settings(max_examples=200, deadline=None)
@given(
    rollouts_of(st.integers(-8, 8).map(lambda r: r / 4)),
    st.sampled_from(RETURNS),
    st.sampled_from([0.0, 0.4, 0.5, 1.0, 1.25]),
)
def test_returns_equal_the_reference(rollouts: list[tuple[int, list[float]]], mode: str, gamma: float) -> None:
    turns = [rewards for _, rewards in rollouts]
    fast = ops.turn_returns(packed(turns), bounds_of(turns), gamma=gamma, mode=mode)
    slow = reference.turn_returns(packed(turns), bounds_of(turns), gamma=gamma, mode=mode)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("mode", RETURNS)
def test_returns_of_many_long_rollouts_equal_the_reference(device: str, mode: str) -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(0, 70, (60,), generator=generator)
    cu_turns = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    rewards = torch.rand(int(lengths.sum()), generator=generator) - 0.3
    fast = ops.turn_returns(rewards.to(device), cu_turns.to(device), gamma=0.9, mode=mode)
    slow = reference.turn_returns(rewards, cu_turns, gamma=0.9, mode=mode)
    assert fast.dtype == torch.float64
    torch.testing.assert_close(fast.cpu(), slow, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("returns", RETURNS)
@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("mode", MODES)
def test_advantages_of_every_return_equal_the_reference(device: str, mode: str, baseline: str, returns: str) -> None:
    rollouts = [[0.5, 0.25, 1.0], [1.0, NAN], [0.0, 0.5], [2.0], [], [0.75, 0.1, 0.2, 0.9]]
    options = {"gamma": 0.4, "mode": mode, "baseline": baseline, "returns": returns}
    fast = ops.turn_advantages(packed(rollouts, device), 3, cu_turns=bounds_of(rollouts, device), **options)
    slow = reference.turn_advantages(packed(rollouts), 3, cu_turns=bounds_of(rollouts), **options)
    torch.testing.assert_close(fast.cpu(), slow, rtol=1e-9, atol=1e-9)
    if returns == "sum":  # the sum inside the op equals turn_returns
        outside = ops.turn_returns(packed(rollouts, device), bounds_of(rollouts, device), gamma=0.4)
        same = ops.turn_advantages(
            outside, 3, cu_turns=bounds_of(rollouts, device), gamma=0.0, mode=mode, baseline=baseline
        )
        torch.testing.assert_close(fast, same, rtol=1e-12, atol=1e-12)


def test_returns_equal_those_of_the_kevin_paper(device: str) -> None:
    """Scores 0, 0.3 and 1.3 with gamma 0.4: Kevin, section 4."""
    rewards, cu_turns = torch.tensor([0.0, 0.3, 1.3], device=device), torch.tensor([0, 3], device=device)
    found = {mode: ops.turn_returns(rewards.double(), cu_turns, gamma=0.4, mode=mode).tolist() for mode in RETURNS}
    assert found["sum"] == pytest.approx([0.0 + 0.4 * (0.3 + 0.4 * 1.3), 0.3 + 0.4 * 1.3, 1.3])
    assert found["max"] == pytest.approx([0.16 * 1.3, 0.4 * 1.3, 1.3], rel=1e-6)
    assert found["last"] == pytest.approx([0.16 * 1.3, 0.4 * 1.3, 1.3], rel=1e-6)
    assert found["per_turn"] == pytest.approx([0.0, 0.3, 1.3], rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((torch.zeros(2, 2), torch.tensor([0, 4])), {}, "rewards must be 1-D and floating point"),
        ((torch.zeros(2), torch.zeros(2)), {}, "cu_turns must be int64, 1-D and not empty"),
        ((torch.zeros(2), torch.tensor([0, 2])), {"mode": "best"}, "returns must be one of sum, max, last, per_turn"),
        ((torch.zeros(2), torch.tensor([0, 2])), {"gamma": -1.0}, "gamma must be finite and at least 0; got -1.0"),
        ((torch.zeros(2), torch.tensor([0, 2])), {"gamma": NAN}, "gamma must be finite and at least 0; got nan"),
    ],
)
def test_wrong_arguments_of_turn_returns_are_refused(
    arguments: tuple[Tensor, Tensor], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ops.turn_returns(*arguments, **options)


def naive_trloo(prompts: list[str], turns: list[int], scores: list[float], gamma: float) -> list[float]:
    """TRLOO from the formula alone: rows are turns, in any order, and a key is (prompt, turn).

    G_(i,k) = R_(i,k) + gamma G_(i,k+1);  A_(i,k) = G_(i,k) - sum of the others' G of the key / (N - 1), or G itself.
    """
    rows = len(scores)
    rollout, number = [], -1
    for turn in turns:
        number += turn == 0
        rollout.append(number)
    returns = [
        sum(gamma ** (turns[j] - turns[i]) * scores[j] for j in range(rows) if rollout[j] == rollout[i] and j >= i)
        for i in range(rows)
    ]
    found = []
    for i in range(rows):
        others = [returns[j] for j in range(rows) if j != i and (prompts[j], turns[j]) == (prompts[i], turns[i])]
        found.append(returns[i] - sum(others) / len(others) if others else returns[i])
    return found


def test_trloo_equals_its_published_formula(device: str) -> None:
    generator = torch.Generator().manual_seed(3)
    lengths = [3, 2, 3, 1, 3, 3, 2, 1]
    scores = torch.rand(sum(lengths), generator=generator, dtype=torch.float64)
    rollouts = [part.tolist() for part in scores.split(lengths)]
    turns = [k for length in lengths for k in range(length)]
    prompts = [f"p{r // 4}" for r, length in enumerate(lengths) for _ in range(length)]
    for gamma in (1.0, 0.4):
        wanted = naive_trloo(prompts, turns, scores.tolist(), gamma)
        found = ops.turn_advantages(
            packed(rollouts, device), 4, cu_turns=bounds_of(rollouts, device), gamma=gamma, mode="trloo"
        )
        assert found.tolist() == pytest.approx(wanted, rel=1e-12, abs=1e-12)
