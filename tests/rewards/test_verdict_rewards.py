"""Rewards on verdicts: the rewards of each outcome, and that no fault earns more than an honest wrong answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder.judge import Outcome, Verdict, example_verdict
from kernel_coder.rewards import PRESETS, RewardError, RewardSet, load_reward, reward_preset
from kernel_coder.rewards.techniques import techniques_in

VERDICT_PRESETS = ["kevin", "dr_kernel", "kernel_tune"]
FUNCTIONS = ["compiles", "correct", "speedup", "kernel_share"]
TECHNIQUE = """
@triton.autotune(configs=[], key=[])
@triton.jit
def used(x_ptr, BLOCK: tl.constexpr):
    for tile in tl.range(tl.program_id(0), 8, tl.num_programs(0), num_stages=3):
        tl.store(x_ptr + tile, 1.0)

@triton.jit
def unused(x_ptr):
    tl.store(x_ptr, tl.dot(1, 2))

class ModelNew:
    def forward(self, x):
        used[(4,)](x, BLOCK=8)
"""
CUDA_TECHNIQUE = """
SOURCE = '''
// __shared__ in a comment
__global__ void swish(const float4* x) { /* __shfl_sync( */ }
'''
"""
FAULTS = [one for one in Outcome if one not in (Outcome.CORRECT, Outcome.WRONG_OUTPUT, Outcome.HARNESS_FAILED)]
FAST = example_verdict("correct", speedup=2.0, kernel_share=0.8)
WRONG = example_verdict("wrong_output", kernel_share=0.8)


def score(name: str, *verdicts: Verdict | None, **params: Any) -> list[float | None]:
    return load_reward(name, params)(["?"] * len(verdicts), ["x"] * len(verdicts), verdict=verdicts)


def total(preset: str, *verdicts: Verdict | None) -> list[float | None]:
    columns = {"verdict": list(verdicts)}
    return RewardSet(reward_preset(preset))(["?"] * len(verdicts), ["x"] * len(verdicts), **columns).total


@pytest.mark.parametrize(
    ("outcome", "compiles", "correct", "speedup", "share"),
    [
        ("correct", 1.0, 1.0, 1.9, 0.8),
        ("wrong_output", 1.0, 0.0, 0.0, 0.0),
        ("runtime_error", 1.0, 0.0, 0.0, 0.0),
        ("timeout", 1.0, 0.0, 0.0, 0.0),
        ("out_of_memory", 1.0, 0.0, 0.0, 0.0),
        ("crashed", 1.0, 0.0, 0.0, 0.0),
        ("rejected", 0.0, 0.0, 0.0, 0.0),
        ("compile_error", 0.0, 0.0, 0.0, 0.0),
        ("format_error", 0.0, 0.0, 0.0, 0.0),
        ("harness_failed", None, None, None, None),
    ],
)
def test_rewards_of_each_outcome(outcome: str, compiles: Any, correct: Any, speedup: Any, share: Any) -> None:
    verdict = example_verdict(outcome, speedup=2.0 if outcome == "correct" else None, kernel_share=0.8)
    assert [score(name, verdict)[0] for name in FUNCTIONS] == [compiles, correct, speedup, share]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_answer_without_a_verdict_has_no_reward(name: str) -> None:
    assert score(name, None, FAST)[0] is None
    assert score(name, None, FAST)[1] is not None
    assert score(name) == []


def test_rewards_for_memory_roofline_and_other_sizes() -> None:
    measured = {"memory_bytes": 200, "reference_memory_bytes": 100, "roofline_share": 0.7}
    good, bad = (example_verdict(one, **measured) for one in ("correct", "wrong_output"))
    special = example_verdict("correct", specialised="it fails on other sizes")
    assert score("memory", good, bad, special, None) == [0.5, 0.0, None, None]
    assert score("roofline", good, bad, special, None) == [0.7, 0.0, None, None]
    assert score("general", good, bad, special, None) == [1.0, 0.0, 0.0, None]


def test_candidate_that_timed_out_while_compiling_earns_nothing_for_compiling() -> None:
    assert score("compiles", example_verdict("timeout", compiled=False)) == [0.0]


def test_speedup_reward_is_the_lower_bound_unless_bound_is_estimate() -> None:
    assert score("speedup", FAST) == [1.9]
    assert score("speedup", FAST, bound="estimate") == [2.0]


def test_the_speedup_is_capped() -> None:
    faster = example_verdict("correct", speedup=1000.0)
    assert score("speedup", faster) == [10.0]
    assert score("speedup", faster, cap=3.0) == [3.0]
    assert score("speedup", faster, cap=None, bound="estimate") == [1000.0]


def test_a_slow_correct_candidate_still_earns_its_speedup() -> None:
    assert score("speedup", example_verdict("correct", speedup=0.1)) == [pytest.approx(0.095)]


def test_rewards_without_a_measurement_are_none() -> None:
    interpreted = example_verdict("correct", interpreted=True, device="cpu")
    assert score("speedup", interpreted) == [None]
    assert score("kernel_share", interpreted) == [None]


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"cap": 0}, "cap must be more than 0, or None for no cap; got 0.0"),
        ({"cap": float("nan")}, "cap must be more than 0, or None for no cap; got nan"),
        ({"bound": "upper"}, "parameter bound of reward speedup: input should be 'lower' or 'estimate'; got 'upper'"),
        ({"verdict": []}, "reward speedup has no parameter verdict; it has bound, cap"),
    ],
)
def test_wrong_parameters_are_refused(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RewardError) as caught:
        load_reward("speedup", params)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_missing_or_invalid_verdict_column_is_refused(name: str) -> None:
    with pytest.raises(RewardError, match=f"reward {name} needs the column verdict; the columns are step"):
        load_reward(name)(["?"], ["x"], step=0)
    with pytest.raises(RewardError, match=f"reward {name} needs a Verdict or None in the column verdict; got 1.0"):
        score(name, 1.0)  # type: ignore[arg-type]


# Presets


def test_presets_kevin_and_dr_kernel_follow_the_published_formulas() -> None:
    exact = example_verdict("correct", speedup=2.0, speedup_low=2.0, kernel_share=0.8)
    assert total("kevin", exact, WRONG) == [pytest.approx(0.3 + 2.0), 0.0]
    assert total("dr_kernel", exact, WRONG) == [pytest.approx(0.5 + 0.5 * 2.0 + 0.5 * 0.8), 0.0]
    much = example_verdict("correct", speedup=50.0, kernel_share=1.0)
    assert total("dr_kernel", much) == [pytest.approx(0.5 + 0.5 * 3.0 + 0.5)]


def test_rewards_of_preset_kernel_tune_rise_in_stages() -> None:
    stages = [example_verdict("compile_error"), WRONG, example_verdict("correct"), FAST]
    rewards = total("kernel_tune", *stages)
    assert rewards == [0.0, 1.0, 1.5, pytest.approx(1.69)]


@pytest.mark.parametrize("preset", VERDICT_PRESETS)
def test_failure_of_the_harness_has_no_total_and_does_not_affect_others(preset: str) -> None:
    rewards = total(preset, FAST, example_verdict("harness_failed"), None, WRONG)
    assert [reward is None for reward in rewards] == [False, True, True, False]
    table = RewardSet(reward_preset(preset))(["?"], ["x"], verdict=[example_verdict("harness_failed")])
    assert table.num_errors == 0


@pytest.mark.parametrize("preset", VERDICT_PRESETS)
def test_an_interpreted_correct_answer_has_a_total_above_a_wrong_one(preset: str) -> None:
    right, wrong = total(preset, example_verdict("correct", interpreted=True), WRONG)
    assert right is not None
    assert wrong is not None
    assert right > wrong


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(FAULTS), st.sampled_from(VERDICT_PRESETS), st.booleans(), st.floats(0.01, 100), st.floats(0, 1))
def test_no_fault_earns_more_than_an_honest_wrong_answer(
    outcome: Outcome, preset: str, compiled: bool, speedup: float, share: float
) -> None:
    free = outcome in (Outcome.TIMEOUT, Outcome.OUT_OF_MEMORY, Outcome.CRASHED, Outcome.REJECTED)
    fault = example_verdict(
        outcome.value, kernel_share=share, runtime_ms=1e-9, **({"compiled": compiled} if free else {})
    )
    right = example_verdict("correct", speedup=speedup, kernel_share=share)
    worst, wrong, best = total(preset, fault, WRONG, right)
    assert worst is not None
    assert wrong is not None
    assert best is not None
    assert worst <= wrong < best
    for name in FUNCTIONS:
        values = score(name, fault, WRONG, right)
        assert values == sorted(values)  # type: ignore[type-var]


def test_every_preset_names_rewards_that_exist() -> None:
    for name in PRESETS:
        RewardSet(reward_preset(name))


def test_techniques_are_counted_only_in_launched_kernels() -> None:
    assert techniques_in(TECHNIQUE) == {"autotune", "persistent", "pipelining"}
    assert techniques_in(CUDA_TECHNIQUE) == {"vector_loads"}
    assert techniques_in("def broken(") == set()
    assert techniques_in("x = 1") == set()


@pytest.mark.parametrize("form", ["{}", "<answer>\n```python\n{}\n```\n</answer>"])
def test_techniques_earn_a_reward_only_in_correct_answers(form: str) -> None:
    answer = form.format(TECHNIQUE)
    verdicts = [FAST, WRONG, None, example_verdict("harness_failed")]
    reward = load_reward("techniques", {"count": 4})
    assert reward(["?"] * 4, [answer] * 4, verdict=verdicts) == [0.75, 0.0, None, None]
    assert load_reward("techniques", {"known": ["autotune"]})(["?"], [answer], verdict=[FAST]) == [0.5]


@pytest.mark.parametrize(
    ("params", "rule"),
    [
        ({"known": ["magic"]}, "known must name techniques among .* 'magic'"),
        ({"count": 0}, "at least 1"),
        ({"known": []}, "must name a"),
    ],
)
def test_invalid_parameters_of_reward_techniques_are_refused(params: dict[str, Any], rule: str) -> None:
    with pytest.raises(RewardError, match=rule):
        load_reward("techniques", params)
