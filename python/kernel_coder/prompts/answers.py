"""The form of an answer that prompts request and the format reward checks."""

from __future__ import annotations

from kernel_coder.prompts.blocks import fence_for, plain_text


def build_answer(code: str, thinking: str = "") -> str:
    """Return the text of an answer with this code and thinking.

    Raises:
        ValueError: the code is empty, or code or thinking contains a tag of the form.

    >>> print(build_answer("x = 1", "One."))
    <thinking>
    One.
    </thinking>
    <answer>
    ```python
    x = 1
    ```
    </answer>
    """
    code, thinking = plain_text(code), thinking.strip()
    if not code.strip():
        raise ValueError("code is empty; an answer needs some")
    for name, text in (("code", code), ("thinking", thinking)):
        for tag in ("<thinking>", "</thinking>", "<answer>", "</answer>"):
            if tag in text:
                raise ValueError(f"{name} holds the tag {tag}, which an answer must have only once")
    fence = fence_for(code)
    inside = f"{thinking}\n" if thinking else ""
    return f"<thinking>\n{inside}</thinking>\n<answer>\n{fence}python\n{code}\n{fence}\n</answer>"
