"""Builds the messages of a prompt from a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernel_coder.prompts.blocks import Message, TemplateKind, fence_for, plain_text
from kernel_coder.tasks import Task

TEMPLATES = Path(__file__).parent / "templates"
IMPLEMENT_TEMPLATE = Path(__file__).parent / "implement.jinja"
PROMPTS = TemplateKind("prompt template", TEMPLATES, ("system", "user", "assistant"))

LANGUAGES = {"triton": "Triton", "cuda": "CUDA C++", "cpp": "C++", "torch": "PyTorch"}
ARITHMETIC = {
    "fp64": "Compute in 64-bit floating point.",
    "fp32": "Compute in full 32-bit floating point: no TF32, no 16-bit types.",
    "tf32": "Matrix products may use TF32; compute everything else in 32-bit floating point.",
    "fp16": "Inputs and outputs are 16-bit floating point (fp16); accumulate in 32 bits.",
    "bf16": "Inputs and outputs are 16-bit floating point (bf16); accumulate in 32 bits.",
}


@dataclass(frozen=True, slots=True)
class Example:
    """A solved task that a prompt shows: its module, the answer's code, and the reasoning before it."""

    reference: str
    solution: str
    thinking: str = ""


def build_messages(
    task: Task,
    template: str | Path = "kernel_coder",
    *,
    one_shot: bool = False,
    examples: Sequence[Example] = (),
) -> list[Message]:
    """Return the messages that ask a model to solve the task.

    Args:
        task: the task.
        template: the name of a packaged template (``kernel_coder``, ``kernelbench``, ``nano``, ``bare``) or the path of
            a ``.jinja`` file. A template has the Jinja block ``user`` and may have ``system`` and ``assistant`` (the
            beginning of the answer); each block becomes one message. It may use ``reference``, ``entry_point``,
            ``language``, ``arithmetic``, ``backend``, ``precision``, ``fence``, ``task``, ``examples`` and ``example``
            (the first of them, or None), and the filter ``bare``, which removes docstrings and comments from code.
        one_shot: show a solved example first (an elementwise addition in Triton).
        examples: solved tasks to show before the task, after that of ``one_shot``.

    Returns:
        The messages. They have the same bytes on every machine, which a golden test checks for the packaged templates.

    Raises:
        ValueError: the template does not exist or is invalid, or there is no example for the task's backend.

    >>> task = Task(id="t", source="example", reference="class Model: ...")
    >>> [message["role"] for message in build_messages(task)]
    ['system', 'user']
    >>> "class Model: ..." in build_messages(task, "kernelbench")[0]["content"]
    True
    """
    if one_shot and task.backend != "triton":
        raise ValueError(f"the one-shot example is written in Triton; task {task.id} asks for {task.backend}")
    reference = plain_text(task.reference)
    shown = [*([_example()] if one_shot else []), *map(_plain, examples)]
    texts = [reference, *(text for one in shown[one_shot:] for text in (one.reference, one.solution))]
    context = {
        "task": task,
        "reference": reference,
        "entry_point": task.entry_point,
        "backend": task.backend,
        "precision": task.precision,
        "language": LANGUAGES[task.backend],
        "arithmetic": ARITHMETIC[task.precision],
        "fence": max(map(fence_for, texts), key=len),
        "example": shown[0] if shown else None,
        "examples": shown,
    }
    return PROMPTS.fill(template, context, f" for task {task.id}")


def build_implementation_messages(op: str, template: str | Path = IMPLEMENT_TEMPLATE) -> list[Message]:
    """Return the messages that ask a model for both a PyTorch module and its Triton kernels, from a description.

    Args:
        op: description of the operation, as in "Write this as fused Triton kernels: ...".
        template: a ``.jinja`` file as for :func:`build_messages`, which may use ``op``.

    Raises:
        ValueError: the template does not exist or is invalid.

    >>> messages = build_implementation_messages("bias and GELU of a matrix")
    >>> "Triton kernels: bias and GELU of a matrix." in messages[1]["content"]
    True
    """
    return PROMPTS.fill(template, {"op": op.strip().rstrip(".")})


def template_names() -> list[str]:
    """Return the names of the packaged prompt templates.

    >>> template_names()
    ['bare', 'kernel_coder', 'kernelbench', 'nano']
    """
    return PROMPTS.names()


@cache
def _example() -> Example:
    folder = TEMPLATES / "examples"
    reference, thinking, solution = (
        plain_text((folder / f"add_{part}.txt").read_text(encoding="utf-8"))
        for part in ("reference", "thinking", "solution")
    )
    return Example(reference, solution, thinking)


def _plain(example: Example) -> Example:
    return Example(plain_text(example.reference), plain_text(example.solution), example.thinking)
