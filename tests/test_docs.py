"""The documents are up to date: figures come from result files, and names, paths and links exist."""

from __future__ import annotations

import doctest
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "python" / "kernel_coder"
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md")
PAGES = sorted(
    [*(ROOT / name for name in TOP), *(ROOT / "docs").rglob("*.md")], key=lambda path: path.relative_to(ROOT).as_posix()
)
#: Commands of past runs. They name files that may be gone.
OF_ITS_TIME = ROOT / "docs" / "experiments.md"
FOLDERS = ("python", "tests", "benchmarks", "configs", "docs", "notebooks", "examples", "csrc", "cmake", ".ci")


@pytest.fixture(params=PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def page(request: pytest.FixtureRequest) -> Path:
    return request.param


def of_benchmarks(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module(name)


def test_the_page_of_figures_is_made_from_the_result_files(monkeypatch: pytest.MonkeyPatch) -> None:
    made = of_benchmarks("make_page", monkeypatch).page()
    assert made == (ROOT / "docs" / "benchmarks.md").read_text(), "run: python benchmarks/make_page.py"


def test_the_figures_are_drawn_from_the_result_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, draw in of_benchmarks("make_figures", monkeypatch).FIGURES.items():
        assert draw() == (ROOT / "docs" / "images" / name).read_text(), "run: python benchmarks/make_figures.py"


def numbers(text: str) -> set[str]:
    """
    >>> sorted(numbers("53.9% (+15.2 to 25.0), two of 96"))
    ['15.2', '25', '53.9', '96']
    """
    return {found.removesuffix(".0") for found in re.findall(r"\d+(?:\.\d+)?", text)}


def test_every_share_in_the_results_of_the_readme_is_on_the_page_of_figures() -> None:
    readme = (ROOT / "README.md").read_text()
    runs, kernelbench = readme[readme.index("## Results") :].split("\n\n")[1:3]
    cells = [cell for row in runs.splitlines()[2:] for cell in row.split("|")[3:5]]
    cells += kernelbench.splitlines()[2].split("|")[2:4]
    assert len(cells) == 8
    assert numbers(" ".join(cells)) <= numbers((ROOT / "docs" / "benchmarks.md").read_text())


def test_lines_have_at_most_120_characters(page: Path) -> None:
    code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        code ^= line.startswith("```")
        if not code and not line.startswith("|") and page.name not in ("benchmarks.md", "cuda_kernels.md"):
            assert len(line) <= 120, f"{page.name}:{number}"


def defined(module: Path, name: str) -> bool:
    """Whether a module's text defines or imports a name."""
    text = module.read_text()
    return (
        re.search(rf"^(?:class|def|async def) {name}\b|^{name}\b.*=|\b{name}\b,?$|\"{name}\"", text, re.MULTILINE)
        is not None
    )


def exists(dotted: str) -> bool:
    """Whether ``kernel_coder.a.b.c`` is a package, a module, or a name in one.

    >>> exists("kernel_coder.ops.grpo_loss"), exists("kernel_coder.judge.no_such_thing")
    (True, False)
    """
    place = PACKAGE
    for at, part in enumerate(parts := dotted.split(".")[1:]):
        if (place / part).is_dir():
            place = place / part
        elif (module := place / f"{part}.py").is_file():
            rest = parts[at + 1 :]
            return not rest or defined(module, rest[0])
        else:
            return part == "_C" or defined(place / "__init__.py", part)
    return True


def test_named_modules_and_files_exist(page: Path) -> None:
    text = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
    named = set(re.findall(r"\bkernel_coder(?:\.[A-Za-z_]\w*)+", text))
    missing = {name for name in named if not exists(name)}
    assert not missing
    if page == OF_ITS_TIME:
        return
    paths = set(
        re.findall(r"(?<![\w{<-])(?:\.\./)?(\w[\w.]*(?:/[\w.-]+)+\.(?:py|sh|yaml|jinja|csv|ipynb|h|cu)\b)", text)
    )
    ours = {path for path in paths if path.split("/")[0] in FOLDERS or (PACKAGE / path.split("/")[0]).is_dir()}
    assert not {path for path in ours if not (ROOT / path).exists() and not (PACKAGE / path).exists()}


def test_linked_files_and_sections_exist(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        path = page.parent / target if target else page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}
            assert anchor in slugs, f"{target}#{anchor}"


def test_navigation_of_the_site_names_every_page_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    named = re.findall(r": ([\w/]+\.md)$", text[text.index("\nnav:") :], re.MULTILINE)
    made = {"index.md", "changelog.md", "contributing.md"}
    assert sorted(named) == sorted(
        [*made, *(path.relative_to(ROOT / "docs").as_posix() for path in PAGES if path.is_relative_to(ROOT / "docs"))]
    )


def test_doctests_of_the_documentation_scripts_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "griffe", SimpleNamespace(Extension=object, Object=object))  # not installed here
    monkeypatch.syspath_prepend(str(ROOT / "site"))
    scripts = [importlib.import_module("docstrings"), sys.modules[__name__]]
    scripts += [of_benchmarks(name, monkeypatch) for name in ("make_page", "make_figures")]
    for script in scripts:
        result = doctest.testmod(script)
        assert result.attempted
        assert not result.failed
