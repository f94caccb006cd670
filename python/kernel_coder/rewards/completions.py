"""Completions in the two forms that TRL passes: text, or messages of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Completion = str | Sequence[Mapping[str, Any]]
"""Text, or the messages of a conversation."""


def completion_text(completion: Completion) -> str:
    """Return the text of a completion: the string itself, or the content of the assistant's last message.

    >>> completion_text([{"role": "assistant", "content": "first"}, {"role": "assistant", "content": "last"}])
    'last'
    >>> completion_text([{"role": "tool", "content": "42"}])
    ''
    """
    if isinstance(completion, str):
        return completion
    for message in reversed(completion):
        if message.get("role", "assistant") == "assistant":
            content = message.get("content")
            if content is None or isinstance(content, str):  # None: the message only calls a tool
                return content or ""
            return "".join(part.get("text", "") for part in content)
    return ""
