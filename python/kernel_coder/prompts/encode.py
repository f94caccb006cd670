"""Encodes messages as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernel_coder.prompts.blocks import Message

FIELD = "model.chat_template"
"""The config field that the error messages below name."""

PLAIN = "plain"
"""The value of a chat template that joins the messages without role marks."""


def encode_prompt(tokenizer: Any, messages: Sequence[Message], chat_template: str | Path | None = None) -> list[int]:
    """Return the token ids of the prompt, up to the point where the answer begins.

    Args:
        tokenizer: a transformers tokenizer, or an object with its ``apply_chat_template``, ``encode`` and
            ``chat_template``.
        messages: from :func:`kernel_coder.prompts.build_messages`. If the last one is the assistant's, the answer
            continues it.
        chat_template: ``None``: the tokenizer's own. ``"plain"``: the messages' contents without role marks, after the
            tokenizer's beginning-of-sequence token if it has one. Otherwise a Jinja chat template or its file.

    Raises:
        ValueError: ``messages`` is empty, there is no chat template, or the template refuses the messages.
    """
    text = render_prompt(tokenizer, messages, chat_template)
    return begin_of_prompt(tokenizer, chat_template) + encode_text(tokenizer, text)


def begin_of_prompt(tokenizer: Any, chat_template: str | Path | None = None) -> list[int]:
    """Return the token ids before the text of a prompt: with ``"plain"``, the beginning-of-sequence token, if any."""
    bos = getattr(tokenizer, "bos_token_id", None) if chat_template == PLAIN else None
    return [] if bos is None else [int(bos)]


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of a text from a chat template, which already contains the special tokens."""
    return [int(i) for i in tokenizer.encode(text, add_special_tokens=False)]


def render_prompt(tokenizer: Any, messages: Sequence[Message], chat_template: str | Path | None = None) -> str:
    """Return the text that :func:`encode_prompt` encodes (with ``"plain"``, without the beginning-of-sequence
    token)."""
    if not messages:
        raise ValueError("messages is empty; a prompt needs at least one message")
    if chat_template == PLAIN:
        return plain_prompt(messages)
    template = None if chat_template is None else _template_text(chat_template)
    if template is None and not getattr(tokenizer, "chat_template", None):
        name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        raise ValueError(
            f"the tokenizer {name} has no chat template; set {FIELD} to plain (text without role marks, for a base "
            "model) or to a file with a Jinja chat template"
        )
    continued = messages[-1]["role"] == "assistant"
    try:
        return str(
            tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                chat_template=template,
                tokenize=False,
                add_generation_prompt=not continued,
                continue_final_message=continued,
            )
        )
    except Exception as error:  # Jinja's errors, and those that a template raises with raise_exception
        roles = ", ".join(message["role"] for message in messages)
        raise ValueError(f"the chat template refused messages with the roles {roles}: {error}") from error


def plain_prompt(messages: Sequence[Message]) -> str:
    """Return the contents of the messages, separated by blank lines; a line end follows unless the answer has begun.

    >>> plain_prompt([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}])
    'Be brief.\\n\\nWhy?\\n'
    """
    text = "\n\n".join(message["content"] for message in messages)
    return text if messages[-1]["role"] == "assistant" else text + "\n"


def check_prompt_length(
    num_tokens: int,
    task_id: str,
    *,
    max_prompt_length: int | None = None,
    context_length: int | None = None,
    max_completion_length: int = 1,
) -> str | None:
    """Return a sentence that says why this prompt is too long; None if it fits. The caller then drops the task.

    Args:
        num_tokens: number of tokens in the prompt.
        task_id: the task's id, for the sentence.
        max_prompt_length: the config's limit in tokens; None: no limit.
        context_length: the model's context in tokens; None: unknown.
        max_completion_length: number of tokens that must fit after the prompt.

    >>> check_prompt_length(10, "relu", max_prompt_length=16, context_length=32, max_completion_length=16)
    >>> check_prompt_length(20, "relu", max_prompt_length=16)
    'the prompt of task relu has 20 tokens, more than data.max_prompt_length = 16'
    >>> check_prompt_length(20, "relu", context_length=32, max_completion_length=16)
    'the prompt of task relu has 20 tokens, which with 16 for the answer is more than the context of 32'
    """
    prompt = f"the prompt of task {task_id} has {num_tokens} tokens"
    if max_prompt_length is not None and num_tokens > max_prompt_length:
        return f"{prompt}, more than data.max_prompt_length = {max_prompt_length}"
    if context_length is not None and num_tokens + max_completion_length > context_length:
        return (
            f"{prompt}, which with {max_completion_length} for the answer is more than the context of {context_length}"
        )
    return None


def _template_text(chat_template: str | Path) -> str:
    if isinstance(chat_template, str) and "{" in chat_template:  # a template, because file names hold no brace
        return chat_template
    try:
        return Path(chat_template).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{FIELD} must be plain, a Jinja chat template or a file with one; {chat_template} cannot be read"
        ) from error
