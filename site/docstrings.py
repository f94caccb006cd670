"""A Griffe extension: the few reStructuredText forms in docstrings become Markdown, which mkdocstrings renders."""

from __future__ import annotations

import re
from typing import Any

import griffe

RULE = re.compile(r"^ *=+( +=+)+ *$")
ROLE = re.compile(r":(?:mod|class|func|meth|attr|data|exc|obj):`~?([^`]+)`")
CODE = re.compile(r"(?<!`)``(?!`)([^`]+)``(?!`)")


def simple_table(lines: list[str]) -> list[str]:
    """The Markdown of a simple table, rules included; a row whose first column is empty or a dot goes on.

    >>> simple_table(["====  ====", "a     b", "====  ====", "1     2", ".     3", "====  ===="])
    ['| a | b |', '| --- | --- |', '| 1 | 2 3 |']
    """
    starts = [found.start() for found in re.finditer(r"=+", lines[0])]
    ends = [*starts[1:], None]
    rows: list[list[str]] = []
    for line in lines:
        if RULE.match(line) or not line.strip():
            continue
        cells = [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]
        if rows and cells[0] in ("", "."):
            # A further form of what the column lists begins with code: it gets a line of its own.
            rows[-1] = [f"{old}{'<br>' if new.startswith('``') else ' '}{new}" if new.strip(".") else old
                        for old, new in zip(rows[-1], cells, strict=True)]  # fmt: skip
        else:
            rows.append(cells)
    indent = " " * starts[0]
    rows.insert(1, ["---"] * len(starts))
    return [
        indent + "| " + " | ".join(cell if "`" in cell else cell.replace("|", "\\|") for cell in row) + " |"
        for row in rows
    ]


def to_markdown(text: str) -> str:
    """
    >>> to_markdown("see :mod:`kernel_coder.ops` and ``x``")
    'see `kernel_coder.ops` and `x`'
    """
    lines = text.split("\n")
    out: list[str] = []
    at = 0
    while at < len(lines):
        if RULE.match(lines[at]):
            rules = [i for i in range(at, len(lines)) if RULE.match(lines[i])][:3]
            if len(rules) == 3:
                out += simple_table(lines[at : rules[2] + 1])
                at = rules[2] + 1
                continue
        if lines[at].lstrip().startswith(">>>"):
            indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
            end = next((i for i in range(at, len(lines)) if not lines[i].strip()), len(lines))
            out += ["", f"{indent}```pycon", *lines[at:end], f"{indent}```"]
            at = end
            continue
        out.append(lines[at])
        at += 1
    return CODE.sub(r"`\1`", ROLE.sub(r"`\1`", "\n".join(out)))


class Docstrings(griffe.Extension):
    """Rewrites every docstring as it is collected."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
