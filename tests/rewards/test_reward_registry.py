"""Rewards by name, by module and by file; their parameters; the typical mistakes."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest
from kernel_coder.rewards import (
    RewardError,
    format_reward,
    load_reward,
    register_reward,
    registry,
    reward_names,
    reward_preset,
)

HERE = f"{__name__}:"


def length(prompts: list[str], completions: list[str], limit: int = 10, *, bonus: float = 1.0) -> list[float]:
    return [bonus * (len(text) <= limit) for text in completions]


def graded(prompts: list[str], completions: list[str], difficulty: list[int], **columns: Any) -> list[float]:
    return [float(grade) for grade in difficulty]


def without_names(*args: Any, **kwargs: Any) -> list[float]:
    return [0.0 for _ in kwargs["completions"]]


def foreign_annotation(prompts: Any, completions: Any, *, device: NotImported = None) -> list[float]:  # type: ignore[name-defined]  # noqa: F821
    return [0.0 for _ in completions]


class Judge:
    def __call__(self, prompts: list[str], completions: list[str], *, strictness: int = 1) -> list[float]:
        return [float(strictness) for _ in completions]

    def method(self, prompts: list[str], completions: list[str]) -> list[float]:
        return [2.0 for _ in completions]


judge = Judge()


def test_registered_name_loads_the_function_itself() -> None:
    reward = load_reward("format")
    assert reward.function is format_reward
    assert reward.__name__ == "format"
    assert reward(["?"], ["no form"]) == [0.0]


def test_function_of_a_module_loads_with_parameters() -> None:
    reward = load_reward(HERE + "length", {"limit": 2, "bonus": 0.5})
    assert reward(["?", "?"], ["ab", "abc"]) == [0.5, 0.0]


def test_callable_objects_and_methods_load_as_rewards() -> None:
    assert load_reward(HERE + "judge", {"strictness": 3})(["?"], ["x"]) == [3.0]
    assert load_reward(HERE + "judge.method")(["?"], ["x"]) == [2.0]


def test_function_in_a_file_loads_as_a_reward(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def always(prompts, completions, value=1.0):\n    return [value for _ in completions]\n"
    )
    assert load_reward(f"{tmp_path}/mine.py:always", {"value": 2.0})(["?"], ["x"]) == [2.0]


def test_columns_without_a_parameter_of_that_name_are_not_passed() -> None:
    assert load_reward(HERE + "length")(["?"], ["x"], solution=[None], step=3) == [1.0]
    assert load_reward(HERE + "graded")(["?"], ["x"], difficulty=[2], solution=[None]) == [2.0]


def test_error_for_a_missing_column_names_it() -> None:
    with pytest.raises(RewardError, match="needs the column difficulty; the columns are solution, step"):
        load_reward(HERE + "graded")(["?"], ["x"], solution=[None], step=0)


def test_parameters_are_converted_to_their_annotated_types() -> None:
    assert load_reward(HERE + "length", {"limit": "3"}).params == {"limit": 3}
    assert load_reward(HERE + "foreign_annotation", {"device": "cpu"}).params == {"device": "cpu"}


# Mistakes


def test_error_for_an_unknown_reward_names_the_known_rewards() -> None:
    with pytest.raises(RewardError) as caught:
        load_reward("simlarity")
    assert str(caught.value) == (
        "unknown reward simlarity (did you mean similarity?); known are compiles, correct, format, general, "
        "kernel_share, memory, roofline, similarity, speedup, techniques, "
        "and any function as package.module:function"
    )


@pytest.mark.parametrize(
    ("name", "params", "sentence"),
    [
        ("format", {"partal": 0.1}, "reward format has no parameter partal (did you mean partial?); it has partial"),
        (
            "similarity",
            {"solution": []},
            "reward similarity has no parameter solution; it has autojunk, high, low, scale",
        ),
        (HERE + "without_names", {"x": 1}, f"reward {HERE}without_names has no parameter x; it has none"),
        (HERE + "length", {"limit": "ten"}, f"parameter limit of reward {HERE}length: input should be a valid integer"),
        ("similarity", {"high": "much"}, "parameter high of reward similarity: input should be a valid number"),
        ("nowhere.at_all:f", {}, "reward nowhere.at_all:f cannot be imported: ModuleNotFoundError: No module named"),
        (
            "nowhere.py:f",
            {},
            "reward nowhere.py:f cannot be imported: FileNotFoundError: the file nowhere.py does not exist",
        ),
        (HERE + "absent", {}, f"reward {HERE}absent: {__name__} has no function absent"),
        (HERE + "HERE", {}, f"reward {HERE}HERE: {__name__} has no function HERE"),
    ],
)
def test_a_mistake_gets_one_clear_sentence(name: str, params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RewardError) as caught:
        load_reward(name, params)
    assert str(caught.value).startswith(sentence)


def test_error_repeats_why_a_reward_module_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise RuntimeError('no licence')")
    with pytest.raises(RewardError, match="cannot be imported: RuntimeError: no licence"):
        load_reward(f"{tmp_path}/mine.py:f")


def test_registering_adds_a_name_and_refuses_duplicates_and_colons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    register_reward("length")(length)
    assert "length" in reward_names()
    with pytest.raises(RewardError, match="a reward named length is registered already"):
        register_reward("length")(graded)
    with pytest.raises(RewardError, match="must not hold a colon"):
        register_reward("a:b")(graded)


def test_preset_lists_its_rewards_and_an_unknown_preset_is_refused() -> None:
    assert [part.name for part in reward_preset("kernel_coder")] == ["format", "similarity"]
    with pytest.raises(RewardError, match="unknown reward preset kevn; known are kernel_coder, kevin, "):
        reward_preset("kevn")


async def waits(prompts: Any, completions: Any, *, solution: Any, length: float = 1.0) -> list[float]:
    return [length] * len(completions)


def test_a_reward_around_an_async_function_is_async_itself() -> None:
    reward = load_reward(f"{__name__}:waits", {"length": 2.0})
    assert inspect.iscoroutinefunction(reward.__call__), "TRL tells the two kinds apart by this"
    assert not inspect.iscoroutinefunction(load_reward("format").__call__)
    assert asyncio.run(reward(["?"], ["!"], solution=["x"], other=["y"])) == [2.0]
    with pytest.raises(RewardError, match="needs the column solution"):
        asyncio.run(reward(["?"], ["!"]))
