"""The format reward."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder.rewards import RewardError, completion_text, format_reward, load_reward

GOOD = "<thinking>why</thinking>\n<answer>\n```python\nx = 1\n```\n</answer>"
NO_CODE = "<thinking>why</thinking><answer>x = 1</answer>"


def test_reward_is_1_for_the_right_form_and_0_otherwise() -> None:
    assert format_reward(["?"] * 4, [GOOD, NO_CODE, "x = 1", ""]) == [1.0, 0.0, 0.0, 0.0]


def test_partial_rewards_single_pieces_below_the_full_reward() -> None:
    rewards = format_reward(["?"] * 4, [GOOD, NO_CODE, "<thinking>why</thinking>", ""], partial=0.3)
    assert rewards == [1.0, pytest.approx(0.2), pytest.approx(0.1), 0.0]


@settings(deadline=None)
@given(st.lists(st.text(alphabet="<>/ansewrthikg`\npyo =1", max_size=80), max_size=4), st.floats(0, 0.99))
def test_rewards_lie_between_0_and_1_and_only_the_form_earns_1(texts: list[str], partial: float) -> None:
    for reward in format_reward(texts, texts, partial=partial):
        assert reward is not None
        assert 0.0 <= reward <= partial or reward == 1.0


def test_a_conversation_is_judged_by_its_last_answer() -> None:
    conversation = [{"role": "assistant", "content": "?"}, {"role": "user", "content": "again"}]
    assert format_reward(["?"], [[*conversation, {"role": "assistant", "content": GOOD}]]) == [1.0]


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("text", "text"),
        ([], ""),
        ([{"content": "no role"}], "no role"),
        ([{"role": "assistant", "content": None}], ""),
        ([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}], "a"),
        ([{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}], "a"),
    ],
)
def test_completion_text_reads_every_kind_of_completion(completion: object, text: str) -> None:
    assert completion_text(completion) == text  # type: ignore[arg-type]


@pytest.mark.parametrize("partial", [1.0, -0.1, float("nan")])
def test_partial_must_be_at_least_0_and_less_than_1(partial: float) -> None:
    with pytest.raises(RewardError, match=r"partial must be at least 0 and less than 1; got"):
        load_reward("format", {"partial": partial})
    with pytest.raises(RewardError, match=r"partial must be at least 0 and less than 1; got"):
        format_reward(["?"], ["x"], partial=partial)
