"""Reference for :func:`kernel_coder.ops.parse_response`."""

from __future__ import annotations

import re

from kernel_coder.ops.parse_response import Response

TAGS = ("<thinking>", "</thinking>", "<answer>", "</answer>")
WHITESPACE = " \t\n\v\f\r"


def parse_response(text: str) -> Response:
    """Return the same result, by repeated searches."""
    _, open_thinking, after_open = text.partition("<thinking>")
    thinking, close_thinking, rest = after_open.partition("</thinking>")
    if not open_thinking:
        thinking, close_thinking, rest = text.partition("</thinking>")
    found_thinking: str | None = thinking
    if not close_thinking:
        thinking, tag, rest = after_open.partition("<answer>")
        found_thinking, rest = (thinking, tag + rest) if open_thinking else (None, text)

    answer = None
    for part in (rest, text):
        if answer is None and "<answer>" in part:
            answer = part.partition("<answer>")[2].partition("</answer>")[0]
    if answer is None and "</answer>" in rest:
        answer = rest.partition("</answer>")[0]

    blocks = code_blocks(rest if answer is None else answer)
    codes = [code for code, _ in blocks if code.strip(WHITESPACE)]
    error = first_error(text, blocks)
    return Response(
        thinking=None if found_thinking is None else found_thinking.strip(WHITESPACE),
        answer=None if answer is None else answer.strip(WHITESPACE),
        code=codes[0] if codes else None,
        ok=error is None,
        error=error,
    )


def code_blocks(text: str) -> list[tuple[str, bool]]:
    """Return the code of each fenced block, and whether the block is closed."""
    blocks: list[tuple[str, bool]] = []
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z", text)
    while lines:
        opening = re.fullmatch(r"( *)(`{3,}(?=[^`]*\Z)|~{3,})[^\r\n]*[\r\n]*", lines.pop(0))
        if not opening:
            continue
        indent, fence = opening.groups()
        closing = re.compile(rf" {{0,{len(indent) + 3}}}{fence}{fence[0]}*[ \t\v\f\r\n]*")
        code: list[str] = []
        while lines and not closing.fullmatch(lines[0]):
            line = lines.pop(0)
            spaces = len(line) - len(line.lstrip(" "))
            code.append(line[min(spaces, len(indent)) :])
        code[-1:] = [re.sub(r"(\r\n|\r|\n)\Z", "", last) for last in code[-1:]]
        blocks.append(("".join(code), bool(lines)))
        del lines[:1]
    return blocks


def first_error(text: str, blocks: list[tuple[str, bool]]) -> str | None:
    for tag in TAGS:
        if tag not in text:
            return f"the tag {tag} is missing"
    for tag in TAGS:
        if text.count(tag) > 1:
            return f"the tag {tag} must occur once; it occurs {text.count(tag)} times"
    parts = re.fullmatch(r"(.*)<thinking>.*</thinking>(.*)<answer>.*</answer>(.*)", text, re.DOTALL)
    if not parts:
        return "the tags are out of order; they must come as <thinking>, </thinking>, <answer>, </answer>"
    for where, between in zip(
        ("before <thinking>", "between </thinking> and <answer>", "after </answer>"), parts.groups(), strict=True
    ):
        if between.strip(WHITESPACE):
            return f"there is text {where}"
    if not blocks:
        return "the answer has no code block"
    if not blocks[-1][1]:
        return "the code block in the answer is not closed"
    if len(blocks) > 1:
        return f"the answer must have one code block; it has {len(blocks)}"
    if not blocks[0][0].strip(WHITESPACE):
        return "the code block in the answer is empty"
    return None
