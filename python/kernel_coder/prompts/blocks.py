"""Templates: text in Jinja blocks, each of which becomes one message."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from jinja2 import Environment, StrictUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Message(TypedDict):
    """One message of a conversation, as chat templates take it."""

    role: str
    content: str


@dataclass(frozen=True)
class TemplateKind:
    """What a template is for: where those that come with Kernel Coder lie, and which blocks one may have.

    Attributes:
        name: what messages call it: ``prompt template``.
        folder: of the packaged ones.
        roles: the blocks, in the order of their messages; ``user`` is one of them, and needed.
    """

    name: str
    folder: Path
    roles: tuple[str, ...]

    def names(self) -> list[str]:
        """The packaged ones."""
        return sorted(path.stem for path in self.folder.glob("*.jinja"))

    def load(self, template: str | Path) -> Template:
        """The packaged template of that name, or the file; ValueError unless it is a template of this kind."""
        known = self.names()
        path = self.folder / f"{template}.jinja" if str(template) in known else Path(template).expanduser()
        try:
            source = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{self.name} {template} is neither one of {', '.join(known)} nor a file that can be read"
            ) from error
        return _compiled(source, str(template), self)

    def fill(self, template: str | Path, values: Mapping[str, Any], what: str = "") -> list[Message]:
        """A message for each block that is there and gives any text; ``what`` says in an error what it was for."""
        loaded = self.load(template)
        there = {role: loaded.blocks[role] for role in self.roles if role in loaded.blocks}
        try:
            texts = {role: "".join(block(loaded.new_context(dict(values)))) for role, block in there.items()}
        except TemplateError as error:
            raise ValueError(f"{self.name} {template} cannot be filled in{what}: {error}") from error
        return [Message(role=role, content=plain_text(text.strip())) for role, text in texts.items() if text.strip()]


@cache
def _compiled(source: str, name: str, kind: TemplateKind) -> Template:
    try:
        compiled = _environment().from_string(source)
    except TemplateError as error:
        raise ValueError(f"{kind.name} {name} is not a Jinja template: {error}") from error
    if "user" not in compiled.blocks or set(compiled.blocks) - set(kind.roles):
        others = " and ".join(role for role in kind.roles if role != "user")
        found = f"it has {', '.join(sorted(compiled.blocks))}" if compiled.blocks else "it has none"
        raise ValueError(f"{kind.name} {name} needs a block user, and otherwise only {others}; {found}")
    return compiled


@cache
def _environment() -> Environment:
    # A template can come from anyone; the sandbox keeps it from reaching beyond the values that it is given.
    return ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, newline_sequence="\n", autoescape=False
    )


def plain_text(text: str) -> str:
    """One kind of line end, and none around the whole."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip("\n")


def fence_for(text: str) -> str:
    """A fence that the text cannot close: at least three backticks, one more than the longest run in it.

    >>> fence_for("x = 1"), fence_for("'''```'''")
    ('```', '````')
    """
    return "`" * max(3, 1 + max((len(run) for run in re.findall("`{3,}", text)), default=0))
