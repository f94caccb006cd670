"""The builder: the files it writes, the reasons for drops, and that a killed build continues."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from kernel_coder.data.__main__ import main
from kernel_coder.data.build import Plan, build
from kernel_coder.data.screen import kernelbench_fingerprints, kernelbench_listing
from kernel_coder.data.verifiers import Candidate, Finding
from kernel_coder.run.flags import UsageError
from kernel_coder.tasks import load_tasks
from kernel_coder.tasks.build_pairs import COLUMNS
from kernel_coder.tasks.generator import generate, split_of

_COPY = Path(__file__).resolve().parents[3] / "shared/data/kernelbench"
KERNELBENCH = os.environ.get("KERNELBENCH_DIR", str(_COPY) if _COPY.is_dir() else None)


class Trusting:
    """Accepts every candidate without the word `wrong`, counts candidates, and can interrupt the build."""

    name = "trusting"

    def __init__(self, wrong: str = "never", stop_after: int | None = None) -> None:
        self.wrong, self.stop_after, self.seen = wrong, stop_after, 0

    def __enter__(self) -> Trusting:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def verify(self, candidates: Iterable[Candidate]) -> Iterator[Finding]:
        for candidate in candidates:
            self.seen += 1
            if self.stop_after is not None and self.seen > self.stop_after:
                raise KeyboardInterrupt
            bad = self.wrong in candidate.code
            yield Finding(not bad, f"seed 0: off by {len(candidate.code)}.0e-03" if bad else None, 1e-7)


def files(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_rows_have_the_columns_of_kernelbook_and_load_as_tasks(tmp_path: Path) -> None:
    report = build(Plan(count=30), tmp_path / "pairs.parquet", Trusting())
    rows = pq.read_table(tmp_path / "pairs.parquet").to_pylist()
    assert report.rows == len(rows) == 30
    assert tuple(rows[0])[: len(COLUMNS)] == COLUMNS
    for one in rows:
        made = generate(one["seed"], one["family"], one["level"])
        assert one["python_code"] == made.task.reference
        assert one["triton_code"] == made.task.solution
        assert one["licenses"] == ["Apache-2.0"]
        assert one["verified"] is True
        assert json.loads(one["versions"])["verifier"] == "trusting"
        assert one["split"] == "train"
    tasks = load_tasks(tmp_path / "pairs.parquet")
    assert [task.solution for task in tasks] == [one["triton_code"] for one in rows]
    assert not tasks.problems
    assert {split_of(task) for task in tasks} == {"train"}
    assert {task.id for task in tasks} == {generate(r["seed"], r["family"], r["level"]).task.id for r in rows}


def test_every_drop_has_a_reason_in_the_table(tmp_path: Path) -> None:
    report = build(Plan(count=40), tmp_path / "pairs.parquet", Trusting(wrong="tl.sigmoid"))
    record = json.loads((tmp_path / "pairs.drops.json").read_text())
    assert record["rows"] == 40
    assert record["attempts"] == report.attempts == 40 + len(record["drops"])
    assert {drop["stage"] for drop in record["drops"]} >= {"verification", "split"}
    assert all(drop["reason"] for drop in record["drops"])
    assert sum(line["count"] for line in record["drop_table"]) == len(record["drops"])
    assert any(line["reason"] == "seed N: off by N" for line in record["drop_table"])
    assert record["file_sha256"] == hashlib.sha256((tmp_path / "pairs.parquet").read_bytes()).hexdigest()


def test_no_structure_is_built_twice_unless_per_structure_allows_it(tmp_path: Path) -> None:
    plan = Plan(count=40, families=("attention",), levels=(0,))
    build(plan, tmp_path / "once.parquet", Trusting())
    prints = pq.read_table(tmp_path / "once.parquet").column("fingerprint").to_pylist()
    assert len(set(prints)) == 40
    stages = {drop["stage"] for drop in json.loads((tmp_path / "once.drops.json").read_text())["drops"]}
    assert "duplicate" in stages
    build(replace(plan, per_structure=3), tmp_path / "more.parquet", Trusting())
    prints = pq.read_table(tmp_path / "more.parquet").column("fingerprint").to_pylist()
    assert 1 < max(map(prints.count, prints)) <= 3


def test_interrupted_build_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    plan = Plan(count=25, seed=3, negatives=1)
    build(plan, whole / "pairs.parquet", Trusting(wrong="tl.exp"))
    for stop in (4, 9, 3, 20):
        with pytest.raises(KeyboardInterrupt):
            build(plan, parts / "pairs.parquet", Trusting(wrong="tl.exp", stop_after=stop))
        with (parts / "pairs.journal.jsonl").open("ab") as journal:
            journal.write(b'{"row": {"torn')
    last = Trusting(wrong="tl.exp")
    build(plan, parts / "pairs.parquet", last)
    assert last.seen < 60
    assert files(parts) == files(whole)
    assert set(files(parts)) == {"pairs.parquet", "pairs.drops.json", "pairs.negatives.parquet"}


def test_build_is_incomplete_if_the_files_hold_fewer_pairs_than_the_count(tmp_path: Path) -> None:
    build(Plan(count=4, families=("softmax",)), tmp_path / "four.parquet", Trusting())
    report = build(Plan(sources=(str(tmp_path / "four.parquet"),), count=9), tmp_path / "p.parquet", Trusting())
    assert (report.rows, report.complete) == (4, False)


def table_of(path: Path, **fields: object) -> Path:
    build(Plan(**{"count": 6, "families": ("softmax",), **fields}), path, Trusting())  # type: ignore[arg-type]
    return path


def test_build_reads_files_before_the_generator_in_any_order_of_sources(tmp_path: Path) -> None:
    table = str(table_of(tmp_path / "six.parquet"))
    outs = []
    for sources in (("generator", table), (table, "generator")):
        out = tmp_path / f"from_{sources.index('generator')}.parquet"
        plan = Plan(sources=sources, count=20, families=("softmax",))
        report = build(plan, out, Trusting(wrong="tl.sigmoid"))
        rows = pq.read_table(out).to_pylist()
        assert [one["repo_name"] != "kernel-coder" for one in rows[:6]] == [False] * 6
        assert len(rows) == 20
        assert sum(report.rows_by_source.values()) == 20
        assert set(report.rows_by_source) == {table, "generator"}
        record = json.loads(out.with_suffix(".drops.json").read_text())
        assert record["rows_by_source"] == report.rows_by_source
        assert {drop["source"] for drop in record["drops"]} == {table, "generator"}
        assert {line["source"] for line in record["drop_table"]} == {table, "generator"}
        assert sum(line["count"] for line in record["drop_table"]) == len(record["drops"])
        outs.append(report.content_hash)
    assert outs[0] == outs[1]


def test_pairs_from_a_file_are_not_generated_again(tmp_path: Path) -> None:
    table = str(table_of(tmp_path / "six.parquet"))
    report = build(
        Plan(sources=("generator", table), count=20, families=("softmax",)), tmp_path / "p.parquet", Trusting()
    )
    prints = pq.read_table(tmp_path / "p.parquet").column("fingerprint").to_pylist()
    assert len(set(prints)) == 20
    again = [drop for drop in report.drops if (drop["source"], drop["stage"]) == ("generator", "duplicate")]
    assert len(again) >= 6


def test_interrupted_build_of_files_and_the_generator_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    plan = Plan(sources=(str(table_of(tmp_path / "six.parquet")), "generator"), count=20, negatives=1)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    build(plan, whole / "p.parquet", Trusting(wrong="tl.exp"))
    for stop in (3, 5, 6):
        with pytest.raises(KeyboardInterrupt):
            build(plan, parts / "p.parquet", Trusting(wrong="tl.exp", stop_after=stop))
    build(plan, parts / "p.parquet", Trusting(wrong="tl.exp"))
    assert files(parts) == files(whole)


def test_file_that_is_not_a_task_is_dropped_with_a_reason(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    module = generate(5, "softmax", 0).task
    (folder / "good.py").write_text(module.reference)
    (folder / "good_new.py").write_text(module.solution or "")
    (folder / "bad.py").write_text("class Model(:")
    report = build(Plan(sources=(str(folder),)), tmp_path / "p.parquet", Trusting())
    assert (report.rows, report.attempts) == (1, 2)
    assert report.drops == [
        {
            "id": "m/bad.py row 1",
            "source": str(folder),
            "stage": "file",
            "reason": "the reference does not parse: invalid syntax (line 1)",
        }
    ]


def test_a_journal_of_another_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build(Plan(count=9), tmp_path / "pairs.parquet", Trusting(stop_after=3))
    with pytest.raises(UsageError, match="journal of another plan"):
        build(Plan(count=10), tmp_path / "pairs.parquet", Trusting())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "the generator has no end"),
        ({"count": 0}, "--count must be at least 1; got 0"),
        ({"count": 1, "families": ("relu",)}, "--families must be among"),
        ({"count": 1, "families": ("distance",)}, "is a held-out family"),
        ({"count": 1, "levels": (7,)}, "--levels must be among 0, 1, 2, 3, 4; got 7"),
        ({"sources": ("generator", "folder")}, "the generator has no end"),
        ({"sources": ()}, "--from names no source"),
        ({"count": 1, "max_elements": 0}, "--max-elements must be at least 1; got 0"),
    ],
)
def test_mistakes_in_a_plan_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Plan(**fields)  # type: ignore[arg-type]


def test_held_out_rows_are_built_when_their_split_is_named(tmp_path: Path) -> None:
    build(Plan(count=20, splits=("heldout_family",)), tmp_path / "family.parquet", Trusting())
    families = pq.read_table(tmp_path / "family.parquet").column("family").to_pylist()
    assert set(families) == {"normalize", "distance", "conv1d"}
    build(Plan(count=20, splits=("heldout_composition",)), tmp_path / "composition.parquet", Trusting())
    sides = pq.read_table(tmp_path / "composition.parquet").column("split").to_pylist()
    assert set(sides) == {"heldout_composition"}


MODULES = {
    "1_scaled_tanh.py": "class Model(nn.Module):\n    def forward(self, x):\n        return torch.tanh(x) * 3 + x\n",
    "2_row_power.py": "class Model(nn.Module):\n    def __init__(self, eps):\n        super().__init__()\n"
    "        self.eps = eps\n    def forward(self, x):\n"
    "        return x / (x.pow(2).sum(-1, keepdim=True) + self.eps)\n",
    "3_only_a_library_call.py": "class Model(nn.Module):\n    def forward(self, x):\n        return x @ x.T\n",
    "4_same_as_one.py": "class Model(nn.Module):\n    def forward(self, y):\n        return torch.tanh(y) * 5 + y\n",
    "6_as_people_write.py": 'class Model(nn.Module):\n    """A small network."""\n    def __init__(self):\n'
    "        super(Model, self).__init__()\n"
    "        self.net = nn.Sequential(nn.Linear(33, 8), nn.ReLU(), nn.Linear(8, 5))\n"
    "    def forward(\n        self,\n        x: torch.Tensor,  # rows\n    ) -> torch.Tensor:\n"
    "        # all of it\n        return self.net(x) * 2\n",
    "7_says_nothing.py": "class Model(nn.Module):\n    def forward(self, x):\n        return torch.relu(x * 0 - 2)\n",
    "5_broken.py": "class Model(nn.Module):\n    def forward(self, x):\n        return torch.no_such_thing(x)\n",
}


KEPT = ("1_scaled_tanh", "2_row_power", "6_as_people_write")


def kernelbench_like(folder: Path) -> Path:
    folder.mkdir()
    for name, body in MODULES.items():
        init = "[1.0]" if "eps" in body else "[]"
        (folder / name).write_text(
            "import torch\nimport torch.nn as nn\n\n"
            f"{body}\nn = 12\n\ndef get_inputs():\n    return [torch.randn(n, 33)]\n\n"
            f"def get_init_inputs():\n    return {init}\n"
        )
    return folder


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "kernel_coder.data", "build", *map(str, arguments)]


@pytest.mark.long
@pytest.mark.slow
def test_folder_of_modules_is_built_with_inductor_and_the_interpreter(tmp_path: Path) -> None:
    folder, out = kernelbench_like(tmp_path / "modules"), tmp_path / "pairs.parquet"
    run = subprocess.run(command("--from", folder, "--out", out), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    rows = pq.read_table(out).to_pylist()
    assert [one["repo_name"] for one in rows] == [f"modules/{n}.py" for n in KEPT]
    assert all("async_compile" in one["original_triton_code"] for one in rows)
    assert all("class ModelNew(nn.Module)" in one["triton_code"] for one in rows)
    drops = {
        d["id"]: (d["stage"], d["reason"]) for d in json.loads((tmp_path / "pairs.drops.json").read_text())["drops"]
    }
    assert drops["modules/3_only_a_library_call"][0] == "inductor"
    assert drops["modules/4_same_as_one"][0] == "duplicate"
    assert "no_such_thing" in drops["modules/5_broken"][1]
    assert drops["modules/7_says_nothing"] == ("verification", "the module's outputs are the same for other inputs")
    assert "super().__init__()" in rows[2]["triton_code"]
    assert "self.net[0].weight" in rows[2]["triton_code"]
    assert "3 pairs of 7 attempts (4 dropped)" in run.stdout


def sized(body: str, sizes: str, inputs: str, init: str = "[]") -> str:
    return (
        f"import torch\nimport torch.nn as nn\n\n{body}\n{sizes}\n\ndef get_inputs():\n    return [{inputs}]\n\n"
        f"def get_init_inputs():\n    return {init}\n"
    )


@pytest.mark.long  # test_sizes.py and the test above check more details and are faster
@pytest.mark.slow
def test_one_command_builds_pairs_from_gpu_sized_modules_and_the_generator(tmp_path: Path) -> None:
    folder, out = tmp_path / "modules", tmp_path / "pairs.parquet"
    folder.mkdir()
    plain = "class Model(nn.Module):\n    def forward(self, x):\n        return torch.tanh(x) * 3 + x\n"
    (folder / "1_plain.py").write_text(
        sized(plain, "batch, dim = 4096, 32768", "torch.rand(batch, dim)")  # half a gigabyte
    )
    conv = (
        "class Model(nn.Module):\n    def __init__(self, inner, outer):\n        super().__init__()\n"
        "        self.conv = nn.Conv2d(inner, outer, 3)\n        self.norm = nn.GroupNorm(8, outer)\n"
        "    def forward(self, x):\n        return self.norm(torch.relu(self.conv(x)) - 0.5)\n"
    )
    (folder / "2_conv.py").write_text(
        sized(conv, "size = 256", "torch.rand(128, 16, size, size)", "[16, 64]")  # eight gigabytes
    )
    arguments = ("--from", "generator", folder, "--count", 12, "--families", "elementwise", "--out", out)
    started = time.monotonic()
    unfolded = {**os.environ, "COLUMNS": "1000"}
    run = subprocess.run(command(*arguments), capture_output=True, text=True, check=False, env=unfolded)
    assert run.returncode == 0, run.stdout + run.stderr
    assert time.monotonic() - started < 120
    rows = pq.read_table(out).to_pylist()
    assert [one["family"] for one in rows] == [None] * 2 + ["elementwise"] * 10
    assert "4096, 32768" not in rows[0]["python_code"]
    (written,) = load_tasks(out)[0].reference.split("batch, dim = ")[1].splitlines()[:1]
    batch, dim = map(int, written.split(","))
    assert 2048 < batch * dim <= 16384
    assert f"({batch}, {dim})" in rows[0]["triton_code"]
    assert "GroupNorm(8, outer)" in rows[1]["python_code"]
    assert f"2 from {folder}" in run.stdout
    assert "10 from generator" in run.stdout


@pytest.mark.long
@pytest.mark.slow
def test_killed_command_continues_when_run_again(tmp_path: Path) -> None:
    arguments = ("--count", 24, "--families", "elementwise", "broadcast", "--out")
    alone = ("--workers", 1)  # the result does not depend on the number of workers
    subprocess.run(command(*arguments, tmp_path / "whole" / "p.parquet", *alone), check=True, capture_output=True)
    parts = tmp_path / "parts" / "p.parquet"
    process = subprocess.Popen(command(*arguments, parts), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    journal = parts.with_suffix(".journal.jsonl")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (journal.exists() and journal.read_bytes().count(b"\n") > 5):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process = subprocess.Popen(
        command(*arguments, parts),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs of a shell ignore SIGINT
    )
    begun = journal.read_bytes().count(b"\n")
    while time.monotonic() < deadline and journal.read_bytes().count(b"\n") <= begun:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    assert process.returncode == 75
    assert said.strip().splitlines()[-1] == "stopped; the same command continues"
    assert "Traceback" not in said
    assert not parts.exists()
    assert journal.exists()
    subprocess.run(command(*arguments, parts, *alone), check=True, capture_output=True)
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


def test_mistake_on_the_command_line_prints_one_line(tmp_path: Path) -> None:
    run = subprocess.run(
        command("--out", tmp_path / "p.csv", "--count", 1), capture_output=True, text=True, check=False
    )
    assert run.returncode == 2
    assert run.stderr.strip().splitlines()[-1] == f"error: --out must end in .parquet; got {tmp_path / 'p.csv'}"


def test_kernelbench_modules_are_recognised_without_a_copy_of_kernelbench(tmp_path: Path) -> None:
    known = kernelbench_fingerprints()
    assert len(known) > 200
    assert "level1/19_ReLU" in known.values()
    if KERNELBENCH is not None:
        assert kernelbench_listing(KERNELBENCH) == (
            Path(build.__code__.co_filename).with_name("kernelbench_fingerprints.txt").read_text()
        )
    relu = "class Model(nn.Module):\n    def forward(self, x):\n        return torch.relu(x)\n"
    folder = tmp_path / "m"
    folder.mkdir()
    helpers = "def get_inputs(): return [torch.rand(4)]\ndef get_init_inputs(): return []\n"
    (folder / "a.py").write_text("import torch\nimport torch.nn as nn\n" + relu + helpers)
    report = build(Plan(sources=(str(folder),)), tmp_path / "p.parquet", Trusting())
    assert report.drops[0]["reason"] == "it is KernelBench's level1/19_ReLU"


def test_verifier_none_marks_pairs_as_not_run_and_is_only_for_the_generator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pairs.parquet"
    flags = ["build", "--families", "repository", "--count", "8", "--verifier", "none", "--workers", "1"]
    assert main([*flags, "--out", str(out)]) == 0
    rows = pq.read_table(out).to_pylist()
    assert len(rows) == 8
    assert not any(row["verified"] for row in rows)
    assert {row["verifier"] for row in rows} == {"not run"}
    for more in (["--negatives", "2"], ["--from", str(tmp_path), "generator"]):
        capsys.readouterr()
        assert main([*flags, "--out", str(tmp_path / "other.parquet"), *more]) == 2
        assert "--verifier none is only for the generator's right answers" in capsys.readouterr().err
