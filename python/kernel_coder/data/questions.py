"""Makes the questions to a teacher, and reads the pair of modules in an answer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from kernel_coder.data.build import ATTEMPTS_PER_ROW, GENERATOR, Plan, from_files
from kernel_coder.data.screen import Drop, Screen
from kernel_coder.evaluate.answers import candidate
from kernel_coder.ops import parse_response
from kernel_coder.prompts import Message, build_implementation_messages, build_messages
from kernel_coder.prompts.messages import IMPLEMENT_TEMPLATE
from kernel_coder.run.flags import UsageError
from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks.generator import LEVELS, GeneratedTask, generate_many
from kernel_coder.tasks.task import HELPERS, SOLUTION_CLASS, Task, classes, parse, reference_problem

OPS = "ops"
PACKAGED_OPS = Path(__file__).with_name("ops.txt")

Kind = Literal["implement", "convert"]

REFERENCE_IMPORTS = frozenset({"__future__", "collections", "functools", "math", "torch", "typing"})
"""Packages that a teacher's reference may import: the judge trusts references more than candidates."""

TAGS = ("<thinking>", "</thinking>", "<answer>", "</answer>")


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillPlan:
    """The questions to a teacher, and which correct answers to keep.

    Attributes:
        implement: sources of operations, for which the teacher writes module and solution: ``ops``, text files,
            ``generator``.
        convert: sources of modules, for which the teacher writes a solution: those of ``load_tasks``, ``generator``.
        count: highest number of questions from each source; required for the generator.
        samples: number of answers to each question.
        seed: seed of the generator and of the answers.
        families, levels, splits: settings of the generator; see :class:`kernel_coder.data.build.Plan`.
        per_structure: highest number of pairs whose modules differ only in names and constants.
        against: a folder of problems that no pair may resemble.
        max_size: halve larger sizes in modules from files.
        allow_kernelbench: ask about KernelBench's own modules, to measure a teacher; never train on the answers.
        prompt_template: template for ``convert``; see :func:`kernel_coder.prompts.build_messages`.
        implement_template: template for ``implement``; None: the packaged one.
        one_shot: show a solved example in prompts of ``convert``.
        drop_thinking: leave the reasoning out of the rows; the log keeps it.
    """

    implement: tuple[str, ...] = ()
    convert: tuple[str, ...] = ()
    count: int | None = None
    samples: int = 4
    seed: int = 0
    families: tuple[str, ...] | None = None
    levels: tuple[int, ...] = LEVELS
    splits: tuple[str, ...] = ("train",)
    per_structure: int = 1
    against: str | None = None
    max_size: int | None = None
    allow_kernelbench: bool = False
    prompt_template: str = "kernel_coder"
    implement_template: str | None = None
    one_shot: bool = False
    drop_thinking: bool = False

    def __post_init__(self) -> None:
        if not self.implement and not self.convert:
            raise UsageError(
                "there are no questions: pass --implement (ops, a text file, generator) or --convert (packaged, "
                "generator, files and folders)"
            )
        if self.samples < 1:
            raise UsageError(f"--samples must be at least 1; got {self.samples}")
        if self.count is None and GENERATOR in (*self.implement, *self.convert):
            raise UsageError("the generator makes any number of questions: --count must limit it")
        self.stream()

    def stream(self) -> Plan:
        """Return the settings of the generator. Plan checks them."""
        return Plan(
            sources=(GENERATOR,) if self.count is not None else tuple(self.convert or self.implement),
            count=self.count,
            seed=self.seed,
            families=self.families,
            levels=self.levels,
            splits=self.splits,
            per_structure=self.per_structure,
            max_size=self.max_size,
        )

    def screen(self) -> Screen:
        return Screen(
            splits=self.splits,
            per_structure=self.per_structure,
            allow_kernelbench=self.allow_kernelbench,
            against=self.against,
        )


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt. A question of ``convert`` has a task; one of ``implement`` only a description."""

    kind: Kind
    id: str
    messages: tuple[Message, ...]
    task: Task | None = None
    about: Mapping[str, Any] = field(default_factory=dict)  # family, level, composition, split, seed, op
    structure: str | None = None  # the task's fingerprint

    @property
    def hash(self) -> str:
        """SHA-256 of the messages. It identifies the question in later runs."""
        return sha256_text(orjson.dumps(self.messages).decode())


def make_questions(plan: DistillPlan) -> tuple[list[Question], list[dict[str, Any]]]:
    """Return the distinct questions in order, and those not asked with the reason: held out, a duplicate, from
    KernelBench."""
    drops: list[dict[str, Any]] = []
    questions: dict[str, Question] = {}
    for question in (*_implementations(plan, drops), *_conversions(plan, drops)):
        questions.setdefault(question.hash, question)
    if not questions:
        why = f": {drops[0]['id']}: {drops[0]['reason']}" if drops else ""
        raise UsageError(f"there are no questions: every source is empty, or all its tasks were dropped{why}")
    return list(questions.values()), drops


# Implementations ------------------------------------------------------------------------------------------------------


def _implementations(plan: DistillPlan, drops: list[dict[str, Any]]) -> Iterator[Question]:
    template = plan.implement_template or IMPLEMENT_TEMPLATE
    for source in plan.implement:
        found = _generated_ops(plan, drops) if source == GENERATOR else iter(read_ops(source)[: plan.count])
        for op, about in found:
            messages = tuple(build_implementation_messages(op, template))
            yield Question("implement", f"implement/{sha256_text(op)[:12]}", messages, None, {**about, "op": op})


def read_ops(source: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the operations in the packaged list or a text file. A line holds an operation, or ``family | operation``.

    >>> read_ops("ops")[0][1]
    {'family': 'elementwise'}
    """
    path = PACKAGED_OPS if source == OPS else Path(source).expanduser()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise UsageError(f"--implement must be ops, generator or a text file; there is no file {source}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--implement: {source} cannot be read as text: {error}") from None
    found: list[tuple[str, dict[str, Any]]] = []
    for line in lines:
        text = line.strip()
        if text and not text.startswith("#"):
            family, bar, op = text.partition(" | ")
            found.append((op.strip(), {"family": family.strip()}) if bar else (text, {}))
    if not found:
        raise UsageError(f"--implement: {source} names no operation; write one on each line")
    return found


def _generated_ops(plan: DistillPlan, drops: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield compositions of the generator, described in words."""
    seen: set[tuple[str, ...]] = set()
    for made in _stream(plan):
        if made.split not in plan.splits:
            drops.append(_drop(made.task, ("split", f"its composition is {made.split}")))
        elif made.composition in seen:
            drops.append(_drop(made.task, ("duplicate", "an earlier task has the same composition")))
        else:
            seen.add(made.composition)
            yield in_words(made.composition), _about(made.task)
        if len(seen) == plan.count:
            return


def in_words(composition: Sequence[str]) -> str:
    """Return a description of a composition.

    >>> in_words(["matmul_bt", "gelu", "l2_norm"])
    'matmul bt, then gelu, then l2 norm'
    """
    return ", then ".join(name.replace("_", " ") for name in composition)


# Conversions ----------------------------------------------------------------------------------------------------------


def _conversions(plan: DistillPlan, drops: list[dict[str, Any]]) -> Iterator[Question]:
    screen = plan.screen()
    for source in plan.convert:
        wanted = plan.count
        tasks = (made.task for made in _stream(plan)) if source == GENERATOR else from_files([source], plan.max_size)
        for task in tasks:
            structure, drop = screen.look(task)
            if drop is None and task.metadata.get("evaluation_only") and not plan.allow_kernelbench:
                drop = ("contamination", "it is for evaluation only")
            if drop := drop or screen.resemblance(task):
                drops.append(_drop(task, drop))
                continue
            messages = tuple(build_messages(task, plan.prompt_template, one_shot=plan.one_shot))
            yield Question("convert", f"convert/{task.id}", messages, task, _about(task), structure)
            wanted = None if wanted is None else wanted - 1
            if wanted == 0:
                break


def _stream(plan: DistillPlan) -> Iterator[GeneratedTask]:
    """Return generated tasks; their number is limited, in case most of them are dropped."""
    assert plan.count is not None
    stream = plan.stream()
    made = generate_many(plan.seed, stream.stream_families(), plan.levels)
    return (one for one, _ in zip(made, range(ATTEMPTS_PER_ROW * plan.count), strict=False))


def _about(task: Task) -> dict[str, Any]:
    return {
        key: task.metadata[key] for key in ("family", "level", "composition", "split", "seed") if key in task.metadata
    }


def _drop(task: Task, drop: Drop) -> dict[str, Any]:
    return {"id": task.id, **_about(task), "stage": drop[0], "reason": drop[1]}


# Answers --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pair:
    """A task and the teacher's code for it."""

    task: Task
    code: str
    thinking: str | None


def read_answer(question: Question, text: str, reasoning: str | None = None) -> Pair | str:
    """Return the pair in an answer, or the reason why there is none."""
    visible = text.rpartition("</think>")[2].partition("<think>")[0]
    thinking = _thinking(text, visible, reasoning)
    if question.task is not None:
        code, problem = candidate(text)
        return Pair(question.task, code, thinking) if code is not None else problem or "the answer holds no code"
    found = _two_modules(visible)
    if isinstance(found, str):
        return found
    reference, code = found
    if problem := _reference_problem(reference):
        return problem
    task = Task(id=question.id, source="teacher", reference=reference, metadata=question.about)
    return Pair(task, code, thinking)


def _thinking(text: str, visible: str, reasoning: str | None) -> str | None:
    """Return the reasoning: from the answer's ``<thinking>``, else from the server's field, else before
    ``</think>``."""
    found = parse_response(visible).thinking if "<thinking>" in visible else None
    before = text.rpartition("</think>")[0].rpartition("<think>")[2]
    chosen = (found or reasoning or before or "").strip()
    return chosen if chosen and not any(tag in chosen for tag in TAGS) else None


_BLOCK = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n`]*\n(.*?)^ {0,3}\1[`~]*[ \t]*$", re.MULTILINE | re.DOTALL)


def _two_modules(text: str) -> tuple[str, str] | str:
    """Return reference and solution, the first code blocks that define their classes; or a sentence with the
    problem."""
    text = text.rpartition("<answer>")[2]
    blocks = [match[2].rstrip() + "\n" for match in _BLOCK.finditer(text.replace("\r\n", "\n") + "\n")]
    if not blocks:
        return "the answer holds no closed code block"
    named = [(block, frozenset() if isinstance(tree := parse(block), str) else classes(tree)) for block in blocks]
    references = [block for block, names in named if "Model" in names and SOLUTION_CLASS not in names]
    solutions = [block for block, names in named if SOLUTION_CLASS in names and "def get_inputs" not in block]
    if references and solutions:
        return references[0], solutions[0]
    if any({"Model", SOLUTION_CLASS} <= names for _, names in named):
        return "the answer has Model and ModelNew in one code block instead of two"
    for block in blocks:
        if isinstance(tree := parse(block), str):
            return f"a code block of the answer does not parse: {tree}"
    missing = "Model" if not references else SOLUTION_CLASS
    return f"no code block of the answer defines the class {missing}"


def _reference_problem(reference: str) -> str | None:
    """Return why a teacher's module cannot be a reference; None if it can. The judge checks its results later."""
    if problem := reference_problem(reference):
        return problem
    tree = parse(reference)
    assert not isinstance(tree, str)
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "."]
        for name in names:
            if name.partition(".")[0] not in REFERENCE_IMPORTS or name.startswith("torch.utils"):
                return f"the reference imports {name}; it must be plain PyTorch"
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if missing := [name for name in HELPERS if name not in defined]:
        return f"the reference has no function {missing[0]}"
    return None
