"""Templates: Jinja files in which each block becomes one message."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from jinja2 import Environment, StrictUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kernel_coder.prompts.bare import bare


class Message(TypedDict):
    """One message of a conversation, in the form that chat templates expect."""

    role: str
    content: str


@dataclass(frozen=True)
class TemplateKind:
    """A kind of template: its packaged files and its blocks.

    Attributes:
        name: its name in error messages, such as ``prompt template``.
        folder: holds the packaged templates.
        roles: the allowed blocks, in the order of their messages; ``user`` is required.
    """

    name: str
    folder: Path
    roles: tuple[str, ...]

    def names(self) -> list[str]:
        """Return the names of the packaged templates."""
        return sorted(path.stem for path in self.folder.glob("*.jinja"))

    def load(self, template: str | Path) -> Template:
        """Return the packaged template of this name, or the file. Raises ValueError if it is not a template of this
        kind."""
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
        """Return one message for each block whose text is not empty. ``what`` is appended to error messages."""
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
    # A template may be untrusted: the sandbox limits it to the values that it is given.
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, newline_sequence="\n", autoescape=False
    )
    environment.filters["bare"] = bare
    return environment


def plain_text(text: str) -> str:
    """Return the text with ``\\n`` as the only line end, and no line ends at its beginning and end."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip("\n")


def fence_for(text: str) -> str:
    """Return a Markdown fence that does not occur in the text: at least three backticks, and more than any run in it.

    >>> fence_for("x = 1"), fence_for("'''```'''")
    ('```', '````')
    """
    return "`" * max(3, 1 + max((len(run) for run in re.findall("`{3,}", text)), default=0))
