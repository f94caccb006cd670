"""Loading: every source, every format, broken rows, and the typical mistakes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder.tasks import DataSource, TaskSet, load_tasks, sources
from kernel_coder.tasks.rows import rename_class

KERNELBENCH = Path(__file__).parents[3] / "shared/data/kernelbench"

Row = dict[str, Any]


def module(name: str = "Model") -> str:
    return f"class {name}: ...\ndef get_inputs():\n    return []\ndef get_init_inputs():\n    return []\n"


def kernelbook_row(uuid: int | None, name: str = "Sum", **changes: Any) -> Row:
    return {
        "entry_point": name,
        "original_triton_code": "async_compile = ...",
        "python_code": module(name),
        "triton_code": f"class {name}New:\n    def __init__(self):\n        super({name}New, self).__init__()\n",
        "repo_name": "someone/models",
        "module_name": name,
        "synthetic": False,
        "uuid": uuid,
        "licenses": ["MIT", "Apache-2.0"],
        "stars": 3,
        "sha": "0" * 40,
        "repo_link": "https://example.org",
        **changes,
    }


def write_parquet(path: Path, rows: list[Row]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
    return path


def write_jsonl(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_json(path: Path, rows: list[Row]) -> Path:
    path.write_text(json.dumps(rows))
    return path


WRITERS: dict[str, Callable[[Path, list[Row]], Path]] = {
    "rows.parquet": write_parquet,
    "rows.jsonl": write_jsonl,
    "rows.json": write_json,
}


@pytest.fixture(params=sorted(WRITERS))
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[list[Row]], Path]:
    return lambda rows: WRITERS[request.param](tmp_path / request.param, rows)


# Valid rows


def test_kernelbook_row_keeps_class_and_licence_and_its_solution_is_renamed_model_new(
    write: Callable[[list[Row]], Path],
) -> None:
    (task,) = load_tasks(write([kernelbook_row(42)]))
    assert task.id == "Sum/42"
    assert task.entry_point == "Sum"
    assert task.reference == module("Sum")
    assert task.solution is not None
    assert task.solution.startswith("class ModelNew:")
    assert "super(ModelNew, self)" in task.solution
    assert task.licence == "MIT, Apache-2.0"
    assert task.metadata["repo_name"] == "someone/models"
    assert task.metadata["stars"] == 3
    assert (task.backend, task.precision) == ("triton", "fp32")


def test_a_kernelbench_row_is_for_evaluation_only(write: Callable[[list[Row]], Path]) -> None:
    rows = [{"code": module(), "level": 1, "name": "19_ReLU", "problem_id": 19}]
    (task,) = load_tasks(write(rows))
    assert task.id == "level1/19_ReLU"
    assert task.solution is None
    assert task.metadata == {"level": 1, "name": "19_ReLU", "problem_id": 19, "evaluation_only": True}


def test_the_same_rows_have_one_fingerprint_in_every_file_format(tmp_path: Path) -> None:
    rows = [kernelbook_row(1), kernelbook_row(2, "Mean"), kernelbook_row(None, "Max", triton_code=None)]
    prints = {load_tasks(writer(tmp_path / name, rows)).fingerprint for name, writer in WRITERS.items()}
    assert len(prints) == 1


def test_id_of_a_row_without_uuid_comes_from_its_text(write: Callable[[list[Row]], Path]) -> None:
    (first,) = load_tasks(write([kernelbook_row(None)]))
    (second,) = load_tasks(write([kernelbook_row(None, stars=99)]))
    assert first.id == second.id
    assert first.id.startswith("Sum/")


# Broken rows are counted and named


def test_broken_rows_are_reported_and_the_other_rows_are_loaded(write: Callable[[list[Row]], Path]) -> None:
    rows = [
        kernelbook_row(1),
        kernelbook_row(2, python_code="class Sum(:"),
        kernelbook_row(3, python_code="class Sum: ...\ndef get_inputs(): ..."),
        kernelbook_row(4, entry_point="Other"),
        kernelbook_row(5, python_code=None),
        kernelbook_row(6, triton_code="def kernel(): ..."),
        kernelbook_row(1, "Sum"),
        kernelbook_row(7, python_code="  "),
        kernelbook_row(8),
    ]
    path = write(rows)
    tasks = load_tasks(path)
    assert [task.id for task in tasks] == ["Sum/1", "Sum/8"]
    assert [str(problem) for problem in tasks.problems] == [
        f"{path.name} row 2 (uuid 2): the reference does not parse: invalid syntax (line 1)",
        f"{path.name} row 3 (uuid 3): the reference has no function get_init_inputs",
        f"{path.name} row 4 (uuid 4): the reference has no class Other",
        f"{path.name} row 5 (uuid 5): python_code is missing",
        f"{path.name} row 6 (uuid 6): the solution has no class ModelNew or SumNew",
        f"{path.name} row 7 (uuid 1): an earlier row has the same id Sum/1",
        f"{path.name} row 8 (uuid 7): python_code is empty",
    ]
    assert "7 rows dropped" in tasks.summary()


def test_lines_that_are_not_json_objects_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(["{broken", "", "[1]", json.dumps(kernelbook_row(1, stars=None, licenses="MIT"))]))
    tasks = load_tasks(path)
    assert [task.licence for task in tasks] == ["MIT"]
    assert [(p.row, p.reason.split(":")[0]) for p in tasks.problems] == [(1, "not JSON"), (2, "not a JSON object")]


def test_columns_of_the_wrong_type_are_reported(tmp_path: Path) -> None:
    rows = [kernelbook_row(1), kernelbook_row(2, python_code=5), kernelbook_row(3, triton_code=5)]
    rows.append(kernelbook_row(4, licenses=5))
    tasks = load_tasks(write_jsonl(tmp_path / "rows.jsonl", rows))
    assert [problem.reason for problem in tasks.problems] == [
        "python_code must be text, got int",
        "triton_code must be text, got int",
        "licenses must be text or a list of texts, got int",
    ]


def test_uuid_stored_as_a_float_gives_the_same_id(tmp_path: Path) -> None:
    rows = [kernelbook_row(7.0), kernelbook_row(float("nan"), "Mean")]  # type: ignore[arg-type]
    assert load_tasks(write_parquet(tmp_path / "rows.parquet", rows))[0].id == "Sum/7"


def test_limit_counts_usable_tasks_and_stops_reading(write: Callable[[list[Row]], Path]) -> None:
    rows = [kernelbook_row(1, python_code="("), *(kernelbook_row(i) for i in range(2, 6)), kernelbook_row(6, "(")]
    tasks = load_tasks(write(rows), limit=3)
    assert [task.id for task in tasks] == ["Sum/2", "Sum/3", "Sum/4"]
    assert len(tasks.problems) == 1


# Folders and modules


def test_folder_of_modules_is_loaded_with_their_solutions(tmp_path: Path) -> None:
    folder = tmp_path / "ops"
    (folder / "deep").mkdir(parents=True)
    for name in ("10_relu.py", "2_sum.py", "3_max.py", "deep/1_min.py"):
        (folder / name).write_text(module())
    (folder / "2_sum.triton.py").write_text("class ModelNew: ...")
    (folder / "10_relu_new.py").write_text("class ModelNew: ...")
    (folder / "3_max.cuda.py").write_text("class ModelNew: ...")
    (folder / "_scratch.py").write_text("not Python at all (")
    (folder / "notes.txt").write_text("no task")
    tasks = load_tasks(folder)
    assert [(task.id, task.backend, task.solution is not None) for task in tasks] == [
        ("ops/2_sum", "triton", True),
        ("ops/3_max", "cuda", True),
        ("ops/10_relu", "triton", True),
        ("deep/1_min", "triton", False),
    ]
    assert not tasks.problems


def test_a_module_whose_name_only_looks_like_a_solution_is_a_task(tmp_path: Path) -> None:
    (tmp_path / "brand_new.py").write_text(module())
    assert [task.id for task in load_tasks(tmp_path)] == [f"{tmp_path.name}/brand_new"]


def test_broken_modules_and_solutions_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "ops"
    folder.mkdir()
    for name in ("a.py", "b.py"):
        (folder / name).write_text(module())
    (folder / "b_new.py").write_text("class Model: ...")
    (folder / "c.py").write_bytes(b"\xff\xfe")
    tasks = load_tasks(folder)
    assert [task.id for task in tasks] == ["ops/a"]
    assert [str(problem) for problem in tasks.problems] == [
        "ops/b.py row 2: b_new.py: the solution has no class ModelNew",
        "ops/c.py row 3: c.py is not UTF-8 text: invalid start byte at byte 0",
    ]


def test_single_module_file_is_one_task(tmp_path: Path) -> None:
    (tmp_path / "relu.py").write_text(module())
    (task,) = load_tasks(tmp_path / "relu.py")
    assert task.id == f"{tmp_path.name}/relu"


def test_a_folder_of_tables_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    write_parquet(tmp_path / "part-10.parquet", [kernelbook_row(10)])
    write_parquet(tmp_path / "part-2.parquet", [kernelbook_row(2)])
    assert [task.id for task in load_tasks(tmp_path)] == ["Sum/2", "Sum/10"]


def test_two_processes_read_the_same_tasks_and_problems_as_one(tmp_path: Path) -> None:
    rows = [kernelbook_row(i) for i in range(600)]
    rows[300]["python_code"] = "class Model(:"
    path = write_parquet(tmp_path / "rows.parquet", rows)
    alone, together = (load_tasks(path, num_proc=number) for number in (1, 2))
    assert [task.id for task in together] == [task.id for task in alone]
    assert together.problems == alone.problems
    assert [problem.row for problem in together.problems] == [301]


def test_local_copy_of_kernelbench_loads_completely() -> None:
    if not KERNELBENCH.is_dir():
        pytest.skip(f"no copy of KernelBench at {KERNELBENCH}")
    tasks = load_tasks(KERNELBENCH)
    assert len(tasks) == 250
    assert not tasks.problems
    assert tasks[0].id == "level1/1_Square_matrix_multiplication_"


# The packaged pairs


@pytest.mark.parametrize("name", ["pairs.parquet", "pairs.jsonl"])
def test_packaged_pairs_are_the_default(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PACKAGED_FOLDER", tmp_path)
    WRITERS[f"rows{Path(name).suffix}"](tmp_path / name, [kernelbook_row(1)])
    tasks = load_tasks()
    assert tasks.summary().startswith("packaged: 1 task, 1 with a known solution, 0 rows dropped")
    assert tasks[0].source == "packaged"


def test_error_for_missing_packaged_pairs_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PACKAGED_FOLDER", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"pairs\.parquet or pairs\.jsonl\) are missing from .* set data\.path"):
        load_tasks("packaged")


# Configuration


def test_any_object_with_the_fields_is_accepted_and_overrides_take_precedence(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [kernelbook_row(1), kernelbook_row(2)])
    config = SimpleNamespace(path=path, limit=1, eval_fraction=0.1)
    assert len(load_tasks(config)) == 1
    assert len(load_tasks(config, limit=2)) == 2
    assert len(load_tasks(DataSource(path=path, format="kernelbook"))) == 2


# The hub, replaced by a fake: no test uses the network


class FakeTable(list[Row]):
    @property
    def column_names(self) -> list[str]:
        return list(self[0])

    def remove_columns(self, names: list[str]) -> FakeTable:
        return FakeTable({key: value for key, value in row.items() if key not in names} for row in self)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A fake `datasets` module that records its call and returns the given rows, or raises the given error."""
    state: dict[str, Any] = {"rows": [kernelbook_row(1)]}

    def load_dataset(name: str, **options: Any) -> FakeTable:
        state["call"] = (name, options)
        if "error" in state:
            raise state["error"]
        return FakeTable(state["rows"])

    fake = ModuleType("datasets")
    fake.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", fake)
    return state


def test_kernelbook_comes_from_a_pinned_revision(hub: dict[str, Any]) -> None:
    tasks = load_tasks("GPUMODE/KernelBook")
    revision = "1576375bc92745b490e1cdf2fce01eba76d9f847"
    options = {"revision": revision, "split": "train", "data_files": "dataset_permissive.parquet"}
    assert hub["call"] == ("GPUMODE/KernelBook", options)
    assert tasks[0].source == "GPUMODE/KernelBook@1576375"
    assert tasks[0].licence == "MIT, Apache-2.0"
    assert "original_triton_code" not in tasks[0].metadata


def test_kernelbench_rows_from_the_hub_have_the_licence_of_kernelbench(hub: dict[str, Any]) -> None:
    hub["rows"] = [{"code": module(), "level": 2, "name": "1_a", "problem_id": 1}, {"code": "(", "level": 2}]
    tasks = load_tasks("ScalingIntelligence/KernelBench", split="level_2")
    assert hub["call"][1]["split"] == "level_2"
    assert tasks[0].licence == "MIT"
    assert len(tasks.problems) == 1


def test_revision_may_follow_the_name_or_be_a_field(hub: dict[str, Any]) -> None:
    load_tasks("someone/pairs@" + "a" * 40)
    assert hub["call"] == ("someone/pairs", {"revision": "a" * 40, "split": "train"})
    load_tasks("GPUMODE/KernelBook", revision="b" * 40)
    assert hub["call"][1]["revision"] == "b" * 40


def test_unknown_data_set_without_a_revision_is_refused(hub: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=r"someone/pairs is not a local file or folder; .* set data\.revision to one of its commits"
    ):
        load_tasks("someone/pairs")
    assert "call" not in hub


def test_error_without_a_network_says_to_use_a_local_file(hub: dict[str, Any]) -> None:
    hub["error"] = ConnectionError("name resolution failed\nand a traceback")
    with pytest.raises(ValueError, match="KernelBook") as caught:
        load_tasks("GPUMODE/KernelBook")
    assert str(caught.value) == (
        "GPUMODE/KernelBook@1576375 could not be loaded from the hub (ConnectionError: name resolution failed); "
        "without a network, download its parquet file elsewhere and set data.path to that file"
    )


def test_error_without_the_datasets_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs the package datasets: pip install 'kernel-coder\[hub\]'"):
        load_tasks("GPUMODE/KernelBook")


# Typical mistakes, one clear sentence each


def test_error_for_a_missing_file_names_it() -> None:
    with pytest.raises(FileNotFoundError, match=r"data\.path names no file or folder: data/missing\.parquet"):
        load_tasks("data/missing.parquet")


def test_an_empty_data_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"rows\.jsonl holds no usable task: it is empty"):
        load_tasks(tmp_path / "rows.jsonl")
    (tmp_path / "rows.jsonl").unlink()
    with pytest.raises(ValueError, match=r"holds no \.py, \.parquet, \.jsonl, \.json file"):
        load_tasks(tmp_path)


def test_error_for_a_data_set_without_usable_rows_explains_the_first_row(tmp_path: Path) -> None:
    rows = [kernelbook_row(1, python_code="("), kernelbook_row(2, python_code="(")]
    with pytest.raises(ValueError, match="no usable task") as caught:
        load_tasks(write_jsonl(tmp_path / "rows.jsonl", rows))
    assert str(caught.value) == (
        "rows.jsonl holds no usable task: 2 row(s) were dropped, the first being "
        "rows.jsonl row 1 (uuid 1): the reference does not parse: '(' was never closed (line 1)"
    )


def test_error_for_an_unknown_format_names_the_known_formats(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"data\.format must be one of auto, kernelbook, kernelbench, python; got 'csv'"
    ):
        load_tasks(tmp_path, format="csv")
    (tmp_path / "rows.csv").write_text("a,b")
    with pytest.raises(
        ValueError, match=r"data\.path must end in \.parquet, \.jsonl, \.json, \.py or be a folder; got"
    ):
        load_tasks(tmp_path / "rows.csv")


def test_error_for_a_missing_column_names_it(write: Callable[[list[Row]], Path]) -> None:
    path = write([{"entry_point": "Sum", "source_code": module("Sum")}])
    with pytest.raises(ValueError, match="has no column") as caught:
        load_tasks(path, format="kernelbook")
    assert str(caught.value) == (
        f"{path.name} has no column python_code, which KernelBook's format needs; it has entry_point, source_code"
    )
    with pytest.raises(ValueError, match=r"neither known set of columns: entry_point, python_code .KernelBook.; code"):
        load_tasks(path)


def test_a_format_that_does_not_fit_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "relu.py").write_text(module())
    with pytest.raises(ValueError, match=r"data\.format kernelbook reads tables; relu\.py is Python source"):
        load_tasks(tmp_path, format="kernelbook")
    with pytest.raises(ValueError, match=r"data\.format python reads \.py files and folders of them; rows\.jsonl"):
        load_tasks(write_jsonl(tmp_path / "rows.jsonl", [kernelbook_row(1)]), format="python")


def test_file_that_is_not_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_text("not parquet")
    with pytest.raises(ValueError, match=r"rows\.parquet cannot be read as a parquet file: "):
        load_tasks(tmp_path / "rows.parquet")


def test_error_without_pyarrow_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path / "rows.parquet", [kernelbook_row(1)])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ModuleNotFoundError, match=r"reading rows\.parquet needs pyarrow: pip install pyarrow"):
        load_tasks(path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"limit": 0}, r"data\.limit must be at least 1; got 0"),
        ({"lmit": 1}, "load_tasks has no argument 'lmit'; it has path, format, revision, split, limit"),
        ({"path": ""}, r"data\.path is empty"),
    ],
)
def test_error_for_a_bad_argument_names_it(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        load_tasks("packaged", **arguments)


# Renaming the solution's class


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("class SumNew: ...\nx = SumNew()", "class ModelNew: ...\nx = ModelNew()"),
        ("class SumNew(nn.SumNew): ...", "class ModelNew(nn.SumNew): ..."),
        ("# SumNew\nclass SumNew:\n    'SumNew'", "# SumNew\nclass ModelNew:\n    'SumNew'"),
        ("'é'; SumNew\nclass SumNew: ...", "'é'; ModelNew\nclass ModelNew: ..."),
        ("@wrap(SumNew)\ndef f(): ...\nclass SumNew: ...", "@wrap(ModelNew)\ndef f(): ...\nclass ModelNew: ..."),
        ("class SumNewer: ...", "class SumNewer: ..."),
        ("class ModelNew: ...\nclass SumNew: ...", "class ModelNew: ...\nclass SumNew: ..."),
        ("class SumNew(", "class SumNew("),
        ("@wrap\nclass   SumNew:\r\n    pass\r\n", "@wrap\nclass   ModelNew:\r\n    pass\r\n"),
    ],
)
def test_rename_class_changes_only_the_class_and_its_uses(source: str, expected: str) -> None:
    assert rename_class(source, "SumNew", "ModelNew") == expected


@settings(deadline=None)
@given(st.text(max_size=100))
def test_rename_class_does_not_change_text_without_the_class(text: str) -> None:
    assert rename_class(text, "SumNew", "ModelNew") == text


def test_loading_twice_gives_the_same_tasks(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [kernelbook_row(i) for i in range(5)])
    first, second = load_tasks(path), load_tasks(path)
    assert isinstance(first, TaskSet)
    assert list(first) == list(second)
