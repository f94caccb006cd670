"""Hooks of the documentation site: pages from files outside docs/, and links to such files.

README.md becomes the front page; CHANGELOG.md and CONTRIBUTING.md become pages. A link to another file of the
repository points to the hosted repository, if mkdocs.yml has a ``repo_url``, and is plain text otherwise. A link to a
file that does not exist is a warning, which ``mkdocs build --strict`` turns into an error.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = {"index.md": "README.md", "changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
log = logging.getLogger("mkdocs.hooks")


def titles(entries: list[Any]) -> dict[str, str]:
    """Title of each page that ``nav`` in mkdocs.yml lists."""
    found: dict[str, str] = {}
    for entry in entries:
        for title, below in entry.items():
            found |= titles(below) if isinstance(below, list) else {below: title}
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    name = page.file.src_uri
    source = ROOT / PAGES[name] if name in PAGES else ROOT / "docs" / name

    def rewrite(found: re.Match[str]) -> str:
        image, words, target, anchor = found[1], found[2], found[3], found[4] or ""
        path = Path(os.path.normpath(source.parent / target))
        if not path.exists():
            log.warning("%s links to %s, which does not exist", source.relative_to(ROOT), target)
            return found[0]
        inside = path.relative_to(ROOT).as_posix()
        for virtual, origin in PAGES.items():
            if inside == origin:
                inside = f"docs/{virtual}"
        if inside.startswith("docs/"):
            start = (Path("docs") / name).parent
            if words.endswith(".md"):  # a path, which says more in the repository than on the site
                words = titles(config.nav or []).get(inside.removeprefix("docs/"), words)
            return f"{image}[{words}]({os.path.relpath(inside, start)}{anchor})"
        return f"[{words}]({config.repo_url.rstrip('/')}/blob/main/{inside})" if config.repo_url else words

    return LINK.sub(rewrite, markdown)
