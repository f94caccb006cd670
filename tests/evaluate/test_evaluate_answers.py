"""What counts as the code of an answer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder.evaluate.answers import candidate

CODE = "class ModelNew: ..."
BLOCK = f"```python\n{CODE}\n```"


@pytest.mark.parametrize(
    "text",
    [
        f"<thinking>Hm.</thinking><answer>{BLOCK}</answer>",
        BLOCK,
        f"Here it is:\n\n{BLOCK}\n\nIt is fast.",
        f"```\n{CODE}\n```",
        f"~~~py\n{CODE}\n~~~",
        f"```python\n{CODE}",
        f"<think>```python\nclass Draft: ...\n```</think>\n{BLOCK}",
        f"{BLOCK}\n```python\nprint('how to use it')\n```",
        f"<thinking>```python\nclass Draft: ...\n```</thinking>\n{BLOCK}",
    ],
)
def test_code_is_found_in_every_usual_form_of_an_answer(text: str) -> None:
    assert candidate(text) == (CODE, None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the answer is empty"),
        (f"<think>I wonder: {BLOCK}", "the answer holds no code block after its thinking"),
        ("<think>Done.</think> \n", "the answer is empty"),
        ("class ModelNew: ...", "the answer holds no code block"),
        ("```python\n\n```", "the answer's code block is empty"),
        (f"{BLOCK}\n</thinking>", "the answer holds no code block after its thinking"),
        (f"<thinking>{BLOCK}", "the answer holds no code block after its thinking"),
    ],
)
def test_answer_without_code_gives_a_reason(text: str, problem: str) -> None:
    assert candidate(text) == (None, problem)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["```", "python\n", "\n", "<think>", "</think>", "<answer>", "x = 1", "</thinking>"])))
def test_every_answer_gives_either_code_or_a_reason(parts: list[str]) -> None:
    code, problem = candidate("".join(parts))
    assert (code is None) != (problem is None)
    assert code is None or code.strip()
