"""``kernelbench:level1``: a local copy, a replaced hub, and problems by number."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernel_coder.tasks import Task, TaskSet, load_tasks
from kernel_coder.tasks.task_set import task_numbers

MODULE = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n# {}\n"
COPY = os.environ.get("KERNELBENCH_DIR")


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("KERNELBENCH_DIR", raising=False)
    for level, names in ((1, ("2_B", "10_C", "1_A")), (2, ("1_D",))):
        folder = tmp_path / "copy" / f"level{level}"
        folder.mkdir(parents=True)
        for name in names:
            (folder / f"{name}.py").write_text(MODULE.format(name))
    return tmp_path / "copy"


def test_levels_are_in_the_given_order_and_problems_in_the_order_of_their_numbers(copy: Path) -> None:
    tasks = load_tasks("kernelbench:level2,level1", kernelbench_dir=copy)
    assert [task.id for task in tasks] == ["level2/1_D", "level1/1_A", "level1/2_B", "level1/10_C"]
    assert tasks[0].metadata == {"level": 2, "name": "1_D", "problem_id": 1, "evaluation_only": True}
    assert tasks[0].licence == "MIT"


def test_copy_is_found_through_the_environment_variable_and_inside_a_checkout(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELBENCH_DIR", str(copy))
    inside = load_tasks("kernelbench:level1")
    copy.rename(copy.with_name("KernelBench"))
    monkeypatch.setenv("KERNELBENCH_DIR", str(copy.parent))
    assert load_tasks("kernelbench:level1").fingerprint == inside.fingerprint


@pytest.mark.parametrize("path", ["kernelbench:", "kernelbench:1", "kernelbench:level5", "kernelbench:level1,"])
def test_unknown_level_is_refused(path: str, copy: Path) -> None:
    with pytest.raises(ValueError, match=f"{path} names no level of KernelBench; the levels are level1, "):
        load_tasks(path, kernelbench_dir=copy)


def test_folder_without_the_level_is_refused(copy: Path) -> None:
    with pytest.raises(FileNotFoundError, match="copy is not a copy of KernelBench: it has no folder level3"):
        load_tasks("kernelbench:level3", kernelbench_dir=copy)


def test_without_a_copy_the_hub_is_asked_for_a_pinned_revision(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, str]] = []

    class Table(list[dict[str, Any]]):
        column_names = ("code", "level", "name", "problem_id")

        def remove_columns(self, names: list[str]) -> Table:
            return self

    def load_dataset(name: str, *, revision: str, split: str) -> Table:
        asked.append((name, revision, split))
        level = int(split[-1])
        files = sorted((copy / f"level{level}").iterdir(), key=lambda file: int(file.name.partition("_")[0]))
        return Table(
            {"code": f.read_text(), "level": level, "name": f.stem, "problem_id": int(f.stem.partition("_")[0])}
            for f in files
        )

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    from_hub = load_tasks("kernelbench:level1,level2")
    assert [(name, len(revision), split) for name, revision, split in asked] == [
        ("ScalingIntelligence/KernelBench", 40, "level_1"),
        ("ScalingIntelligence/KernelBench", 40, "level_2"),
    ]
    local = load_tasks("kernelbench:level1,level2", kernelbench_dir=copy)
    assert from_hub.fingerprint == local.fingerprint
    assert [dict(task.metadata) for task in from_hub] == [dict(task.metadata) for task in local]


@pytest.mark.parametrize(
    ("ids", "numbers"),
    [
        (["level1/3_x", "level2/3_y", "level1/19_z"], [3, 3, 19]),
        (["a/3_x", "a/plain"], [1, 2]),
        (["Sum/123456", "Max/7"], [1, 2]),
    ],
    ids=["KernelBench", "mixed", "KernelBook"],
)
def test_tasks_without_numbers_in_their_ids_are_numbered_in_order(ids: list[str], numbers: list[int]) -> None:
    assert task_numbers([Task(id=one, source="test", reference="...") for one in ids]) == numbers


def test_error_for_a_missing_problem_number_names_the_range() -> None:
    tasks = TaskSet([Task(id=f"a/{i}_x", source="test", reference="...") for i in (2, 4)], source="a")
    with pytest.raises(ValueError, match="there is no problem 3, 5; a has 2 problems, numbered 2 to 4"):
        tasks.pick([5, 3, 2])


def test_real_copy_of_kernelbench_has_all_250_problems() -> None:
    if COPY is None:
        pytest.skip("KERNELBENCH_DIR names no copy of KernelBench")
    tasks = load_tasks("kernelbench:level1,level2,level3", kernelbench_dir=COPY)
    assert (len(tasks), tasks.problems) == (250, ())
