"""The list of KernelBench's tasks and whether the judge admits them. A task is found by the hash of its text."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import sys
from pathlib import Path

import pytest
from kernel_coder.judge import admission_list
from kernel_coder.judge.admission_list import PACKAGED, KnownAdmission, entry_of, known_admission, listing

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COLUMNS = ("task", "sha256", "admitted", "reason", "seconds", "device", "commit")


def row(number: int, admitted: bool = True, reason: str = "", text: str = "text") -> dict[str, str]:
    sha256 = hashlib.sha256(f"{text} {number}".encode()).hexdigest()
    values = (f"level2/{number}_Name", sha256, str(admitted), reason, "1.5", "NVIDIA H200", "71bba18")
    return dict(zip(COLUMNS, values, strict=True))


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def pack(rows: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS / "judge"))
    import bench_admission

    monkeypatch.setattr(sys, "argv", ["bench_admission", "--pack", str(rows), "--out", str(out)])
    bench_admission.main()


def test_task_is_found_by_its_text_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(10), row(9, False, "the reference itself does not pass:\nit is  random")]
    pack(write(tmp_path / "rows.csv", rows), tmp_path / "list.json", monkeypatch)
    found = known_admission("text 9", tmp_path / "list.json")
    assert found == KnownAdmission(
        level="level2",
        name="9_Name",
        sha256=rows[1]["sha256"],
        admitted=False,
        reason="the reference itself does not pass: it is random",
        device="NVIDIA H200",
        commit="71bba18",
    )
    known = known_admission("text 10", tmp_path / "list.json")
    assert known is not None
    assert known.admitted
    assert known_admission("text 9 ", tmp_path / "list.json") is None  # the same name with another text


def test_task_that_was_measured_twice_has_its_last_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(1, False, "the judge failed"), row(2), row(1)]
    pack(write(tmp_path / "rows.csv", rows), tmp_path / "list.json", monkeypatch)
    found = known_admission("text 1", tmp_path / "list.json")
    assert found is not None
    assert found.admitted


def test_list_is_sorted_by_level_and_number_for_any_order_of_the_rows() -> None:
    entries = [entry_of(row(number)) for number in (100, 9, 10)]
    assert listing(entries) == listing(reversed(entries))
    assert [line.split('"')[7] for line in listing(entries).splitlines()[1:-1]] == ["9_Name", "10_Name", "100_Name"]


def test_a_long_reason_is_cut_at_a_word() -> None:
    reason = entry_of(row(1, False, "word " * 100)).reason
    assert len(reason) <= admission_list.LONGEST_REASON
    assert reason.endswith("word ...")


@pytest.mark.parametrize("text", ["", "1", '[{"level": "level1"}]', "[1]"])
def test_file_that_is_not_an_admission_list_raises_an_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"list\.json is no list of admissions"):
        known_admission("x", path)


def test_packaged_list_matches_the_measured_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After new rows, run: python benchmarks/judge/bench_admission.py --pack benchmarks/results/admission_cuda.csv"""
    pack(BENCHMARKS / "results" / "admission_cuda.csv", tmp_path / "list.json", monkeypatch)
    assert PACKAGED.read_text() == (tmp_path / "list.json").read_text()


def test_the_packaged_list_holds_names_hashes_and_short_reasons_only() -> None:
    for entry in json.loads(PACKAGED.read_text()):
        assert re.fullmatch(r"level[123]", entry["level"])
        assert re.fullmatch(r"\d+_\w+", entry["name"])
        assert re.fullmatch(r"[0-9a-f]{64}", entry["sha256"])
        assert bool(entry["reason"]) is not entry["admitted"]
        assert len(entry["reason"]) <= admission_list.LONGEST_REASON
        assert set(entry) == set(COLUMNS) - {"task", "seconds"} | {"level", "name"}
