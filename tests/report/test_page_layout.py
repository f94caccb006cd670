"""No page scrolls sideways, on a telephone or on a desk, light or dark, and all pages show readable names.

With ``KC_SCREENSHOTS=FOLDER`` a picture of every page is written there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import LAYOUT, Browser, program
from kernel_coder.evaluate.answers import Answer, Request
from kernel_coder.evaluate.config import EvaluateConfig
from kernel_coder.evaluate.report import Results
from kernel_coder.evaluate.report import html as evaluation_page
from kernel_coder.evaluate.store import Sample
from kernel_coder.judge import example_verdict
from kernel_coder.loop.config import LoopConfig
from kernel_coder.loop.report import Round, write_report
from kernel_coder.prompts import Message
from kernel_coder.refine.compare import STRATEGIES, CompareConfig, points, write_results
from kernel_coder.refine.config import RefineConfig
from kernel_coder.refine.report import html as search_page
from kernel_coder.refine.trajectory import Attempt, Trajectory
from kernel_coder.report.folder import read_run
from kernel_coder.report.page import html as run_page
from kernel_coder.tasks import Task
from run_folders import SFT_CONFIG, healthy, sft_metrics, write_run

WIDTHS = (400, 1280)
SCHEMES = ("light", "dark")
CODE = "class ModelNew(nn.Module):\n    " + "x = torch.relu(x) + " * 30 + "x\n"
LONG = "output has wrong values: 2066 of 4096 elements (50.4%) differ by more than atol + rtol * |expected| " * 3


def evaluation() -> str:
    """A page with long names, several outcomes and one model at the end of a long path."""
    model = "runs/a-very-long-name-of-a-run/checkpoint-00000400"
    config = EvaluateConfig(model=model, tasks="kernelbench:level1,level2", samples=8, device="cpu")
    names = (
        "Model/15967372084125",
        "level1/19_ConvTranspose2D_Subtract_GlobalAvgPool_LogSumExp_Sum_Multiply",
        "Swish/7",
    )
    tasks = [Task(id=name, source="test", reference="class Model: ...") for name in names]
    outcomes = ("correct", "wrong_output", "compile_error", "format_error", "timeout", "rejected", "crashed", "correct")
    samples, verdicts = {}, {}
    for task in tasks:
        for number, outcome in enumerate(outcomes):
            request = Request(task, number, (Message(role="user", content=CODE),), seed=number)
            samples[task.id, number] = Sample.of(request, Answer(f"```python\n{CODE}```", "stop", 100, 200))
            more = {"speedup": 1234.5} if outcome == "correct" else {"reason": LONG, "feedback": LONG}
            verdicts[task.id, number] = example_verdict(outcome, task=task.id, **more)
    return evaluation_page(Results(config, tasks, samples, verdicts))


def search(folder: Path, *, found: bool) -> str:
    """The page of a search with or without a correct kernel."""
    config = RefineConfig(module=str(folder / "a_module_with_a_long_name.py"), model="nano")
    task = Task(id="a_module_with_a_long_name", source="test", reference=CODE)
    with Trajectory(folder / str(found), "hash") as trajectory:
        for number, outcome in enumerate(("wrong_output", "correct" if found else "compile_error", "timeout")):
            attempt = Attempt(number + 1, 0, (Message(role="user", content=CODE),), CODE, CODE, None, 99, 1.0)
            trajectory.add(attempt)
            more = {"speedup": 1.5} if outcome == "correct" else {"reason": LONG, "feedback": LONG}
            trajectory.judged(attempt, example_verdict(outcome, task=task.id, **more))
        return search_page(config, task, trajectory, "the budget of 3 answers is spent")


def evolution(folder: Path) -> str:
    """The page of an evolution, with an archive and answers that were derived from parents."""
    config = RefineConfig(module=str(folder / "module.py"), model="nano", strategy="evolve", evaluations=8)
    task = Task(id="module", source="test", reference=CODE)
    with Trajectory(folder / "evolution", "hash") as trajectory:
        for turn in range(1, 5):
            for sample in range(2):
                parents = ((turn - 1, sample),) if turn > 1 else ()
                prompt = (Message(role="user", content=CODE),)
                code = CODE.replace("x = ", f"x{turn} = ")
                attempt = Attempt(turn, sample, prompt, code, code, None, 99, 1.0, parents=parents)
                trajectory.add(attempt)
                more = {"speedup": 0.5 + turn / 4, "speedup_low": 0.4 + turn / 4}
                trajectory.judged(attempt, example_verdict("correct", task=task.id, **more))
        return search_page(config, task, trajectory, "the budget of 8 evaluations is spent")


def comparison(folder: Path) -> str:
    """The page that compares four strategies."""
    curve = [
        {"solved": n / 9, "solved_low": n / 18, "solved_high": 1.0, "speedup": 1 + n, "speedup_low": 1.0}
        | {"speedup_high": 2.0 + n, "evaluations": count}
        for n, count in enumerate(points(64))
    ]
    strategies = {
        name: {"tasks": 20, "searches": 60, "answers": 3840, "candidates": 3000, "tokens": 1234567, "curve": curve}
        for name in STRATEGIES
    }
    config = CompareConfig(
        strategies=tuple(STRATEGIES),
        tasks="packaged:heldout",
        limit=20,
        evaluations=64,
        seeds=(0, 1, 2),
        output=folder,
        search=RefineConfig(module="module.py", model="nano"),
    )
    summary = {"model": "nano", "tasks": config.tasks, "evaluations": 64, "seeds": [0, 1, 2], "strategies": strategies}
    write_results(config, summary)
    return (folder / "report.html").read_text(encoding="utf-8")


def loop(folder: Path) -> str:
    """The page over the rounds of a loop."""
    facts = {"pass": {"1": [0.5, 0.4, 0.6], "8": [0.9, 0.8, 1.0]}, "different": 0.4, "different_correct": 3.2}
    rounds = [
        Round(
            number,
            rl={"answers": 960, "correct": 500, "different": 400, "seconds": 300.0} if number else None,
            keep={"kept": 200, "correct": 500, "thinking": 120.0, "seconds": 1.0} if number else None,
            sft={"seconds": 100.0} if number else None,
            evaluate={**facts, "speedup": [1.5, 1.2, 1.9], "seconds": 60.0},
        )
        for number in range(4)
    ]
    write_report(folder, LoopConfig(), rounds)
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name in ("search", "comparison", "loop"):
        (folder / name).mkdir()
    supervised = write_run(folder / "sft", [sft_metrics(step) for step in range(1, 41)], config=SFT_CONFIG)
    texts = {
        "evaluation": evaluation(),
        "search_found": search(folder / "search", found=True),
        "search_nothing": search(folder / "search", found=False),
        "evolution": evolution(folder / "search"),
        "comparison": comparison(folder / "comparison"),
        "loop": loop(folder / "loop"),
        "training": run_page(read_run(healthy(folder / "run"), 50)),
        "supervised": run_page(read_run(supervised, 50)),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = program()
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI checks the layout of pages, and has no browser: apt-get install chromium")
        pytest.skip("no browser is installed (apt-get install chromium)")
    with Browser(path) as opened:
        yield opened


NAMES = (
    *("evaluation", "search_found", "search_nothing", "evolution"),
    *("comparison", "loop", "training", "supervised"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_page_scrolls_sideways(browser: Browser, pages: dict[str, Path], name: str, width: int, scheme: str) -> None:
    browser.open(pages[name], width, scheme)
    # Open every answer and every fold, as a reader may.
    browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    browser.evaluate("document.querySelectorAll('td button').forEach(one => one.click())")
    found = browser.evaluate(LAYOUT)
    if folder := os.environ.get("KC_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.open(pages[name], width, scheme)
        browser.screenshot(Path(folder) / f"{name}-{width}-{scheme}.png")
    assert found["width"] == width
    assert found["scroll"] <= width, found["outside"]
    assert found["outside"] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_text_colour_differs_between_dark_and_light_pages(browser: Browser, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name], 1280, "dark")
    dark = browser.evaluate(LAYOUT)["color"]
    browser.open(pages[name], 1280, "light")
    light = browser.evaluate(LAYOUT)["color"]
    assert dark != light


@pytest.mark.slow
def test_tasks_are_shown_by_readable_names(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["evaluation"], 1280, "light")
    shown = browser.evaluate("[...document.querySelectorAll('#tasks td button')].map(one => one.textContent)")
    assert [name[:12] for name in shown] == ["Model", "level1/19_Co", "Swish/7"]
    assert "–" not in browser.evaluate("document.querySelector('table').innerText")


@pytest.mark.slow
def test_a_search_without_a_kernel_has_no_chart(browser: Browser, pages: dict[str, Path]) -> None:
    count = "document.querySelectorAll('svg').length"
    browser.open(pages["search_nothing"], 1280, "light")
    assert browser.evaluate(count) == 0
    browser.open(pages["search_found"], 1280, "light")
    assert browser.evaluate(count) == 1
