"""Which tasks are drawn, at which level and under which rewards: pure functions of earlier measurements."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_coder.rewards import RewardTable
from kernel_coder.rewards.errors import Failure
from kernel_coder.rollout import Rollout, Turn
from kernel_coder.run.checkpoint import list_checkpoints, load_state
from kernel_coder.tasks import Task, load_tasks
from kernel_coder.train.__main__ import main
from kernel_coder.train.config import StageConfig, TrainConfig, load_config
from kernel_coder.train.curriculum import (
    Progress,
    TrainState,
    after_answers,
    draw,
    draw_by_success,
    first_progress,
    next_level,
    next_stage,
)
from kernel_coder.train.groups import Answers, sample_with_spread, with_groups
from kernel_coder.train.prompts import Prompt
from tiny_run import flags, records, summary, timeless


class Asked(NamedTuple):
    task: Task


def task(name: str, level: int | None = None) -> Task:
    metadata = {} if level is None else {"level": level}
    return Task(id=name, source="test", reference="...", metadata=metadata)


def config(**changes: Any) -> TrainConfig:
    return load_config(None, [part for name, value in changes.items() for part in (f"--sampler.{name}", str(value))])


def test_tasks_with_medium_success_rates_are_drawn_most_often() -> None:
    rates = {"never": 0.0, "half": 0.5, "always": 1.0, "often": 0.9}
    counts: Counter[str] = Counter()
    for seed in range(4000):
        counts[list(rates)[draw_by_success(list(rates), rates, 1, 0.05, seed)[0]]] += 1
    weights = {name: p * (1 - p) + 0.05 for name, p in rates.items()}
    for name, weight in weights.items():
        assert counts[name] / 4000 == pytest.approx(weight / sum(weights.values()), abs=0.03)


@given(st.integers(1, 8), st.integers(1, 20), st.integers(0, 1000))
def test_no_task_is_drawn_again_before_every_task_was_drawn(size: int, count: int, seed: int) -> None:
    ids = [str(i) for i in range(size)]
    drawn = draw_by_success(ids, {}, count, 0.05, seed)
    assert len(drawn) == count
    counts = Counter(drawn)
    assert max(counts.values()) - min(counts.get(i, 0) for i in range(size)) <= 1
    assert drawn == draw_by_success(ids, {}, count, 0.05, seed)


def test_further_round_draws_tried_tasks_only_if_too_few_others_are_left() -> None:
    prompts = [Asked(task(name)) for name in "abcd"]
    for number in range(20):
        drawn = draw(prompts, Progress(), config(kind="success"), 2, (0, number), without={"a", "b"})
        assert {prompt.task.id for prompt in drawn} == {"c", "d"}
    drawn = draw(prompts, Progress(), config(kind="success"), 3, (0, 0), without={"a", "b"})
    assert len(drawn) == 3  # only two tasks are untried, so tried ones are drawn too


def test_epochs_continue_where_the_previous_draw_ended() -> None:
    prompts = [Asked(task(str(i))) for i in range(5)]
    progress, drawn = Progress(), []
    for count in (2, 1, 2, 5):
        drawn += [prompt.task.id for prompt in draw(prompts, progress, config(), count, (42, 0))]
        progress = replace(progress, drawn=len(drawn))
    assert sorted(drawn[:5]) == sorted(drawn[5:]) == list("01234")


def test_success_rates_are_moving_averages_over_scored_answers() -> None:
    sampler = config(decay=0.5).sampler
    progress = after_answers(Progress(), [task("a"), task("b")], [[True, False], []], sampler)
    assert progress.rates == {"a": 0.5}
    progress = after_answers(progress, [task("a")], [[True, True]], sampler)
    assert progress.rates == {"a": 0.75}


def test_next_level_starts_after_enough_right_answers_to_this_level() -> None:
    tasks = [task("free"), task("easy", 0), task("hard", 2)]
    settings = config(max_level=0, level_up_at=0.6, level_up_after=4, decay=0.0)
    progress = first_progress(tasks, settings.sampler)
    prompts = [Asked(one) for one in tasks]

    def drawn(progress: Progress) -> set[str]:
        return {prompt.task.id for prompt in draw(prompts, progress, settings, 6, (0, 0))}

    assert drawn(progress) == {"free", "easy"}
    progress = after_answers(progress, [tasks[1]], [[True, True]], settings.sampler)
    assert next_level(progress, tasks, settings.sampler) == progress  # too few answers
    progress = after_answers(progress, [tasks[0]], [[True] * 9], settings.sampler)
    assert next_level(progress, tasks, settings.sampler).level == 0  # answers to other levels do not count
    failed = after_answers(progress, [tasks[1]], [[True, False]], settings.sampler)
    assert next_level(failed, tasks, settings.sampler).level == 0  # too few of them right
    progress = next_level(
        after_answers(progress, [tasks[1]], [[True, True]], settings.sampler), tasks, settings.sampler
    )
    assert (progress.level, progress.level_answers) == (2, 0)  # level 1 has no task
    assert drawn(progress) == {"free", "easy", "hard"}
    assert next_level(replace(progress, level_rate=1.0, level_answers=99), tasks, settings.sampler).level == 2


def test_max_level_that_leaves_no_task_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sampler\.max_level = 1 leaves no task: the easiest has level 3"):
        first_progress([task("a", 3)], config(max_level=1).sampler)


def test_level_is_read_from_a_table(tmp_path: Path) -> None:
    module = "class M: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ..."
    row = {"entry_point": "M", "python_code": module, "level": 3, "family": "softmax", "thinking": "Rows."}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    assert load_tasks(tmp_path / "a.jsonl")[0].metadata == {"family": "softmax", "level": 3, "thinking": "Rows."}


STAGES = [
    StageConfig(weights={"format": 1.0}, until="rewards/format/mean", reaches=0.8, min_steps=2),
    StageConfig(weights={"format": 0.1, "similarity": 1.0}, until="rewards/similarity/mean", reaches=0.5),
    StageConfig(weights={"similarity": 1.0}),
]


def test_stages_follow_measured_rates_and_never_go_back() -> None:
    progress, seen = Progress(), []
    for value in (0.9, 0.9, 0.9, float("nan"), 0.2, 0.9, 0.0):
        progress = next_stage(progress, STAGES, {s.until: value for s in STAGES if s.until}, 0.5)
        seen.append(progress.stage)
    # Stage 0 lasts at least two steps, stage 1 ends after one step with 0.9, and the last stage never ends.
    assert seen == [0, 1, 2, 2, 2, 2, 2]
    slow = Progress(stage=1)
    for value, stage in ((0.2, 1), (0.6, 1), (0.7, 2)):
        slow = next_stage(slow, STAGES, {"rewards/similarity/mean": value}, 0.5)
        assert slow.stage == stage
    assert next_stage(Progress(), STAGES, {}, 0.5).stage == 0


def answers(rewards: list[list[float | None]], first: str = "a") -> Answers:
    """Groups with these rewards; a task's name and a turn's text identify the group."""
    names = [f"{first}{i}" for i in range(len(rewards))]
    flat = [value for row in rewards for value in row]
    turns = [
        Turn((), (), (), f"{name}/{k}", "stop")
        for name, row in zip(names, rewards, strict=True)
        for k in range(len(row))
    ]
    errors = [Failure(place, "broken") for place, value in enumerate(flat) if value is None]
    return Answers(
        tuple(Prompt(task(name), [], ()) for name in names),
        tuple(Rollout(task(turn.text.split("/")[0]), (turn,)) for turn in turns),
        RewardTable(flat, {"r": flat}, {"r": errors}, {"r": 1.0}),
    )


def texts(found: Answers) -> list[str]:
    return [rollout.turns[0].text for rollout in found.rollouts]


def test_groups_whose_scored_rewards_do_not_differ_are_flat() -> None:
    found = answers([[1.0, 1.0], [0.0, 1.0], [None, None], [None, 0.5], [0.0, 0.0]])
    assert found.flat() == [0, 2, 3, 4]
    assert found.successes(1.0) == [[True, True], [False, True], [], [False], [False, False]]


def test_replacing_a_group_also_replaces_its_prompt_rewards_and_errors() -> None:
    base = answers([[1.0, 1.0], [0.0, 1.0]])
    found = with_groups(base, [0], answers([[0.0, 0.0], [None, 0.25]], "b"), [1])
    assert [prompt.task.id for prompt in found.prompts] == ["b1", "a1"]
    assert texts(found) == ["b1/0", "b1/1", "a1/0", "a1/1"]
    assert found.table.total == found.table.parts["r"] == [None, 0.25, 0.0, 1.0]
    assert found.table.errors["r"] == [Failure(0, "broken")]


def test_flat_groups_are_replaced_until_none_is_left_or_the_rounds_are_over() -> None:
    asked: list[tuple[int, int]] = []
    base = answers([[1.0, 1.0], [0.0, 1.0], [0.5, 0.5]])
    rounds = [base, answers([[0.0, 0.0], [0.0, 2.0]], "b"), answers([[0.0, 3.0]], "c")]

    def answer(count: int, earlier: Sequence[Answers]) -> Answers:
        asked.append((count, len(earlier)))
        assert list(earlier) == rounds[: len(earlier)]
        return rounds[len(earlier)]

    found = sample_with_spread(answer, 3, 5)
    assert [prompt.task.id for prompt in found.answers.prompts] == ["b1", "a1", "c0"]
    assert asked == [(3, 0), (2, 1), (1, 2)]
    assert list(found.rounds) == rounds
    assert (found.replaced, found.num_tasks) == (2, 6)
    found = sample_with_spread(answer, 3, 1)
    assert [prompt.task.id for prompt in found.answers.prompts] == ["b1", "a1", "a2"]
    assert (len(found.rounds), found.replaced) == (2, 1)
    found = sample_with_spread(answer, 3, 0)
    assert (found.answers, found.rounds, found.replaced) == (base, (base,), 0)


# The reward `coarse` has only two values, so that some groups are flat and others are not.
FITTED: dict[str, Any] = {
    "run__max_steps": 6,
    "run__save_steps": 2,
    "rollout__num_generations": 2,
    "rollout__max_resampling_rounds": 2,
    "sampler__kind": "success",
    "sampler__success_reward": 0.5,
    "rewards": json.dumps([{"name": "test_progress:coarse"}, {"name": "tiny_run:letters", "weight": 0.5}]),
    "stages": json.dumps(
        [
            {"weights": {"coarse": 1.0}, "until": "rewards/letters/mean", "reaches": 0.01, "min_steps": 3},
            {"weights": {"coarse": 1.0, "letters": 1.0}},
        ]
    ),
}


def coarse(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
    return [float(len(completion[-1]["content"]) % 2) for completion in completions]


def test_run_with_sampler_stages_and_resampling_resumes_to_the_same_bits(tasks: Path, tmp_path: Path) -> None:
    constant = {**FITTED, "optim__lr_scheduler_type": "constant"}
    assert main(flags(tasks, tmp_path / "straight", **constant)) == 0
    straight = timeless(tmp_path / "straight")
    assert sum(record["resampling/replaced_groups"] for record in straight) > 0
    assert {record["stage"] for record in straight} == {0.0, 1.0}
    assert straight[-1]["sampler/tasks_tried"] == 6
    assert main(flags(tasks, tmp_path / "run", **{**constant, "run__max_steps": 4})) == 0
    state, _, _ = load_state(list_checkpoints(tmp_path / "run")[0], TrainState)
    assert state.progress.stage == 1
    assert 0 < len(state.progress.rates) <= 6
    assert asdict(state)["progress"]["rates"] == state.progress.rates
    assert main([*flags(tasks, tmp_path / "run", **constant), "--resume"]) == 0
    assert timeless(tmp_path / "run") == straight
    assert summary(tmp_path / "run")["weights_sha256"] == summary(tmp_path / "straight")["weights_sha256"]


def test_stage_sets_the_weights_of_the_rewards(tasks: Path, tmp_path: Path) -> None:
    assert main(flags(tasks, tmp_path / "run", **FITTED)) == 0
    for record in records(tmp_path / "run" / "metrics.jsonl"):
        # The field "stage" holds the stage of the next step.
        factor = 0.5 if record["step"] > 3 else 0.0
        parts = record["rewards/coarse/mean"] + factor * record["rewards/letters/mean"]
        assert record["reward"] == pytest.approx(parts)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"stages": json.dumps([{"weights": {"letters": 1}, "until": "reward"}, {"weights": {"x": 1}}])},
            "stages.0: every",
        ),
        (
            {"stages": json.dumps([{"weights": {"letters": 1}, "until": "reward", "reaches": 1}])},
            "the last has neither",
        ),
        ({"stages": json.dumps([{"weights": {"leters": 1}}])}, "stages.0.weights names leters, which is no reward"),
        ({"stages": json.dumps([{"wights": {"letters": 1}}])}, "did you mean stages.0.weights?"),
        ({"sampler__kind": "succes"}, "sampler.kind: input should be 'epochs' or 'success'"),
    ],
)
def test_mistakes_in_stages_and_sampler(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], sentence: str
) -> None:
    assert main(flags(tasks, tmp_path / "run", **changes)) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
