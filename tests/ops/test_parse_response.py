from __future__ import annotations

import dataclasses
import itertools
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernel_coder import ops, reference
from kernel_coder.ops import Response

PIECES = [
    "<thinking>", "</thinking>", "<answer>", "</answer>", "<", "<answer", "<Thinking>", "```", "````", "~~~", "~~~~",
    "``", "```python", "``` a`b", "~~~ a`b", "\n", "\r\n", "\r", " ", "   ", "    ", "\t", "\v", "\u00a0", "x = 1",
    "é", "漢", "😀", "\0", "\ud800", "\n```\n", "\n```py\nx\n```\n",
]  # fmt: skip
GOOD = "<thinking>Because.</thinking>\n<answer>\n```python\nx = 1\n```\n</answer>"


def form(answer: str) -> str:
    return f"<thinking>t</thinking><answer>{answer}</answer>"


def test_right_form_is_ok_and_gives_the_parts() -> None:
    assert ops.parse_response(GOOD) == Response("Because.", "```python\nx = 1\n```", "x = 1", True, None)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "the tag <thinking> is missing"),
        ("no tags at all", "the tag <thinking> is missing"),
        (GOOD.replace("<thinking>", ""), "the tag <thinking> is missing"),
        (GOOD.replace("</thinking>", ""), "the tag </thinking> is missing"),
        (GOOD.replace("<answer>", ""), "the tag <answer> is missing"),
        (GOOD.replace("</answer>", ""), "the tag </answer> is missing"),
        (GOOD + "</answer>", "the tag </answer> must occur once; it occurs 2 times"),
        ("<thinking>" * 3 + GOOD, "the tag <thinking> must occur once; it occurs 4 times"),
        (
            "<answer>a</answer><thinking>b</thinking>",
            "the tags are out of order; they must come as <thinking>, </thinking>, <answer>, </answer>",
        ),
        ("Sure! " + GOOD, "there is text before <thinking>"),
        (GOOD.replace("\n<answer>", "so\n<answer>"), "there is text between </thinking> and <answer>"),
        (GOOD + "\nHope it helps", "there is text after </answer>"),
        ("\u00a0" + GOOD, "there is text before <thinking>"),
        (form(""), "the answer has no code block"),
        (form("x = 1"), "the answer has no code block"),
        (form("```x = 1```"), "the answer has no code block"),
        (form("``\nx\n``"), "the answer has no code block"),
        (form("a\n```\nx = 1\n"), "the code block in the answer is not closed"),
        (form("```\nx\n```\n```\ny"), "the code block in the answer is not closed"),
        (form("```\nx\n```\n```\ny\n```"), "the answer must have one code block; it has 2"),
        (form("```\n```"), "the code block in the answer is empty"),
        (form("```python\n \t\n\n```"), "the code block in the answer is empty"),
    ],
)
def test_error_names_what_is_wrong_with_the_form(text: str, error: str) -> None:
    response = ops.parse_response(text)
    assert not response.ok
    assert response.error == error
    assert response == reference.parse_response(text)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("Here:\n```python\nx\n```\nDone.", "x"),
        ("```\nx\n```", "x"),
        ("~~~\nx\n~~~", "x"),
        ("~~~ a`b\n```\nx\n```\n~~~", "```\nx\n```"),
        ("````\n```\nx\n```\n````", "```\nx\n```"),
        ("```\nx\n`````", "x"),
        ("```\nx\n``` \t", "x"),
        ("```\nx\n``` no\n```", "x\n``` no"),
        ("```\r\nx\r\ny\r\n```\r\n", "x\r\ny"),
        ("```\rx\r\r```\r", "x\r"),
        ("```\nx\n\n```", "x\n"),
        ("   ```\n   x\n     y\n z\n   ```", "x\n  y\nz"),
        ("1. So:\n     ```\n     x\n     ```", "x"),
        ('```\n"""\n    ```\n    """\n```', '"""\n    ```\n    """'),
        ("```\n\0\ud800😀\n```", "\0\ud800😀"),
    ],
)
def test_code_is_taken_out_of_a_right_answer(answer: str, code: str) -> None:
    response = ops.parse_response(form(answer))
    assert response.error is None
    assert response.code == code
    assert response == reference.parse_response(form(answer))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("```\nx\n```", (None, None, "x")),
        ("a</thinking><answer>```\nx\n```</answer>", ("a", "```\nx\n```", "x")),
        ("<thinking>a<answer>```\nx\n```</answer>", ("a", "```\nx\n```", "x")),
        ("<thinking>a</thinking>```\nx\n```</answer>", ("a", "```\nx\n```", "x")),
        ("<thinking>a</thinking>\n```\nx\n```", ("a", None, "x")),
        ("<thinking>a</thinking><answer>```\nx\ny", ("a", "```\nx\ny", "x\ny")),
        ("<thinking>cut off", ("cut off", None, None)),
        ("<answer>b</answer><thinking>a</thinking>", ("a", "b", None)),
        ("<thinking>use <answer> here</thinking><answer>b</answer>", ("use <answer> here", "b", None)),
        (form("```\n\n```\n```\ny\n```"), ("t", "```\n\n```\n```\ny\n```", "y")),
    ],
)
def test_parts_are_found_in_a_wrong_form_too(text: str, parts: tuple[str | None, ...]) -> None:
    response = ops.parse_response(text)
    assert not response.ok
    assert (response.thinking, response.answer, response.code) == parts
    assert response == reference.parse_response(text)


@settings(max_examples=1500, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=24).map("".join))
@example("<thinking>\n</thinking>\r<answer>```\r\n\r```</answer>")
@example(" ````\n```\n ")  # the last line is empty once its indent is gone, and has no line end to lose
@example("  ```\nx\r  \n  ```\n")
def test_pieces_in_any_order_equal_the_reference(text: str) -> None:
    assert ops.parse_response(text) == reference.parse_response(text)


@settings(max_examples=1000, deadline=None)
@given(st.lists(st.sampled_from(PIECES[7:]), max_size=16).map("".join))
def test_answers_of_pieces_equal_the_reference(answer: str) -> None:
    assert ops.parse_response(form(answer)) == reference.parse_response(form(answer))


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(codec=None)))
def test_any_text_equals_the_reference(text: str) -> None:
    assert ops.parse_response(text) == reference.parse_response(text)


def test_all_orders_of_up_to_five_tags_equal_the_reference() -> None:
    for count in range(6):
        for tags in itertools.product(PIECES[:4], repeat=count):
            text = "".join(f"{k}{tag}" for k, tag in enumerate(tags)) + "\n```\nx\n```"
            assert ops.parse_response(text) == reference.parse_response(text)


@pytest.mark.parametrize(
    "piece",
    ["<thinking>", "<answer>", "</answer>", "<thinking></thinking><answer></answer>", "<", "```\n", "````\n```\n", "`",
     "~", " ", "\n", "\r", "  ```\n   x\n", "x", "<answer>```\n", "漢\n", "😀<"],
)  # fmt: skip
def test_ten_million_characters_take_less_than_five_seconds(piece: str) -> None:
    text = piece * (10_000_000 // len(piece))
    start = time.process_time()
    response = ops.parse_response(text)
    assert time.process_time() - start < 5
    assert not response.ok
    small = piece * 7
    assert ops.parse_response(small) == reference.parse_response(small)


def test_a_long_right_answer_is_ok() -> None:
    code = "    y = x + 1  # 漢\n" * 500_000
    response = ops.parse_response(form(f"\n  ```python\n{code}  ```\n"))
    assert response.ok
    assert response.code == code.replace("\n    ", "\n  ")[2:-1]


def test_response_is_frozen_and_has_no_dict() -> None:
    response = ops.parse_response(GOOD)
    with pytest.raises(dataclasses.FrozenInstanceError):
        response.ok = False  # type: ignore[misc]
    assert not hasattr(response, "__dict__")
    assert [field.name for field in dataclasses.fields(response)] == ["thinking", "answer", "code", "ok", "error"]


def test_wrong_type_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^text must be str; got bytes$"):
        ops.parse_response(b"")  # type: ignore[arg-type]
