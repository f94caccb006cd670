"""From a task to the messages that the model is asked with."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from jinja2 import Environment, StrictUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kernel_coder.tasks import Task

TEMPLATES = Path(__file__).parent / "templates"
IMPLEMENT = Path(__file__).parent / "implement.jinja"
ROLES = ("system", "user", "assistant")

LANGUAGES = {"triton": "Triton", "cuda": "CUDA C++", "cpp": "C++", "torch": "PyTorch"}
ARITHMETIC = {
    "fp64": "Compute in 64-bit floating point.",
    "fp32": "Compute in full 32-bit floating point: no TF32, no 16-bit types.",
    "tf32": "Matrix products may use TF32; compute everything else in 32-bit floating point.",
    "fp16": "Inputs and outputs are 16-bit floating point (fp16); accumulate in 32 bits.",
    "bf16": "Inputs and outputs are 16-bit floating point (bf16); accumulate in 32 bits.",
}


class Message(TypedDict):
    """One message of a conversation, as chat templates take it."""

    role: str
    content: str


def build_messages(task: Task, template: str | Path = "kernel_coder", *, one_shot: bool = False) -> list[Message]:
    """What the model is asked about this task.

    Args:
        task: the task.
        template: the name of a template that comes with Kernel Coder (``kernel_coder``, ``kernelbench``, ``nano``) or
            the path of a ``.jinja`` file. A template is text in up to three Jinja blocks, ``system``, ``user`` and
            ``assistant`` (the last is an answer's beginning); each block that is there becomes one message. It may use
            ``reference``, ``entry_point``, ``language``, ``arithmetic``, ``backend``, ``precision``, ``fence``,
            ``task`` and ``example``.
        one_shot: show a solved example first (an elementwise addition in Triton).

    Returns:
        Messages, the same bytes for the same task on every machine: a golden test holds the packaged templates to that.

    Raises:
        ValueError: no such template, a template that is not one, or no example for the task's backend.

    >>> task = Task(id="t", source="example", reference="class Model: ...")
    >>> [message["role"] for message in build_messages(task)]
    ['system', 'user']
    >>> "class Model: ..." in build_messages(task, "kernelbench")[0]["content"]
    True
    """
    blocks = _load(str(template))
    if one_shot and task.backend != "triton":
        raise ValueError(f"the one-shot example is written in Triton; task {task.id} asks for {task.backend}")
    reference = _text(task.reference)
    context = {
        "task": task,
        "reference": reference,
        "entry_point": task.entry_point,
        "backend": task.backend,
        "precision": task.precision,
        "language": LANGUAGES[task.backend],
        "arithmetic": ARITHMETIC[task.precision],
        "fence": _fence(reference),
        "example": _example() if one_shot else None,
    }
    try:
        return _filled(blocks, context)
    except TemplateError as error:
        raise ValueError(f"prompt template {template} cannot be filled in for task {task.id}: {error}") from error


def build_implementation_messages(op: str, template: str | Path = IMPLEMENT) -> list[Message]:
    """What a model is asked that is to write both the PyTorch module and its Triton form, from words.

    Args:
        op: what is to be computed, as it stands in "Write this as fused Triton kernels: ...".
        template: a ``.jinja`` file as :func:`build_messages` takes it, which may use ``op``.

    Raises:
        ValueError: no such template, or one that is not.

    >>> messages = build_implementation_messages("bias and GELU of a matrix")
    >>> "Triton kernels: bias and GELU of a matrix." in messages[1]["content"]
    True
    """
    try:
        return _filled(_load(str(template)), {"op": op.strip().rstrip(".")})
    except TemplateError as error:
        raise ValueError(f"prompt template {template} cannot be filled in: {error}") from error


def _filled(template: Template, values: dict[str, Any]) -> list[Message]:
    blocks = template.blocks
    rendered = {role: "".join(blocks[role](template.new_context(values))) for role in ROLES if role in blocks}
    return [Message(role=role, content=text.strip()) for role, text in rendered.items() if text.strip()]


def template_names() -> list[str]:
    """The templates that come with Kernel Coder.

    >>> template_names()
    ['kernel_coder', 'kernelbench', 'nano']
    """
    return sorted(path.stem for path in TEMPLATES.glob("*.jinja"))


def _load(template: str) -> Template:
    path = TEMPLATES / f"{template}.jinja" if template in template_names() else Path(template).expanduser()
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        names = ", ".join(template_names())
        raise ValueError(f"prompt template {template} is neither one of {names} nor a file that can be read") from error
    return _compile(source, template)


@cache
def _compile(source: str, name: str) -> Template:
    try:
        compiled = _environment().from_string(source)
    except TemplateError as error:
        raise ValueError(f"prompt template {name} is not a Jinja template: {error}") from error
    unknown = sorted(set(compiled.blocks) - set(ROLES))
    if unknown or "user" not in compiled.blocks:
        found = f"it has {', '.join(sorted(compiled.blocks))}" if compiled.blocks else "it has none"
        raise ValueError(f"prompt template {name} needs a block user, and otherwise only system and assistant; {found}")
    return compiled


@cache
def _environment() -> Environment:
    # A template can come from anyone; the sandbox keeps it from reaching beyond the values that it is given.
    return ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, newline_sequence="\n", autoescape=False
    )


@cache
def _example() -> dict[str, str]:
    folder = TEMPLATES / "examples"
    files = {"reference": "add_reference.txt", "thinking": "add_thinking.txt", "solution": "add_solution.txt"}
    return {name: _text((folder / file).read_text(encoding="utf-8")) for name, file in files.items()}


def _text(text: str) -> str:
    """One kind of line end, and none around the whole."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip("\n")


def _fence(text: str) -> str:
    """A fence that the text cannot close: at least three backticks, one more than the longest run in it.

    >>> _fence("x = 1"), _fence("'''```'''")
    ('```', '````')
    """
    return "`" * max(3, 1 + max((len(run) for run in re.findall("`{3,}", text)), default=0))
