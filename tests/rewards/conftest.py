"""Where the text ops are not built yet, the tests of the rewards run with the shortest thing that does the same."""

from __future__ import annotations

import difflib
import re
from typing import NamedTuple

import torch
from kernel_coder import ops


class Response(NamedTuple):
    thinking: str | None
    answer: str | None
    code: str | None
    ok: bool
    error: str | None


def parse_response(text: str) -> Response:
    thinking = re.search(r"<thinking>(.*?)</thinking>", text, re.DOTALL)
    answer = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
    code = re.search(r"```python\n(.*?)\n```", answer[1], re.DOTALL) if answer else None
    ok = thinking is not None and code is not None and text.lstrip().startswith("<thinking>")
    found = [match[1] if match else None for match in (thinking, answer, code)]
    return Response(*found, ok, None if ok else "not in form")


def sequence_similarities(a: list[str], b: list[str], *, autojunk: bool = False) -> torch.Tensor:
    ratios = [difflib.SequenceMatcher(None, x, y, autojunk).ratio() for x, y in zip(a, b, strict=True)]
    return torch.tensor(ratios, dtype=torch.float64)


if not hasattr(ops, "parse_response"):
    ops.parse_response = parse_response  # type: ignore[attr-defined]
if not hasattr(ops, "sequence_similarities"):
    ops.sequence_similarities = sequence_similarities  # type: ignore[attr-defined]
