"""What a run reports about learning: rates, intervals, gain and example are computed from the files of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kernel_coder.report.learned import Learning, learning, sparkline
from kernel_coder.run.logs import METRICS, SAMPLES

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


def test_rates_before_and_after_come_from_the_judged_held_out_answers(tmp_path: Path) -> None:
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


def test_answers_with_outcome_harness_failed_are_left_out(tmp_path: Path) -> None:
    lines = [line(0, "a", "correct"), line(0, "b", "harness_failed"), line(2, "a", "correct"), line(2, "b", "timeout")]
    facts = learning(write(tmp_path, RECORDS, lines), 2).facts()
    assert (facts["heldout_correct_before"], facts["heldout_correct_after"]) == (1.0, 0.5)
    assert facts["heldout_correct_gain"] == 0.0


def test_report_text_names_the_rates_the_example_and_the_files(tmp_path: Path) -> None:
    lines = [line(0, "a", "crashed"), line(0, "b", "crashed"), line(2, "a", "correct"), line(2, "b", "crashed")]
    text = "\n".join(learning(write(tmp_path, RECORDS, lines), 2).words(tmp_path))
    for part in ("0.0%", "50.0%", "+50.0%", "the module of a", "class ModelNew: ...", str(tmp_path / SAMPLES), "▃▇"):
        assert part in text


def test_run_without_judged_held_out_answers_reports_nothing(tmp_path: Path) -> None:
    found = learning(write(tmp_path, RECORDS, []), 2)
    assert list(found.words(tmp_path)) == []
    assert found.facts()["heldout_correct_before"] is None
    assert list(Learning().facts()) == list(found.facts())


def talk(step: int, task: str, *outcomes: str) -> dict[str, Any]:
    turns = [{"completion": CODE, "verdict": {"outcome": outcome}} for outcome in outcomes]
    return {**line(step, task, outcomes[-1]), **({"turns": turns} if len(turns) > 1 else {})}


def test_conversations_are_counted_by_the_turn_that_solves_them(tmp_path: Path) -> None:
    before = [talk(0, name, "crashed", "timeout", "crashed") for name in "abcd"]
    after = [
        talk(2, "a", "correct"),
        talk(2, "b", "wrong_output", "correct"),
        talk(2, "c", "wrong_output", "correct", "crashed"),  # solved in turn 2; the later failure does not count
        talk(2, "d", "crashed", "crashed", "crashed"),
        talk(2, "e", "harness_failed"),
        talk(2, "f", "crashed", "harness_failed"),
    ]
    found = learning(write(tmp_path, RECORDS, before + after), 2, turns=3)
    facts = found.facts(3)
    assert [facts[f"heldout_correct_by_turn_{t}_before"] for t in (1, 2, 3)] == [0.0, 0.0, 0.0]
    assert [facts[f"heldout_correct_by_turn_{t}_after"] for t in (1, 2, 3)] == [0.2, 0.6, 0.6]
    assert facts["heldout_correct_after"] == 0.6
    assert facts["heldout_correct_gain"] == 0.75  # over the four tasks of both evaluations
    assert facts["heldout_gain_of_turns"] == pytest.approx(0.4)
    assert facts["heldout_gain_of_turns_low"] < 0.4 < facts["heldout_gain_of_turns_high"]
    assert list(Learning().facts(3)) == list(facts)
    assert not any(name.startswith(("heldout_correct_by_turn", "heldout_gain")) for name in found.facts())
    text = "\n".join(found.words(tmp_path))
    assert "conversations that are solved, before: 0.0%" in text
    assert "within 1 to 3 turns, after: 20.0%, 60.0%, 60.0%" in text
    assert "the last turn over the first, after: +40.0%" in text


@pytest.mark.parametrize("count", [1, 60, 61, 1000])
def test_a_curve_has_at_most_sixty_bars(count: int) -> None:
    assert len(sparkline([0.5] * count)) == min(count, 60)
