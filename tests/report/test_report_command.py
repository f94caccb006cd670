"""The command: a page and plots beside the run, one sentence for every mistake, and real runs of both kinds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from html_page import check_harmless
from kernel_coder import cli
from kernel_coder.report import plots
from kernel_coder.report.__main__ import main
from run_folders import healthy, write_run

ROOT = Path(__file__).parents[2]


def test_page_and_plots_are_written_into_the_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = healthy(tmp_path / "run", 12)
    assert main([str(folder)]) == 0
    *lines, following = capsys.readouterr().out.splitlines()
    assert following.startswith("next: kernel-coder ")
    assert lines[-1] == str(folder / "report.html")
    for line in lines[:-1]:
        path = Path(line)
        assert path.parent == folder
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert path.stat().st_size < 300_000
    assert {Path(line).name for line in lines[:-1]} >= {"report-progress.png", "report-verdicts.png", "report-time.png"}


def test_flags_set_the_output_file_and_the_samples_and_skip_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = healthy(tmp_path / "run", 12)
    for step in (8, 12):
        (folder / f"checkpoint-{step:08d}").mkdir()
    assert main([str(folder), "--output", str(tmp_path / "x.html"), "--no-plots", "--samples=2"]) == 0
    following = f"next: kernel-coder evaluate --model {folder / 'checkpoint-00000012'}"
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / "x.html"), following]
    assert (tmp_path / "x.html").read_text().count('<details class="sample"') == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "x.html"]
    assert not list(folder.glob("*.png"))
    assert not (folder / "report.html").exists()


def test_page_is_written_without_matplotlib(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "is_available", lambda: False)
    folder = healthy(tmp_path / "run", 12)
    assert main([str(folder)]) == 0
    said, page, _ = capsys.readouterr().out.splitlines()
    assert said == "no PNG plots: matplotlib is not installed (pip install 'kernel-coder[report]', or --no-plots)"
    assert Path(page).is_file()


def test_mistakes_give_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str) -> str:
        assert main(list(arguments)) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        return error.removeprefix("error: ").strip()

    empty = tmp_path / "empty"
    empty.mkdir()
    run = write_run(tmp_path / "runs/one", [])
    assert said(str(tmp_path / "none")) == f"{tmp_path / 'none'} is not a folder"
    assert said(str(run / "metrics.jsonl")) == f"{run / 'metrics.jsonl'} is not a folder"
    assert said(str(empty)) == f"{empty} is not a run: it has no metrics.jsonl"
    assert said(str(run.parent)).endswith("; did you mean one of the runs in it: one?")
    (empty / "verdicts.jsonl").touch()
    assert said(str(empty)).endswith("; it is an evaluation, which has its own report.html")
    assert said(str(run), "--samples", "-1") == "--samples must be at least 0; got -1"
    assert said(str(run), "--samples", "many").startswith("--samples: invalid int value")
    assert said(str(run), "--no-plot") == "unknown argument --no-plot; did you mean --no-plots?"
    assert said(str(run), "--output", str(empty)) == f"--output {empty} is a folder; name a file"
    assert said(str(run), "--output", str(tmp_path / "a/b")).endswith("is in a folder that does not exist")
    assert "run" in said().lower()
    assert not (empty / "report.html").exists()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # runpy warns: the module is already imported
def test_report_is_a_command_of_kernel_coder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = healthy(tmp_path / "run", 12)
    monkeypatch.setattr(sys, "argv", [])
    assert cli.main(["report", str(folder), "--no-plots"]) == 0
    assert (folder / "report.html").is_file()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["train", "sft"])
def test_real_runs_have_a_page(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses files that the loops write today, not the fake files of the tests above."""
    import importlib

    monkeypatch.chdir(ROOT)
    command = importlib.import_module(f"kernel_coder.{kind}.__main__").main
    config = {"train": "configs/tiny.yaml", "sft": "configs/tiny-sft.yaml"}[kind]
    steps = {
        "--run.max_steps": "2",
        "--run.eval_steps": "2",
        "--eval.num_tasks": "2",
        "--eval.max_completion_length": "8",
    }
    if kind == "train":
        del steps["--eval.max_completion_length"]
        steps["--rollout.max_completion_length"] = "8"
    flags = [part for pair in steps.items() for part in pair]
    assert command(["--config", config, "--run.output_dir", str(tmp_path / "run"), *flags]) == 0
    assert main([str(tmp_path / "run"), "--no-plots"]) == 0
    page = (tmp_path / "run/report.html").read_text()
    check_harmless(page)
    assert "Finished at step 2 of 2." in page
    assert "Difference from the known solution" in page or kind == "sft"
