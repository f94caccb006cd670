"""The similarity reward."""

from __future__ import annotations

import difflib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder import ops
from kernel_coder.rewards import RewardError, load_reward, similarity_reward
from kernel_coder.tasks import Task

code = st.text(alphabet="abcdef =()\n", min_size=1, max_size=60).filter(str.strip)


def answer(text: str) -> str:
    return f"<thinking>why</thinking><answer>\n```python\n{text}\n```\n</answer>"


@settings(deadline=None)
@given(st.lists(st.tuples(code, code), min_size=1, max_size=5), st.booleans())
def test_reward_is_the_difflib_ratio_of_code_and_solution(pairs: list[tuple[str, str]], autojunk: bool) -> None:
    rewards = similarity_reward(
        ["?"] * len(pairs), [answer(a) for a, _ in pairs], solution=[b for _, b in pairs], autojunk=autojunk
    )
    assert rewards == [difflib.SequenceMatcher(None, a.strip(), b.strip(), autojunk).ratio() for a, b in pairs]


def test_reward_is_none_without_a_known_solution_and_zero_without_code() -> None:
    rewards = similarity_reward(["?"] * 3, [answer("x = 1"), "no code", "no code"], solution=[None, "x = 1", None])
    assert rewards == [None, 0.0, None]


def test_solutions_come_from_the_tasks_if_there_is_no_column_solution() -> None:
    tasks = [Task(id=str(i), source="test", reference="...", solution=text) for i, text in enumerate(["x = 1", None])]
    assert similarity_reward(["?"] * 2, [answer("x = 1")] * 2, task=tasks) == [1.0, None]
    assert similarity_reward(["?"] * 2, [answer("x = 1")] * 2, task=tasks, solution=["x = 1", "y"])[1] is not None


def test_low_high_and_scale_change_the_reward() -> None:
    texts, known = ["x = 1", "zzzzz", "x = 1yyyyy"], "x = 1"
    raw = similarity_reward(["?"] * 3, [answer(text) for text in texts], solution=[known] * 3)
    bounded = similarity_reward(
        ["?"] * 3, [answer(text) for text in texts], solution=[known] * 3, low=0.2, high=0.5, scale=2.0
    )
    assert raw == [1.0, 0.0, pytest.approx(2 / 3)]
    assert bounded == [2.0, 0.0, 2.0]


def test_batch_makes_one_call_of_the_op(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    whole = ops.sequence_similarities

    def counted(a: list[str], b: list[str], **options: Any) -> Any:
        calls.append(len(a))
        return whole(a, b, **options)

    monkeypatch.setattr(ops, "sequence_similarities", counted)
    similarity_reward(["?"] * 4, [answer("x"), "none", answer("y"), answer("z")], solution=["x", "x", None, "x"])
    similarity_reward(["?"], ["none"], solution=["x"])
    assert calls == [2]


@pytest.mark.parametrize("params", [{"low": 0.5, "high": 0.5}, {"low": -0.1}, {"high": 1.5}])
def test_invalid_bounds_are_refused_at_loading(params: dict[str, float]) -> None:
    with pytest.raises(
        RewardError, match=r"reward similarity: low and high must satisfy 0 <= low < high <= 1; got low"
    ):
        load_reward("similarity", params)


def test_error_for_a_missing_column_names_it() -> None:
    with pytest.raises(RewardError, match="needs the column solution or the column task; got neither"):
        similarity_reward(["?"], [answer("x")])
