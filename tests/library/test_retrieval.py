"""Verified kernels as examples in prompts: nearest last, and never the answer in an evaluation."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from kernel_coder.judge import Verdict
from kernel_coder.library import Library, examples_for
from kernel_coder.prompts import Example, build_messages
from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks import Task
from verified import RELU, RELU_KERNEL, SCALE, SCALE_KERNEL, made_task, verdict_on

sys.path.insert(0, str(Path(__file__).parents[1] / "evaluate"))  # the stand-ins for a model and a judge

from kernel_coder.evaluate.config import EvaluateConfig
from kernel_coder.evaluate.run import evaluate
from kernel_coder.refine.__main__ import main as refine
from pretend import PretendJudge, PretendModel, said, write_tasks


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A library with kernels for relu_mul, for a task near it, and for scale."""
    found = tmp_path / "library.sqlite"
    with Library(found) as library:
        near = made_task("near", RELU.replace("torch.relu(x)", "torch.relu(x) + 1.0"))
        for task, source in (
            (made_task(), RELU_KERNEL),
            (near, RELU_KERNEL + "# near"),
            (made_task("scale", SCALE, "Scale"), SCALE_KERNEL),
        ):
            library.add(task, source, verdict_on(source, task))
    return found


def test_the_nearest_example_stands_next_to_the_task(path: Path) -> None:
    with Library(path) as library:
        shown = examples_for(library, made_task(), 2, same=False)
        assert [one.solution for one in shown] == [SCALE_KERNEL, RELU_KERNEL + "# near"]
        assert examples_for(library, made_task(), 1, same=True) == [Example(RELU, RELU_KERNEL)]
        assert examples_for(library, made_task(), 0, same=True) == []
    for template in ("kernel_coder", "kernelbench", "nano"):
        content = build_messages(made_task(), template, examples=shown)[-1]["content"]
        places = [content.index(text.strip()) for text in (SCALE, SCALE_KERNEL, shown[1].solution)]
        assert places == sorted(places)
        assert content.index(shown[1].solution) < content.rindex(RELU.strip())
        assert content.count("Now the module that you are asked to rewrite.") == (template == "kernel_coder")


def test_a_fence_is_longer_than_any_run_of_backticks_in_an_example() -> None:
    messages = build_messages(made_task(), examples=[Example("'''```'''", "x = '`````'")])
    assert "``````python" in messages[-1]["content"]


def test_the_packaged_example_comes_before_those_of_the_library() -> None:
    content = build_messages(made_task(), one_shot=True, examples=[Example("first = 1", "second = 2")])[-1]["content"]
    assert 0 < content.index("add_kernel") < content.index("first = 1") < content.index("second = 2")


class HonestJudge(PretendJudge):
    """A judge whose verdicts have the hash of the source that they are about."""

    def verdict(self, task: Task, code: str) -> Verdict:
        return replace(super().verdict(task, code), candidate_hash=sha256_text(code))


def test_an_evaluation_shows_other_tasks_and_adds_its_correct_kernels(path: Path, tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "relu.py").write_text(RELU)
    shown = []

    def answer(request: object) -> str:
        shown.append(request.messages[-1]["content"])  # type: ignore[attr-defined]
        return said("correct", 2.0)

    values = {"model": "tiny", "tasks": str(tmp_path / "tasks"), "output": str(tmp_path / "out"), "device": "cpu"}
    config = EvaluateConfig(**values, examples=1, library=str(path), to_library=True)
    evaluate(config, make_model=PretendModel(answer), make_judge=HonestJudge())
    assert len(shown) == 1
    assert RELU_KERNEL + "# near" in shown[0]
    with Library(path) as library:
        added = library.search()[0]  # a reference keeps the id under which it was added first
    assert (added.origin, added.verdict.speedup) == (str(tmp_path / "out"), 2.0)


def test_a_search_may_show_the_task_s_own_kernel(path: Path, tmp_path: Path) -> None:
    module = write_tasks(tmp_path / "tasks", 1) / "1_scale.py"
    module.write_text(RELU)
    shown = []

    def answer(request: object) -> str:
        shown.append(request.messages[-1]["content"])  # type: ignore[attr-defined]
        return said("correct", 2.0)

    class Model(PretendModel):
        def answer(self, requests, poll):  # type: ignore[no-untyped-def]
            for request in requests:
                yield request, self._answer(request)

        def _answer(self, request):  # type: ignore[no-untyped-def]
            from kernel_coder.evaluate.answers import Answer

            return Answer(self.text(request), "stop", 10, 20)

    flags = ["--output", str(tmp_path / "out"), "--device", "cpu", "--turns", "1", "--judge.workers", "1"]
    flags += ["--library", str(path), "--examples", "1"]
    assert refine([str(module), *flags], make_model=Model(answer), make_judge=HonestJudge()) == 0
    assert RELU_KERNEL.strip() in shown[0]
    with Library(path) as library:
        assert len(library) == 3  # without --to-library nothing is added
