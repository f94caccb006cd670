"""The library of verified kernels: which kernels it accepts and finds, and that a killed process loses none."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kernel_coder.judge import example_verdict
from kernel_coder.library import Library
from kernel_coder.library.__main__ import main
from kernel_coder.run.errors import UsageError
from kernel_coder.run.hashes import sha256_text
from verified import RELU, RELU_KERNEL, SCALE, SCALE_KERNEL, made_task, verdict_on


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    with Library(tmp_path / "library.sqlite") as opened:
        yield opened


def test_a_kernel_comes_back_as_it_was_added(library: Library) -> None:
    task = replace(made_task(), precision="tf32")
    verdict = replace(verdict_on(RELU_KERNEL, task, speedup=2.0, device="NVIDIA H200"), seeds=(2**127 + 1,))
    assert library.add(task, RELU_KERNEL, verdict, origin="runs/a", parents=["f" * 64])
    (entry,) = library.search("relu")
    assert (entry.task, entry.source, entry.verdict) == (task, RELU_KERNEL, verdict)
    assert (entry.origin, entry.parents, entry.licence) == ("runs/a", ("f" * 64,), "MIT")
    assert library.get(entry.id) == entry


def test_only_correct_kernels_with_their_own_verdict_are_taken(library: Library) -> None:
    task = made_task()
    with pytest.raises(ValueError, match="holds only correct kernels; got one with the verdict timeout"):
        library.add(task, RELU_KERNEL, example_verdict("timeout"))
    with pytest.raises(ValueError, match="about another source"):
        library.add(task, RELU_KERNEL + "#", verdict_on(RELU_KERNEL, task))
    assert len(library) == 0


def test_the_same_kernel_is_one_row_for_each_device_and_has_its_newest_verdict(library: Library) -> None:
    task = made_task()
    assert library.add(task, RELU_KERNEL, verdict_on(RELU_KERNEL, task))
    assert not library.add(task, RELU_KERNEL, verdict_on(RELU_KERNEL, task))
    assert library.add(task, RELU_KERNEL, verdict_on(RELU_KERNEL, task, speedup=1.5, device="NVIDIA A100"))
    assert not library.add(task, RELU_KERNEL, verdict_on(RELU_KERNEL, task, speedup=1.7, device="NVIDIA A100"))
    assert [entry.verdict.speedup for entry in library.search()] == [1.7, None]
    assert [entry.verdict.device for entry in library.search(device="a100")] == ["NVIDIA A100"]


def test_the_nearest_task_comes_first_and_the_task_itself_can_be_left_out(library: Library) -> None:
    relu, scale = made_task(), made_task("scale", SCALE, "Scale")
    near = made_task("near", RELU.replace("torch.relu(x)", "torch.relu(x) + 1.0"))
    same = made_task("same", RELU.replace("relu(x) * y", "relu(b) * c").replace("x, y", "b, c"))
    for task, source in ((relu, RELU_KERNEL), (scale, SCALE_KERNEL), (near, RELU_KERNEL + "#")):
        library.add(task, source, verdict_on(source, task))
    library.add(relu, RELU_KERNEL + "# fast", verdict_on(RELU_KERNEL + "# fast", relu, speedup=3.0))
    found = library.nearest(relu, 3)
    assert [entry.task.id for entry in found] == ["relu_mul", "near", "scale"]
    assert found[0].source == RELU_KERNEL + "# fast"
    assert found[0].similarity == 1.0
    assert 0 <= (found[2].similarity or 0) < (found[1].similarity or 0) < 1
    assert [entry.task.id for entry in library.nearest(same, 2, same=False)] == ["near", "scale"]
    assert library.nearest(relu, 2, backend="cuda") == []
    assert library.nearest(relu, 2, precision="bf16") == []


def test_search_words_are_taken_literally(library: Library) -> None:
    task = made_task("a_b%c")
    library.add(task, RELU_KERNEL, verdict_on(RELU_KERNEL, task))
    assert [len(library.search(text)) for text in ("b%c A_B", "a%c", "a_b tl.maximum", "x' OR 1 --")] == [1, 0, 1, 0]


def test_a_file_that_is_no_library_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database" * 100)
    for path, words in ((tmp_path / "text", "cannot be read"), (tmp_path / "none", "there is no library")):
        with pytest.raises(UsageError, match=words):
            Library(path, create=False)
    Library(tmp_path / "new").close()
    with sqlite3.connect(tmp_path / "new") as db:
        db.execute("PRAGMA user_version = 9")
    with pytest.raises(UsageError, match="has version 9; this version reads up to 1"):
        Library(tmp_path / "new")


ADDING = """
import sys
sys.path.insert(0, {tests!r})
from verified import made_task, verdict_on
from kernel_coder.library import Library
task = made_task()
with Library(sys.argv[1]) as library:
    start = len(library)
    print("open", flush=True)
    for number in range(start, start + 100_000):
        source = f"class ModelNew: ...  # {{number}}" + " " * 2000
        library.add(task, source, verdict_on(source, task))
        print(number, flush=True)
"""


def test_kill_9_loses_no_kernel_that_was_added(tmp_path: Path) -> None:
    path = tmp_path / "library.sqlite"
    code = ADDING.format(tests=str(Path(__file__).parent))
    promised = 0
    for moment in (0.05, 0.2):  # the second process opens the library that the first kill left
        with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            for _ in range(5):
                process.stdout.readline()
            time.sleep(moment)
            os.kill(process.pid, signal.SIGKILL)
            lines = process.stdout.read().splitlines(keepends=True)
        printed = [int(line) for line in lines if line.endswith("\n")]
        promised = max([promised, *(number + 1 for number in printed)])
        with Library(path, create=False) as library:
            assert len(library) >= promised > 5
            assert library._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert {sha256_text(entry.source) for entry in library.search(limit=9**9)} == {
                entry.verdict.candidate_hash for entry in library.search(limit=9**9)
            }


# ---- the command -----------------------------------------------------------------------------------------------------


def test_search_and_show_commands_print_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, task = tmp_path / "library.sqlite", made_task()
    with Library(path) as library:
        library.add(task, RELU_KERNEL, verdict_on(RELU_KERNEL, task, speedup=2.0, device="NVIDIA H200"))
    flags = ["--library", str(path)]
    assert main(["search", "relu", *flags]) == 0
    assert "relu_mul" in (told := capsys.readouterr().out)
    assert "2.00x" in told
    (tmp_path / "module.py").write_text(RELU.replace("relu", "gelu"))
    assert main(["search", str(tmp_path / "module.py"), "--json", *flags]) == 0
    assert 0.1 < json.loads(capsys.readouterr().out)["similarity"] < 1
    assert main(["search", "softmax", *flags]) == 1
    assert main(["show", "1", *flags]) == 0
    assert RELU_KERNEL in capsys.readouterr().out
    assert main(["show", "7", *flags]) == 2
    assert capsys.readouterr().err.startswith("error: library")
    assert main(["search", "--library", str(tmp_path / "none")]) == 2


def test_a_run_is_added_with_its_parents(tmp_path: Path) -> None:
    """The files of a search, as refine writes them."""
    task = made_task("tasks/module")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "module.py").write_text(RELU)
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"module": str(tmp_path / "tasks/module.py"), "precision": "tf32"}))
    codes = ["class ModelNew: ...", RELU_KERNEL]
    verdicts = [example_verdict("timeout", task=task.id), verdict_on(RELU_KERNEL, task)]
    with (run / "trajectory.jsonl").open("w") as lines:
        for turn, (code, verdict) in enumerate(zip(codes, verdicts, strict=True), start=1):
            key = {"turn": turn, "sample": 0}
            parents = [[1, 0]] if turn == 2 else []
            lines.write(json.dumps({"kind": "answer", **key, "code": code, "parents": parents}) + "\n")
            lines.write(json.dumps({"kind": "verdict", **key, "verdict": json.loads(verdict.to_json())}) + "\n")
        lines.write('{"kind": "ans')  # a crash
    flags = ["--library", str(tmp_path / "library.sqlite")]
    assert main(["add", str(run), *flags]) == main(["add", str(run), *flags]) == 0
    with Library(tmp_path / "library.sqlite") as library:
        (entry,) = library.search()
    assert (entry.task.precision, entry.origin) == ("tf32", str(run))
    assert entry.parents == (sha256_text(codes[0]),)


def test_runs_of_training_evaluation_and_collect_are_added(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "module.py").write_text(RELU)
    task = made_task("tasks/module")
    verdict = json.loads(verdict_on(RELU_KERNEL, task).to_json())
    text = f"<thinking>\n</thinking>\n<answer>\n```python\n{RELU_KERNEL}```\n</answer>"
    source = RELU_KERNEL.rstrip("\n")
    verdict["candidate_hash"] = sha256_text(source)
    answer = {"completion": text, "verdict": verdict}
    train, evaluation = tmp_path / "train", tmp_path / "evaluation"
    for folder in (train, evaluation):
        folder.mkdir()
    (train / "config.yaml").write_text(f"data: {{path: {tmp_path / 'tasks'}}}\njudge: {{checks: 1}}\n")
    (train / "samples.jsonl").write_text(json.dumps({"step": 1, "task": "tasks/module", **answer}) + "\n")
    (evaluation / "config.yaml").write_text(f"tasks: {tmp_path / 'tasks'}\nprecision: null\n")
    key = {"task": "tasks/module", "sample": 0}
    (evaluation / "samples.jsonl").write_text(json.dumps({**key, "code": source}) + "\n")
    (evaluation / "verdicts.jsonl").write_text(json.dumps({**key, "verdict": verdict}) + "\n")
    (tmp_path / "talks.jsonl").write_text(json.dumps({"task": "tasks/module", "turns": [answer]}) + "\n")
    (tmp_path / "talks.recipe.yaml").write_text(f"data: {{path: {tmp_path / 'tasks'}}}\n")
    for number, run in enumerate((train, evaluation, tmp_path / "talks.jsonl")):
        path = tmp_path / f"{number}.sqlite"
        assert main(["add", str(run), "--library", str(path)]) == 0
        with Library(path) as library:
            assert [entry.source for entry in library.search()] == [source]
    assert main(["add", str(tmp_path / "tasks"), "--library", str(tmp_path / "3.sqlite")]) == 2
