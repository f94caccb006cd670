"""The README for a package index: links and pictures of the repository get absolute addresses.

A provider of dynamic metadata, which pyproject.toml names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
PICTURES = (".svg", ".png")


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """The field ``readme`` of the project: README.md of the current folder, as Markdown with absolute links."""
    text = with_absolute_links(Path("README.md").read_text("utf-8"), project["urls"]["Source"])
    return {"readme": {"content-type": "text/markdown", "text": text}}


def with_absolute_links(text: str, source: str, revision: str = "main") -> str:
    """Markdown whose relative links lead into the repository.

    Args:
        text: Markdown.
        source: address of the repository on GitHub.
        revision: branch, tag or commit.

    >>> with_absolute_links("[a](docs/a.md), ![b](b.svg), [c](https://c), [d](#d)", "https://github.com/o/n")
    '[a](https://github.com/o/n/blob/main/docs/a.md), ![b](https://raw.githubusercontent.com/o/n/main/b.svg), \
[c](https://c), [d](#d)'
    """
    raw = source.replace("https://github.com/", "https://raw.githubusercontent.com/")

    def absolute(match: re.Match[str]) -> str:
        target = match["target"]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        base = f"{raw}/{revision}" if target.endswith(PICTURES) else f"{source}/blob/{revision}"
        return f"{match['image']}[{match['text']}]({base}/{target})"

    return LINK.sub(absolute, text)
