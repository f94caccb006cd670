"""The statements of the page about a run: right for healthy runs, and a warning for each way to mislead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from kernel_coder.report.charts import Chart, Line, moving_mean, shown, svg
from kernel_coder.report.findings import change, checks, held_out, share_interval, story
from kernel_coder.report.folder import Curve, Run, read_run
from run_folders import CONFIG, SFT_CONFIG, healthy, sft_metrics, step_metrics, write_run


def run_with(folder: Path, change: Callable[[int], Mapping[str, float]], steps: int = 40) -> Run:
    return read_run(healthy(folder, steps, change), 0)


def warnings(run: Run) -> set[str]:
    return {check.name for check in checks(run) if check.state == "warning"}


def test_a_healthy_run_has_no_warning(tmp_path: Path) -> None:
    run = run_with(tmp_path, lambda step: {})
    assert warnings(run) == set()
    text = " ".join(story(run))
    assert "On held-out tasks, answers that are correct: from 0% (0% to 1.88%) to 80% (73.9% to 85%)" in text
    assert "The 95% intervals do not overlap, so this is more than chance." in text
    assert "The training reward rose from" in text
    assert "half of this change had happened by step 21" in text


def test_report_on_conversations_begins_with_the_share_that_is_solved(tmp_path: Path) -> None:
    def turns(step: int) -> dict[str, float]:
        last = 0.4 + 0.01 * step
        return {} if step % 10 else {f"eval/correct_by_turn/{t}": last * t / 10 for t in (1, 2, 10)}

    run = run_with(tmp_path, turns)
    first = held_out(run)[0]
    assert first.label == "conversations solved within 10 turns"
    assert (first.first, first.last) == (pytest.approx(0.5), pytest.approx(0.8))
    assert "On held-out tasks, conversations solved within 10 turns: from 50%" in " ".join(story(run))
    assert "More than chance on held-out tasks" not in warnings(run)
    flat = run_with(tmp_path / "flat", lambda step: {} if step % 10 else {"eval/correct_by_turn/3": 0.5 + step / 1000})
    assert "More than chance on held-out tasks" in warnings(flat)  # although single answers became better
    told = next(check.sentence for check in checks(flat) if check.name == "More than chance on held-out tasks")
    assert told.startswith("Solved held-out conversations went from 51% to 54%")


def test_reward_and_correctness_are_compared_since_the_last_change_of_rewards(tmp_path: Path) -> None:
    def stages(step: int, rises: float = 0.0, at: int = 16) -> dict[str, float]:
        reward = 0.5 + float(step > at) + rises * step
        return {"stage": float(step >= at), "reward": reward, "judge/correct": 0.5, "judge/wrong_output": 0.5}

    def found(run: Run) -> tuple[str, str]:
        return next((one.state, one.sentence) for one in checks(run) if one.name == "Reward means correct answers")

    run = run_with(tmp_path / "a", stages)
    assert found(run) == (
        "fine",
        "The reward did not rise since the rewards changed after step 16 without the share of correct answers.",
    )
    assert "The rewards changed after step 16: values before and after cannot be compared." in story(run)
    assert found(run_with(tmp_path / "b", lambda step: stages(step, 0.01)))[0] == "warning"
    late = found(run_with(tmp_path / "c", lambda step: stages(step, 0.0, 35)))
    assert late == ("unknown", "There are too few steps since the rewards changed after step 35.")
    one = run_with(tmp_path / "d", lambda step: {"stage": 0.0})
    assert not any("The rewards changed" in sentence for sentence in story(one))


def test_low_entropy_from_the_start_has_its_own_warning(tmp_path: Path) -> None:
    run = run_with(tmp_path, lambda step: {"entropy": 0.004 - 0.00002 * step})
    told = next(check for check in checks(run) if check.name == "Still exploring")
    assert told.state == "warning"
    assert told.sentence.startswith("The entropy was low from the start (from 0.00")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("Still exploring", lambda step: {"entropy": 1.0 * 0.9**step}),
        ("Groups differ", lambda step: {"frac_reward_zero_std": 1.0}),
        ("Reward means correct answers", lambda step: {"judge/correct": 0.1, "judge/wrong_output": 0.9}),
        ("The judge works", lambda step: {"judge/harness_failed": 0.2}),
        ("No tricks", lambda step: {"judge/rejected": 0.01 * step}),
        ("Answers end", lambda step: {"completions/clipped_ratio": 0.9}),
        ("Updates happen", lambda step: {"skipped_updates": float(step % 3 == 0)}),
        ("More than chance on held-out tasks", lambda step: {} if step % 10 else {"eval/judge/correct": 0.01}),
    ],
)
def test_each_kind_of_misleading_run_has_its_warning(
    tmp_path: Path, name: str, change: Callable[[int], Mapping[str, float]]
) -> None:
    assert name in warnings(run_with(tmp_path, change))


def test_share_that_rose_only_in_training_gives_the_warning_about_memorising(tmp_path: Path) -> None:
    found = warnings(run_with(tmp_path, lambda step: {} if step % 10 else {"eval/judge/correct": 0.0}))
    assert {"Not memorised", "More than chance on held-out tasks"} <= found


def test_few_steps_and_few_held_out_tasks_give_warnings(tmp_path: Path) -> None:
    config = {**CONFIG, "eval": {"num_tasks": 16}}
    metrics = [{"step": 0, "eval/judge/correct": 0.0}, *(step_metrics(step) for step in range(1, 6))]
    run = read_run(write_run(tmp_path, metrics, config=config), 0)
    assert {"Enough steps", "Enough held-out tasks"} <= warnings(run)
    (few,) = [check.sentence for check in checks(run) if check.name == "Enough held-out tasks"]
    assert "only 16 held-out tasks" in few
    assert "24 percentage points" in few
    assert "too few values for a trend" in " ".join(story(run))


def test_run_without_judge_and_held_out_tasks_gives_warnings(tmp_path: Path) -> None:
    kept = ("step", "reward", "entropy", "loss")
    metrics = [{k: v for k, v in step_metrics(step).items() if k in kept} for step in range(1, 41)]
    found = warnings(read_run(write_run(tmp_path, metrics), 0))
    assert {"Answers are run", "Enough held-out tasks"} <= found


def test_story_begins_with_the_statement_that_no_answer_was_correct(tmp_path: Path) -> None:
    run = run_with(tmp_path, lambda step: {"judge/correct": 0.0} | ({} if step % 10 else {"eval/judge/correct": 0.0}))
    assert story(run)[0].startswith("No answer was correct")


def test_supervised_run_that_memorises_gives_a_warning(tmp_path: Path) -> None:
    worse = {10: 2.0, 20: 1.0, 30: 1.5, 40: 2.0}
    lines = [sft_metrics(step, **({"eval/loss": worse[step]} if step in worse else {})) for step in range(1, 41)]
    run = read_run(write_run(tmp_path, lines, config=SFT_CONFIG), 0)
    (said,) = [check.sentence for check in checks(run) if check.name == "Not memorised"]
    assert "lowest at step 20 (1)" in said


def test_noise_is_not_reported_as_a_change() -> None:
    noise = [((7919 * step) % 101) / 101 for step in range(40)]
    found = change(Curve("x", tuple(range(40)), tuple(noise)))
    assert found is not None
    assert not found.rose
    assert not found.fell
    assert change(Curve("x", (1, 2), (0.0, 1.0))) is None


def test_half_of_a_jump_is_at_the_step_of_the_jump() -> None:
    values = tuple(float(step >= 25) + 0.001 * (step % 2) for step in range(40))
    found = change(Curve("x", tuple(range(40)), values))
    assert found is not None
    assert found.rose
    assert abs(found.half_at - 25) <= 2


def test_share_interval_contains_the_share_and_narrows_with_more_answers() -> None:
    for of in (1, 16, 1000):
        for share in (0.0, 0.3, 1.0):
            low, high = share_interval(share, of)
            assert 0 <= low <= share <= high <= 1
    assert share_interval(0.0, 16)[1] > share_interval(0.0, 1000)[1] > 0


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [1e-12, 2e-12], [-1e9, 1e9], [1.0] * 1000, [0.0, 1e300]])
@pytest.mark.parametrize("unit", ["number", "share", "seconds"])
def test_any_values_can_be_drawn(values: list[float], unit: str) -> None:
    line = Line("x", range(len(values)), values)
    picture = str(svg(Chart("t", "c", (line,), unit)))  # type: ignore[arg-type]
    assert picture.startswith("<svg")
    assert "nan" not in picture
    assert "inf" not in picture


def test_chart_without_lines_is_empty() -> None:
    assert svg(Chart("t", "c", ())) == ""


def test_moving_mean_keeps_the_length_and_constant_values() -> None:
    assert moving_mean([2.0] * 50) == pytest.approx([2.0] * 50)
    assert shown(0.5, "share") == "50%"


def test_supervised_run_without_judge_says_that_loss_does_not_prove_working_kernels(tmp_path: Path) -> None:
    lines = [{k: v for k, v in sft_metrics(step).items() if "judge" not in k} for step in range(1, 41)]
    run = read_run(write_run(tmp_path, lines, config=SFT_CONFIG), 0)
    (said,) = [check.sentence for check in checks(run) if check.name == "Answers are run"]
    assert "not that its kernels work" in said
    assert warnings(run) == set()
