"""The page and the table: any text in an answer is shown as text and never executed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from html_page import HOSTILE, Page, check_harmless
from kernel_coder.evaluate.answers import Answer, Request
from kernel_coder.evaluate.config import EvaluateConfig
from kernel_coder.evaluate.report import Results, html, notes, table
from kernel_coder.evaluate.store import Sample
from kernel_coder.judge import Verdict, example_verdict
from kernel_coder.prompts import Message
from kernel_coder.tasks import Task


def results(verdicts: list[list[Verdict]], text: str = "hello", **changes: object) -> Results:
    config = EvaluateConfig.model_validate({"model": "m", "samples": len(verdicts[0]), "device": "cpu", **changes})
    tasks = [
        Task(id=f"level{1 + i % 2}/{i}_x", source="test", reference="...", metadata={"level": 1 + i % 2})
        for i in range(len(verdicts))
    ]
    samples, found = {}, {}
    for task, row in zip(tasks, verdicts, strict=True):
        for number, verdict in enumerate(row):
            request = Request(task, number, (Message(role="user", content=text),), seed=1)
            samples[task.id, number] = Sample.of(request, Answer(text, "stop", 1, 1))
            found[task.id, number] = verdict
    return Results(config, tasks, samples, found)


def test_hostile_text_is_shown_as_text_everywhere() -> None:
    verdict = example_verdict("wrong_output", reason=HOSTILE, feedback=HOSTILE, device=HOSTILE, task=HOSTILE)
    page = html(results([[verdict]], text=HOSTILE, model=HOSTILE, tasks=HOSTILE))
    parsed = check_harmless(page)
    assert "".join(parsed.text).count("<script>alert(1)</script>") >= 5
    assert "49" not in re.findall(r"\{\{.*?\}\}", "".join(parsed.text))


def test_page_loads_no_other_file_and_runs_only_its_own_script() -> None:
    page = html(results([[example_verdict("correct", speedup=2.0)]]))
    parsed = check_harmless(page)
    assert not [name for name, _ in parsed.attributes if name in ("src", "href", "action")]
    assert not re.search(r"https?:|url\(|@import", page)


def test_page_shows_the_number_of_measured_times_but_not_the_times() -> None:
    verdict = example_verdict("correct", speedup=2.0, runtimes_ms=(0.125,) * 3, reference_runtimes_ms=(0.25,) * 3)
    text = "".join(Page(html(results([[verdict]]))).text)
    assert text.count("3 times, in verdicts.jsonl") == 2
    assert "0.125" not in text


def test_note_says_that_a_baseline_was_not_timed() -> None:
    found = results([[example_verdict("correct", speedup=2.0)]], judge={"compile_baseline": True})
    assert notes(found) == ["Speedups over torch.compile are unknown: not every reference was timed under it."]


def test_the_page_shows_the_best_samples_and_says_how_many_there_are() -> None:
    row = [example_verdict("compile_error"), example_verdict("wrong_output"), example_verdict("harness_failed")]
    row += [example_verdict("correct", speedup=s) for s in (1.5, 3.0)]
    page = html(results([row], report_samples=3))
    assert re.findall(r"Sample (\d):", page) == ["4", "3", "1"]
    assert "The 3 best of 5 samples are shown" in page


@pytest.mark.parametrize("number", [1, 3])
def test_every_row_of_a_table_has_as_many_cells_as_its_header(number: int) -> None:
    rows = [[example_verdict("correct", speedup=2.0, reference_compile_ms=1.0)] * 6 for _ in range(number)]
    lines = table(results(rows, judge={"compile_baseline": True})).splitlines()
    width = 0
    for line in lines:
        cells = line.count("|")
        width = cells if width == 0 else width
        assert cells in (0, width)
        width = 0 if cells == 0 else width
    text = "\n".join(lines)
    assert "| fast_1, by eager | 100.0%" in text
    assert "| fast_1, by torch.compile | 0.0%" in text
    assert ("level 2" in text) == (number > 1)


def test_a_metric_that_was_not_measured_has_no_row_and_a_note_says_why() -> None:
    found = results([[example_verdict("correct", interpreted=True)], [example_verdict("harness_failed")]])
    assert "| fast_1 |" not in table(found)
    assert "| fast_0 | 100.0% | – | 1 sample |" in table(found)
    assert "best speedup" not in html(found)
    text = " ".join(notes(found))
    assert "kernels were run by an interpreter" in text
    assert "failed on 1 of 2 answers" in text


def test_answers_that_all_fail_in_the_same_way_get_a_hint() -> None:
    def note(outcomes: list[str], finish_reason: str = "stop") -> str:
        found = results([[example_verdict(outcome) for outcome in outcomes]])
        cut = {key: replace(sample, finish_reason=finish_reason) for key, sample in found.all_samples.items()}
        return " ".join(notes(replace(found, all_samples=cut)))

    assert "All 2 answers failed with format_error" in note(["format_error"] * 2)
    assert "--prompt-template that the model was trained with (bare, kernelbench, nano or a file)" in note(
        ["format_error"] * 2
    )
    assert "try a larger --max-new-tokens" in note(["format_error"] * 2, "length")
    assert "--turns 2" in note(["wrong_output"] * 3)
    for outcomes in (["wrong_output", "timeout"], ["correct"] * 2, ["wrong_output"]):
        assert "failed" not in note(outcomes)


def test_the_page_names_a_generated_task_by_its_operations() -> None:
    found = results([[example_verdict("correct", speedup=2.0)]])
    task = replace(found.tasks[0], metadata={"composition": ["sigmoid", "scale"]})
    page = html(replace(found, tasks=[task]))
    assert '<button type="button" aria-expanded="false">sigmoid + scale</button>' in page
    assert f"Task {task.id}" in page


def test_script_has_balanced_brackets_and_uses_every_id_of_the_page(tmp_path: Path) -> None:
    page = html(results([[example_verdict("correct", speedup=2.0)]]))
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    for opening, closing in ("{}", "()", "[]"):
        assert script.count(opening) == script.count(closing)
    ids = set(re.findall(r'getElementById\("(\w+)"\)', script))
    assert ids == set(re.findall(r'<[^>]* id="(\w+)"', page))
