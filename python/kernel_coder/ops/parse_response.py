"""Splits a model's response into its parts."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_coder import _C


@dataclass(frozen=True, slots=True)
class Response:
    """The parts of a response, as far as they could be found, and whether its form is right."""

    thinking: str | None
    """The text between ``<thinking>`` and ``</thinking>``, without white space around it."""
    answer: str | None
    """The text between ``<answer>`` and ``</answer>``, likewise."""
    code: str | None
    """The lines of the code block in the answer, without the last line end."""
    ok: bool
    """Whether the form is exactly right. Then no part is None."""
    error: str | None
    """One sentence that says what is wrong; None if the form is right."""


def parse_response(text: str) -> Response:
    """Split ``<thinking>...</thinking><answer>...</answer>`` and extract the code block of the answer.

    The form is right when each tag occurs once, in this order, with only white space before, between and after the two
    parts, and the answer has one code block that is closed and not empty. There may be other text around the block,
    inside the answer. If the form is not right, ``error`` names the first of these mistakes: a tag is missing; a tag is
    repeated; the tags are out of order; there is text before, between or after the parts; there is no code block; it is
    not closed; there are several; it is empty.

    Even if the form is wrong, the parts are extracted by these rules:

    ========  =============================================================================================
    thinking  from the first ``<thinking>`` to the next ``</thinking>``; without that, to the next ``<answer>`` or the
              end; without ``<thinking>``, from the start to the first ``</thinking>``
    answer    from the first ``<answer>`` after the thinking (if none is there, the first of all) to the next
              ``</answer>``, or to the end; without ``<answer>``, from the end of the thinking to the next ``</answer>``
    code      the first block that is not empty, in the answer, or in what follows the thinking if there is no answer;
              a block that is never closed goes to the end
    ========  =============================================================================================

    A code block has a fence as in CommonMark: it begins with three or more backticks or tildes, perhaps followed by a
    language, and is closed by a line of at least as many of the same character, indented by at most three spaces more.
    A fence may be indented, as in a list; the lines of its block then lose as many spaces. Lines end with ``\\n``,
    ``\\r\\n`` or ``\\r``. White space is space, ``\\t``, ``\\n``, ``\\v``, ``\\f`` and ``\\r``.

    Args:
        text: any ``str``. The time is linear in its length for every text. The GIL is released.

    Raises:
        TypeError: ``text`` is not a ``str``.

    >>> response = parse_response('''<thinking>Add them.</thinking>
    ... <answer>
    ... ```python
    ... def f(a, b):
    ...     return a + b
    ... ```
    ... </answer>''')
    >>> response.ok, response.thinking, response.code
    (True, 'Add them.', 'def f(a, b):\\n    return a + b')
    >>> parse_response("<thinking>Hm.</thinking> It is <answer>42</answer>").error
    'there is text between </thinking> and <answer>'
    """
    thinking, answer, code, error = _C.parse_response(text)
    return Response(thinking, answer, code, error is None, error)
