"""The contents of a page, as a browser parses them."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

VOID = {"meta", "input", "br", "img"}

HOSTILE = (
    "</pre></script><script>alert(1)</script><img src=x onerror=alert(1)> \" ' & {{ 7 * 7 }} \x00\x1b[31m \u202e é"
)


class Page(HTMLParser):
    """Checks that tags are closed in order, and keeps the tags, the attributes and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.tags: list[str] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check_harmless(page: str) -> Page:
    """The page holds one script, its own, and nothing that loads or runs anything else."""
    parsed = Page(page)
    assert parsed.tags.count("script") == 1
    assert not {"link", "iframe", "img", "object", "form"} & set(parsed.tags)
    assert not any(name.startswith("on") for name, _ in parsed.attributes)
    links = [value for name, value in parsed.attributes if name in ("src", "href", "action", "xlink:href")]
    assert all(link is not None and link.startswith("#") for link in links)
    assert "\x00" not in page
    assert "\x1b" not in page
    assert not re.search(r"[\ud800-\udfff]", page)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(value for name, value in parsed.attributes if value and value.startswith("default-src"))
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return parsed
