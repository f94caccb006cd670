"""What a run says it has taught: rates, intervals, gain and example come from its own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kernel_coder.train.learning import Learning, learning, sparkline
from kernel_coder.train.logs import METRICS, SAMPLES

CODE = "<thinking>\n</thinking>\n<answer>\n```python\nclass ModelNew: ...\n```\n</answer>"


def line(step: int, task: str, outcome: str, number: int = 0, kind: str = "eval/") -> dict[str, Any]:
    return {
        "step": step,
        "id": f"{kind}{step}/{number}/{task}/0",
        "task": task,
        "prompt": [{"role": "user", "content": f"the module of {task}"}],
        "completion": CODE,
        "verdict": {"outcome": outcome},
    }


def write(folder: Path, records: list[dict[str, Any]], lines: list[dict[str, Any]]) -> Path:
    for name, rows in ((METRICS, records), (SAMPLES, lines)):
        (folder / name).write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    return folder


RECORDS: list[dict[str, Any]] = [
    {"step": 0, "time/eval_s": 2.0},
    {"step": 1, "time/step_s": 3.0, "judge/correct": 0.25},
    {"step": 2, "time/step_s": 4.0, "judge/correct": 0.75},
]


def test_rates_before_and_after_are_those_of_the_judged_answers(tmp_path: Path) -> None:
    before = [line(0, f"t{i}", "correct" if i < 2 else "wrong_output") for i in range(8)]
    after = [line(2, f"t{i}", "correct" if i < 6 else "crashed") for i in range(8)]
    of_training = [line(2, "t7", "correct", kind="")]
    found = learning(write(tmp_path, RECORDS, before + of_training + after), 2)
    facts = found.facts()
    assert (facts["heldout_correct_before"], facts["heldout_correct_after"]) == (0.25, 0.75)
    assert facts["heldout_correct_gain"] == 0.5
    for name in ("before", "after", "gain"):
        low, high = (facts[f"heldout_correct_{name}_{end}"] for end in ("low", "high"))
        assert 0 <= low < facts[f"heldout_correct_{name}"] < high <= 1
    assert facts["seconds_train"] == 9.0
    assert found.curve == (0.25, 0.75)
    assert found.example["task"] in ("t2", "t3", "t4", "t5")


def test_what_the_harness_failed_on_is_left_out(tmp_path: Path) -> None:
    lines = [line(0, "a", "correct"), line(0, "b", "harness_failed"), line(2, "a", "correct"), line(2, "b", "timeout")]
    facts = learning(write(tmp_path, RECORDS, lines), 2).facts()
    assert (facts["heldout_correct_before"], facts["heldout_correct_after"]) == (1.0, 0.5)
    assert facts["heldout_correct_gain"] == 0.0


def test_words_name_the_rates_the_example_and_the_files(tmp_path: Path) -> None:
    lines = [line(0, "a", "crashed"), line(0, "b", "crashed"), line(2, "a", "correct"), line(2, "b", "crashed")]
    text = "\n".join(learning(write(tmp_path, RECORDS, lines), 2).words(tmp_path))
    for part in ("0.0%", "50.0%", "+50.0%", "the module of a", "class ModelNew: ...", str(tmp_path / SAMPLES), "▃▇"):
        assert part in text


def test_a_run_without_judged_held_out_answers_says_nothing(tmp_path: Path) -> None:
    found = learning(write(tmp_path, RECORDS, []), 2)
    assert list(found.words(tmp_path)) == []
    assert found.facts()["heldout_correct_before"] is None
    assert list(Learning().facts()) == list(found.facts())


@pytest.mark.parametrize("count", [1, 60, 61, 1000])
def test_a_curve_has_at_most_sixty_bars(count: int) -> None:
    assert len(sparkline([0.5] * count)) == min(count, 60)
