"""The page: every part of a run, in every state of a run, and no effect of hostile text from a model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from html_page import HOSTILE, Page, check_harmless
from kernel_coder.report.folder import read_run
from kernel_coder.report.page import html
from run_folders import CONFIG, SFT_CONFIG, healthy, sample, sft_metrics, step_metrics, write_run


def page_of(folder: Path, samples: int = 50) -> str:
    return html(read_run(folder, samples))


def text_of(page: str) -> str:
    return " ".join(" ".join(Page(page).text).split())


def test_a_finished_run_has_every_section(tmp_path: Path) -> None:
    page = page_of(healthy(tmp_path))
    check_harmless(page)
    text = text_of(page)
    for title in (
        "What it learned, and when",
        "Can it be trusted?",
        "Held-out tasks",
        "Reward",
        "Part: compiles",
        "Part: correct",
        "Verdicts in training",
        "Entropy",
        "Gradient norm",
        "Distance from the start (KL)",
        "Learning rate",
        "Length of answers",
        "Shares of a step",
        "Its answers",
        "Settings",
    ):
        assert title in text
    assert "Finished at step 40 of 40." in text
    assert "300 and 200 held out" in text
    assert "idle and other 10.0% 1" in text  # 1 of 10 seconds
    assert page.count("<svg") > 15


def test_page_loads_no_other_file(tmp_path: Path) -> None:
    page = page_of(healthy(tmp_path))
    assert not re.search(r"https?:|url\(|@import|src=", page)


def test_hostile_text_is_shown_as_text_everywhere(tmp_path: Path) -> None:
    verdict = {"outcome": HOSTILE, "reason": HOSTILE, "feedback": HOSTILE, HOSTILE: HOSTILE}
    prompt = [{"role": HOSTILE, "content": HOSTILE}]
    everywhere: dict[str, Any] = {"task": HOSTILE, "id": HOSTILE, "prompt": prompt, "finish_reason": HOSTILE}
    turns = [{"completion": HOSTILE, "reply": prompt, "verdict": verdict}] * 2
    code = f"<thinking>{HOSTILE}</thinking><answer>\n```python\n{HOSTILE}\n```\n</answer>"
    samples = [
        sample(1, 0, completion=HOSTILE, verdict=verdict, rewards={HOSTILE: 1.0}, **everywhere),
        sample(1, 1, completion=code, turns=turns, **everywhere),
        sample(1, 2, outcome="rejected", verdict={"outcome": "rejected", "reason": HOSTILE}),
    ]
    config = {**CONFIG, "model": {"name_or_path": HOSTILE}, "rewards": [{"name": HOSTILE}]}
    metrics = [step_metrics(step, **{f"rewards/{HOSTILE}/mean": 1.0, HOSTILE: 2.0}) for step in (1, 2)]
    page = page_of(write_run(tmp_path, metrics, samples, config=config, summary={"steps": 2, "status": HOSTILE}))
    parsed = check_harmless(page)
    text = "".join(parsed.text)
    assert text.count("<script>alert(1)</script>") > 20
    assert "49" not in re.findall(r"\{\{.*?\}\}", text)


@pytest.mark.parametrize(
    "text",
    ["</script>", "<img onerror=alert(1)>", "a\x00b", "\ud800 \udfff", "<!-- <script> -->", "]]>", "left \u202e right"],
)
def test_odd_characters_are_shown_or_replaced(tmp_path: Path, text: str) -> None:
    completion = f"<thinking>{text}</thinking><answer>\n```\nclass ModelNew: '{text}'\n```\n</answer>"
    page = page_of(write_run(tmp_path, [step_metrics(1)], [sample(1, completion=completion, task=text, id=text)]))
    parsed = check_harmless(page)
    page.encode("utf-8")
    wanted = re.sub(r"[\x00\u202e\ud800-\udfff]", "\ufffd", text)
    assert f"class ModelNew: '{wanted}'" in "".join(parsed.text)


def test_unfinished_run_is_shown_up_to_its_last_complete_line(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [step_metrics(step) for step in range(1, 13)], [sample(12)])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "rew')
    with (folder / "samples.jsonl").open("a") as file:
        file.write('{"step": 13, "completion": "half of an ans')
    text = text_of(page_of(folder))
    assert "Running: step 12 of 40" in text
    assert "could not be read" not in text
    assert "half of an ans" not in text


def test_a_run_without_a_finished_step_says_so(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path, []))
    check_harmless(page)
    assert "No step is finished yet" in text_of(page)


def test_page_is_made_despite_missing_and_broken_files(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [step_metrics(1), step_metrics(2)], config=None)
    (folder / "samples.jsonl").unlink()
    (folder / "config.yaml").write_text("{ not: [yaml")
    (folder / "summary.json").write_text('{"status": "fin')
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('not json\n[1]\n{"step": "3"}\n{"no": 1}\n' + "[" * 100_000 + "\n")
        file.write(json.dumps(step_metrics(3)) + "\n")
    run = read_run(folder, 10)
    assert (run.last_step, run.unreadable) == (3, 5)
    assert "5 lines of the run's files could not be read" in text_of(html(run))


def test_repeated_steps_replace_the_old_ones_and_all_later_steps(tmp_path: Path) -> None:
    first = [step_metrics(step, reward=1.0) for step in range(1, 9)]
    again = [step_metrics(step, reward=2.0) for step in range(5, 7)]
    answers = [sample(step, completion="old") for step in range(1, 9)]
    answers += [sample(step, completion="new") for step in range(5, 7)]
    run = read_run(write_run(tmp_path, first + again, answers), 100)
    reward = run.curve("reward")
    assert reward is not None
    assert reward.steps == (1, 2, 3, 4, 5, 6)
    assert reward.values == (1, 1, 1, 1, 2, 2)
    assert [record["completion"] for record in run.samples.records] == ["old"] * 4 + ["new"] * 2
    assert run.samples.total == 6
    assert run.samples.outcomes_in_all() == {"wrong_output": 6}
    assert sum(map(sum, (by_step.values() for by_step in run.samples.reasons.values()))) == 6


def test_summary_older_than_the_metrics_is_ignored(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [step_metrics(step) for step in (1, 2, 3)], summary={"status": "stopped", "steps": 2})
    assert read_run(folder, 0).status == "running"
    (folder / "summary.json").write_text('{"status": "stopped", "steps": 3}')
    assert read_run(folder, 0).status == "stopped"
    (folder / "tensorboard").mkdir()
    for number in range(2):
        (folder / f"tensorboard/events.out.tfevents.{number}").touch()
    assert "It was started 2 times" in text_of(page_of(folder))


def test_page_of_a_supervised_run_describes_supervised_training(tmp_path: Path) -> None:
    lines = [sft_metrics(step) for step in range(41)]
    answer = {**sample(40, outcome=None), "id": "eval/40/task0/0", "outcome": "correct", "reason": None}
    for name in ("reward", "rewards", "advantage"):
        del answer[name]
    summary = {"status": "finished", "steps": 40, "examples": 12345, "held_out_tasks": 200}
    page = page_of(write_run(tmp_path, lines, [answer], config=SFT_CONFIG, summary=summary))
    check_harmless(page)
    text = text_of(page)
    assert "trained to imitate known answers" in text
    assert "12,345 such pairs" in text
    assert "Held-out loss" in text
    assert "40, held out: task0 correct" in text
    assert "95% intervals for 60 independent answers" in text
    assert "What it was rewarded for" not in text


def test_number_and_length_of_samples_are_limited_and_the_page_says_so(tmp_path: Path) -> None:
    long = "x = 1\n" * 10_000
    samples = [sample(step, k, completion=f"{step} {k} {long}") for step in range(1, 13) for k in range(10)]
    folder = write_run(tmp_path, [step_metrics(step) for step in range(1, 13)], samples)
    page = page_of(folder, 20)
    assert len(page) < 1_500_000
    assert page.count('<details class="sample"') == 20
    assert "holds all 120 answers; this page shows 20" in text_of(page)
    assert "more characters]" in page
    assert '<details class="sample"' not in page_of(folder, 0)


def test_a_page_of_huge_texts_leaves_samples_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel_coder.report.page.MAX_TEXTS", 60_000)
    folder = write_run(tmp_path, [step_metrics(1)], [sample(1, k, completion=f"{k} " * 9000) for k in range(10)])
    page = page_of(folder)
    count = page.count('<details class="sample"')
    assert 0 < count < 5
    assert f"{10 - count} more were left out" in text_of(page)


def test_a_long_run_is_drawn_with_few_points(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [step_metrics(step) for step in range(1, 5001)])
    page = page_of(folder)
    assert "each drawn point is the mean of up to 13 values." in page
    assert len(page) < 2_500_000


def test_thinking_code_and_difference_are_shown_separately(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path, [step_metrics(1)], [sample(1)]))
    text = "".join(Page(page).text)
    assert re.search(r"Thinking\s*Hm\.", text)
    assert "Difference from the module in the prompt" in text
    assert '<span class="minus">-class Model:</span>' in page
    assert '<span class="plus">+class ModelNew:</span>' in page
    assert "9 times, in samples.jsonl" in text
    assert "The whole answer" not in text  # the form of the answer is right


def test_answer_is_compared_with_the_known_solution_from_the_data(tmp_path: Path) -> None:
    row = {"entry_point": "A", "uuid": "7", "triton_code": "class ANew:\n    z = 3"}
    row["python_code"] = "class A: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ..."
    (tmp_path / "pairs.jsonl").write_text(json.dumps(row) + "\n")
    config = {**CONFIG, "data": {"path": str(tmp_path / "pairs.jsonl"), "format": "kernelbook"}}
    page = page_of(write_run(tmp_path / "run", [step_metrics(1)], [sample(1, task="A/7")], config=config))
    assert "Difference from the known solution" in page
    assert '<span class="minus">-    z = 3</span>' in page


def test_a_conversation_is_shown_turn_by_turn(tmp_path: Path) -> None:
    told = [{"role": "user", "content": "It does not compile."}]
    first, second = sample(1, outcome="compile_error"), sample(1, outcome="correct")
    turns = [{"reply": [], **first}, {"reply": told, **second}]
    talk = [*PROMPT_AND, {"role": "assistant", "content": "once"}, *told, {"role": "assistant", "content": "twice"}]
    samples = [{**second, "turns": turns}, {**sample(1, 1), "conversation": talk}]
    text = text_of(page_of(write_run(tmp_path, [step_metrics(1)], samples)))
    assert text.count("Conversation, 2 turns") == 2
    assert "Answer 1: compile error reward 0.25" in text
    assert "It does not compile." in text
    assert "compile error 1 1 1" in text  # earlier turns are counted, too
    assert "Answer 2: correct reward 1" in text
    assert "once user It does not compile. Answer 2 twice" in text


PROMPT_AND = [{"role": "user", "content": "Rewrite it."}]


def test_rejections_are_counted_by_reason_without_numbers_and_names(tmp_path: Path) -> None:
    def rejected(step: int, number: int, reason: str) -> dict[str, Any]:
        return sample(step, number, verdict={"outcome": "rejected", "reason": reason})

    samples = [
        rejected(step, 1, f"a call takes {step} ms, and writing its outputs alone takes 2 ms") for step in (1, 2, 5)
    ]
    samples += [rejected(9, 2, "no kernel of its own: 'f' does nothing")]
    page = page_of(
        write_run(tmp_path, [step_metrics(step) for step in range(1, 10)], sorted(samples, key=lambda s: s["step"]))
    )
    text = text_of(page)
    assert "a call takes … ms, and writing its outputs alone takes … ms 3 1 5" in text
    assert "no kernel of its own: … does nothing 1 9 9" in text
    assert "Rejections by kind" in text
    assert "Shown as an example of rejected: no kernel of its own" in text


def test_script_and_links_refer_to_existing_elements(tmp_path: Path) -> None:
    page = page_of(healthy(tmp_path))
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    for opening, closing in ("{}", "()", "[]"):
        assert script.count(opening) == script.count(closing)
    ids = set(re.findall(r'<[^>]* id="([\w-]+)"', page))
    wanted = set(re.findall(r'(?:getElementById|control)\("(\w+)"\)', script))
    assert wanted <= ids
    targets = set(re.findall(r'href="#(\w+)"', page))
    assert targets <= ids
    assert {f"prompt-{number}" for number in re.findall(r'data-prompt="(\d+)"', page)} <= ids


def test_every_chart_holds_the_values_that_the_pointer_shows(tmp_path: Path) -> None:
    page = page_of(healthy(tmp_path))
    charts = [json.loads(value) for name, value in Page(page).attributes if name == "data-chart" and value]
    assert len(charts) == page.count("<svg")
    for chart in charts:
        for line in chart["lines"]:
            assert len(line["steps"]) == len(line["values"]) > 0
            assert chart["x"][0] <= min(line["steps"]) <= max(line["steps"]) <= chart["x"][1]
    assert not re.search(r'd="[^"]*(nan|inf)', page)
