"""The benchmarks of whole commands: trials that run in parallel, and the rows of their results."""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (BENCHMARKS, BENCHMARKS / "training"):
        monkeypatch.syspath_prepend(str(folder))


def python(folder: Path, name: str, code: str) -> Any:
    from trials import Trial

    return Trial(name, [sys.executable, "-c", code], folder / name)


def test_trials_run_on_their_own_cores_and_failed_trials_give_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from trials import run_all

    cores = "import os, pathlib, time; time.sleep(0.5); print(*sorted(os.sched_getaffinity(0)))"
    trials = [python(tmp_path, name, cores) for name in "abc"]
    trials.append(python(tmp_path, "broken", "raise SystemExit('no such thing')"))
    before = os.sched_getaffinity(0)
    at_once = len(before)
    assert sorted(trial.name for trial, _ in run_all(trials, parallel=at_once, cores=1)) == ["a", "b", "c"]
    assert os.sched_getaffinity(0) == before
    used = [(tmp_path / name / "log").read_text().split() for name in "abc"]
    assert all(len(one) == 1 and int(one[0]) in before for one in used)
    assert len({one[0] for one in used[:at_once]}) == min(at_once, 3)
    assert "broken failed with exit code 1:\nno such thing" in capsys.readouterr().out


@pytest.mark.long
def test_trial_that_runs_at_the_deadline_is_killed_with_its_children(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from trials import run_all

    child = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid)"
    trials = [
        python(tmp_path, "quick", "pass"),
        python(tmp_path, "slow", f"{child}; sys.stdout.flush(); import time; time.sleep(60)"),
        python(tmp_path, "later", "pass"),
    ]
    began = time.monotonic()
    ended = [trial.name for trial, _ in run_all(trials, parallel=1, cores=1, deadline=began + 4)]
    assert ended == ["quick"]
    assert time.monotonic() - began < 15
    pid = int((tmp_path / "slow" / "log").read_text())
    for _ in range(50):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            break
        if state == "Z":
            break
        time.sleep(0.1)
    else:
        pytest.fail("the child lives on")
    out = capsys.readouterr().out
    assert "slow did not come to its end" in out
    assert "later did not come to its end" in out


def test_rows_with_other_columns_go_into_another_file(tmp_path: Path) -> None:
    from trials import append

    path = tmp_path / "new" / "rows.csv"
    append(path, {"a": 1, "b": 0.123456})
    append(path, {"a": 2, "b": None})
    assert path.read_text().splitlines() == ["a,b", "1,0.1235", "2,"]
    append(path, {"a": 3, "c": 1})
    append(path, {"a": 4, "c": 2})
    assert path.read_text().splitlines() == ["a,b", "1,0.1235", "2,"]
    assert path.with_name("rows-2.csv").read_text().splitlines() == ["a,c", "3,1", "4,2"]


def talk(task: str, *outcomes: str) -> dict[str, Any]:
    turns = [{"verdict": {"outcome": outcome}} for outcome in outcomes]
    return {"task": task, **(turns[0] if len(turns) == 1 else {"turns": turns, **turns[-1]})}


def test_conversations_are_compared_with_the_same_number_of_first_answers() -> None:
    from bench_turns import beside_samples

    lines = [talk("a", "correct"), talk("a", "crashed", "correct"), talk("a", "crashed", "crashed", "crashed")]
    lines += [talk("b", "crashed", "crashed", "correct")] * 3
    lines += [talk("c", "correct"), talk("c", "harness_failed"), talk("c", "correct")]  # two first answers
    row = beside_samples(lines, 3, "after")
    assert row["samples_after"] == 0.5  # one of the three first answers to a is correct, none of those to b
    assert row["turns_over_samples_after"] == pytest.approx(((2 / 3 - 1) + (1 - 0)) / 2)
    assert row["turns_over_samples_after_low"] < row["turns_over_samples_after"] < row["turns_over_samples_after_high"]
    assert set(beside_samples([], 3, "after").values()) == {None}


def test_trloo_is_compared_with_grpo_seed_by_seed() -> None:
    from bench_turns import conclusions

    def row(variant: str, seed: int, first: float, last: float) -> dict[str, Any]:
        rates = {f"correct_by_turn_{t}_{moment}": last for t in (1, 2) for moment in ("before", "after")}
        rates |= {"correct_by_turn_1_after": first, "gain_of_turns": last - first}
        more = {"samples_after": 0.5, "turns_over_samples_after": last - 0.5}
        return {"variant": variant, "seed": seed, "turns": 2, **rates, **more}

    rows = [row("trloo", s, 0.4, 0.5 + s / 10) for s in (0, 1, 2)] + [row("grpo", s, 0.4, 0.4 + s / 10) for s in (2, 0)]
    said = conclusions(rows, ["trloo", "grpo"])
    assert "trloo correct_by_turn_2_after: 0.600 (95% interval 0.352 to 0.848, 3 runs)" in said
    assert "trloo - grpo, correct_by_turn_2_after: +0.100 (95% interval +0.100 to +0.100, 2 runs)" in said
    assert conclusions([], ["trloo"]) == ["no run came to its end"]


def trajectory(folder: Path, answers: Sequence[tuple[str | None, str]], cut: bool = False) -> Path:
    """The folder of a search with one answer per round, given by code and outcome."""
    folder.mkdir(parents=True)
    lines = []
    for turn, (code, outcome) in enumerate(answers, start=1):
        key = {"turn": turn, "sample": 0}
        lines.append(json.dumps({"kind": "answer", **key, "code": code, "tokens": 10}))
        lines.append(json.dumps({"kind": "verdict", **key, "verdict": {"outcome": outcome}}))
    (folder / "trajectory.jsonl").write_text("\n".join(lines) + "\n" + ('{"kind": "ans' if cut else ""))
    return folder


def test_searches_are_counted_by_answers_and_by_evaluations(tmp_path: Path) -> None:
    from bench_refine import NEVER, Search, read, rows_of

    wrong = [("x", "crashed"), (None, "format_error"), ("x", "crashed")]
    first = read(trajectory(tmp_path / "a", [*wrong, ("y", "correct")]), False)
    second = read(trajectory(tmp_path / "b", wrong, cut=True), True)
    assert first == Search((10,) * 4, 4, 2, False)
    assert second == Search((10,) * 3, NEVER, NEVER, True)
    assert read(tmp_path / "none", True) is None
    options = Namespace(seeds=[0], tasks="t", model="m", device="cpu", commit="abc", count=2, flags="--top-p 1")
    assert first is not None
    assert second is not None
    rows = list(rows_of("serial:4x1", [[first], [second]], options))
    assert [row["solved_by_answers"] for row in rows] == [0, 0, 0, 0.5]
    assert [row["solved_by_evaluations"] for row in rows] == [0, 0.5, 0.5, 0.5]
    assert [row["tokens_mean"] for row in rows] == [10, 20, 30, 35]
    assert {row["cut"] for row in rows} == {1}
    assert rows[0]["command"].endswith("--model m --device cpu --flags '--top-p 1'")


def test_every_search_of_a_plan_is_a_valid_refine_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import bench_refine
    from kernel_coder.refine.config import parse

    found: list[Any] = []
    monkeypatch.setattr(bench_refine, "run_all", lambda trials, **more: found.extend(trials) or [])
    words = [
        "x",
        "--count",
        "2",
        "--plans",
        "serial:4x1",
        "best_of_turns:2x2",
        "--seeds",
        "3",
        "7",
        "--keep",
        str(tmp_path),
    ]
    monkeypatch.setattr(sys, "argv", [*words, "--commit", "abc", "--out", str(tmp_path / "rows.csv")])
    with pytest.raises(SystemExit, match="no task was begun"):
        bench_refine.main()
    assert len(found) == 8
    assert len({trial.name for trial in found}) == 8
    for trial in found:
        assert trial.command[1:3] == ["-m", "kernel_coder.refine"]
        config, _ = parse(list(trial.command[3:]))
        assert config.turns * config.parallel == 4
        assert config.seed in (3, 7)
        assert config.stop_when_correct
        assert (config.prompt_template, config.feedback_template) == ("nano", "nano")
        assert not config.judge.timing
        assert config.judge.families == ("own", "normal")
        assert "class Model" in Path(config.module).read_text()
    assert not (tmp_path / "rows.csv").exists()


def test_rows_of_bench_turns_come_from_the_run_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import bench_turns
    from kernel_coder.train.config import load_config
    from trials import Trial

    def pretend(trials: Sequence[Trial], **more: Any) -> Any:
        for trial in trials:
            assert trial.command[1:3] == ["-m", "kernel_coder.train"]
            config = load_config(trial.command[4], list(trial.command[5:]))
            run_dir = Path(config.run.output_dir)
            run_dir.mkdir()
            (run_dir / "config.yaml").write_text(config.to_yaml())
            lines = [
                {
                    "step": step,
                    "id": f"eval/{step}/{n}",
                    **talk(f"t{n % 2}", *(["crashed"] if n == 3 else []), "correct"),
                }
                for step in (0, 5)
                for n in range(6)
            ]
            text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
            (run_dir / "samples.jsonl").write_text(text)
            rates = {
                f"heldout_correct_by_turn_{t}_{moment}": t / 4 for t in (1, 2, 3) for moment in ("before", "after")
            }
            gain = {"heldout_gain_of_turns": 0.5, "heldout_gain_of_turns_low": 0.25, "heldout_gain_of_turns_high": 0.75}
            known = {"reward_first": 0.1, "reward_last": 0.2, "held_out_tasks": 2, "steps": 5, "seconds_train": 9.0}
            (run_dir / "summary.json").write_text(json.dumps(rates | gain | known))
            yield trial, 9.0

    monkeypatch.setattr(bench_turns, "run_all", pretend)
    out = tmp_path / "rows.csv"
    words = ["x", "--seeds", "0", "1", "--model", "some/base", "--flags", "--run.max_steps 5", "--commit", "abc"]
    monkeypatch.setattr(sys, "argv", [*words, "--keep", str(tmp_path), "--out", str(out)])
    bench_turns.main()
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["variant"], row["seed"]) for row in rows] == [
        ("trloo", "0"),
        ("grpo", "0"),
        ("trloo", "1"),
        ("grpo", "1"),
    ]
    assert {row["correct_by_turn_3_after"] for row in rows} == {"0.75"}
    assert {row["samples_after"] for row in rows} == {"1.0"}
    assert {(row["model"], row["turns"], row["conversations_per_step"]) for row in rows} == {("base", "3", "48")}
