"""Compares sources: whether two are the same program, and how similar they are.

:func:`fingerprint` ignores names, constants, annotations and docstrings. :func:`contamination` compares tasks with a
folder of problems that must never be trained on: by that fingerprint, and by shared token shingles.
"""

from __future__ import annotations

import ast
import hashlib
import io
import keyword
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kernel_coder.tasks.task import Task, parse

_KEPT = frozenset(("torch", "nn", "F", "math", "triton", "tl", "super", "float", "range", "max", "min", "len", "int"))
SHINGLE = 6
PERMUTATIONS = 128
_CANDIDATES = 8


class _Nameless(ast.NodeTransformer):
    """Replaces names by numbers in the order of their first use, and constants by their types; `self.<name>` is a name,
    too."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def _short(self, name: str) -> str:
        return self.names.setdefault(name, f"n{len(self.names)}")

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.copy_location(ast.Constant(type(node.value).__name__), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):  # -1 is a constant like 1
            return self.visit(node.operand)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = node.id if node.id in _KEPT else self._short(node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == self.names.get("self"):
            node.attr = self._short(f".{node.attr}")
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg, node.annotation = self._short(node.arg), None
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            node.args = []  # super(Model, self) is super()
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        node.name = node.name if node.name in ("forward", "__init__") else self._short(node.name)
        return self._without_docstring(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self._short(node.name)
        # An __init__ that only calls its parent's is left out.
        node.body = [each for each in node.body if not _is_empty_init(each)] or [ast.Pass()]
        return self._without_docstring(node)

    def _without_docstring(self, node: ast.FunctionDef | ast.ClassDef) -> ast.AST:
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)


def _is_empty_init(node: ast.stmt) -> bool:
    if not isinstance(node, ast.FunctionDef) or node.name != "__init__" or len(node.args.args) > 1:
        return False
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return len(body) == 1 and ast.unparse(body[0]).startswith("super(")


def fingerprint(source: str, *, class_name: str | None = None) -> str:
    """Return the SHA-256 of the syntax tree without names, constants, annotations, docstrings and comments.

    With `class_name`, only that class counts. Text that does not parse is hashed as it is.

    >>> fingerprint("def f(a): return a * 2") == fingerprint("def g(x):  # twice\\n    return x * 3")
    True
    """
    tree = parse(source)
    if isinstance(tree, str):
        return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
    nodes: list[ast.stmt] = tree.body
    if class_name is not None:
        nodes = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name == class_name]
    nameless = _Nameless()
    text = "\n".join(ast.dump(nameless.visit(node)) for node in nodes)
    return hashlib.sha256(text.encode()).hexdigest()


def shingles(source: str) -> frozenset[int]:
    """Return the hashes of every :data:`SHINGLE` tokens in a row. Names count, comments and strings do not."""
    words: list[str] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.NUMBER:
                words.append("0")
            elif token.type in (tokenize.NAME, tokenize.OP) or keyword.iskeyword(token.string):
                words.append(token.string)
    except (tokenize.TokenError, SyntaxError):
        words = words or source.split()
    runs = {" ".join(words[i : i + SHINGLE]) for i in range(max(len(words) - SHINGLE + 1, 1))}
    return frozenset(int.from_bytes(hashlib.blake2b(run.encode(), digest_size=4).digest(), "big") for run in runs)


def module_shingles(task: Task) -> frozenset[int]:
    """Return the shingles of the task's module alone, without its inputs, annotations and docstrings.

    >>> source = "class Model:\\n    def forward(self, x): return x + 1\\n"
    >>> tasks = [Task(id="t", source="example", reference=source + more) for more in ("", "def get_inputs(): ...")]
    >>> module_shingles(tasks[0]) == module_shingles(tasks[1])
    True
    """
    return shingles(_module_text(task.reference, task.entry_point))


@cache
def _permutations() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    generator = np.random.Generator(np.random.PCG64(0))
    a = generator.integers(0, 1 << 63, PERMUTATIONS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    b = generator.integers(0, 1 << 63, PERMUTATIONS, dtype=np.uint64)
    return a, b


def minhash(of: Iterable[int]) -> npt.NDArray[np.uint64]:
    """Return the signature of a set: the share of equal entries of two estimates their sets' Jaccard similarity."""
    a, b = _permutations()
    values = np.fromiter(of, dtype=np.uint64)
    if not len(values):
        return np.zeros(PERMUTATIONS, np.uint64)
    hashed = (values[:, None] * a[None, :] + b[None, :]) >> np.uint64(32)  # multiply-shift; the product wraps
    result: npt.NDArray[np.uint64] = hashed.min(axis=0)
    return result


@dataclass(frozen=True, slots=True)
class Match:
    """A task that is equal or similar to a problem of the folder."""

    task: str
    problem: str
    similarity: float  # Jaccard, of token shingles
    identical: bool  # the same normalised syntax tree of the module


@dataclass(frozen=True, slots=True)
class Contamination:
    """The result of :func:`contamination`: `matches` are the tasks that must not be trained on."""

    tasks: int
    problems: int
    threshold: float
    largest_similarity: float
    matches: tuple[Match, ...]

    def summary(self) -> str:
        identical = sum(match.identical for match in self.matches)
        return (
            f"{self.tasks} tasks against {self.problems} problems: {identical} identical, "
            f"{len(self.matches) - identical} with a similarity of at least {self.threshold:.2f}; "
            f"the largest is {self.largest_similarity:.2f}"
        )


class Problems:
    """A folder of problems, prepared for comparisons.

    Args:
        folder: its `.py` files, at any depth, each with a class `Model`.
        threshold: the Jaccard similarity of token shingles from which on two texts count as similar.

    Raises:
        FileNotFoundError: the folder holds no such file.
    """

    def __init__(self, folder: str | Path, threshold: float = 0.6) -> None:
        files = sorted(Path(folder).rglob("*.py"))
        if not files:
            raise FileNotFoundError(f"{folder} holds no .py file to compare with")
        self.threshold = threshold
        self.names = [str(path.relative_to(folder)) for path in files]
        texts = [path.read_text(encoding="utf-8") for path in files]
        self._prints: dict[str, str] = {}
        for name, text in zip(self.names, texts, strict=True):
            self._prints.setdefault(fingerprint(text, class_name="Model"), name)
        self._shingles = [shingles(_module_text(text)) for text in texts]
        self._signatures = np.stack([minhash(each) for each in self._shingles])

    def nearest(self, task: Task) -> Match:
        """Return the problem that the task's module equals, or to which it is most similar."""
        name = self._prints.get(fingerprint(task.reference, class_name=task.entry_point))
        own = module_shingles(task)
        estimates = (self._signatures == minhash(own)).mean(axis=1)
        closest = np.argsort(estimates)[-_CANDIDATES:]  # compared exactly: an estimate is off by up to 0.1
        similarity, nearest = max((_jaccard(own, self._shingles[place]), int(place)) for place in closest)
        return Match(task.id, name or self.names[nearest], similarity, name is not None)


def contamination(tasks: Sequence[Task], folder: str | Path, threshold: float = 0.6) -> Contamination:
    """Compare the modules of tasks with the problems of a folder, such as KernelBench's.

    A module matches a problem if the syntax trees of the two classes differ only in names and constants, or if the
    similarity of their token shingles is at least `threshold`.
    """
    problems = Problems(folder, threshold)
    nearest = [problems.nearest(task) for task in tasks]
    return Contamination(
        tasks=len(nearest),
        problems=len(problems.names),
        threshold=threshold,
        largest_similarity=max((match.similarity for match in nearest), default=0.0),
        matches=tuple(match for match in nearest if match.identical or match.similarity >= threshold),
    )


def _module_text(source: str, name: str = "Model") -> str:
    """Return the class alone, without docstrings: inputs and sizes say nothing about the computation."""
    tree = parse(source)
    if isinstance(tree, str):
        return source
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            for inner in ast.walk(node):
                if isinstance(inner, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(inner, clean=False):
                    inner.body = inner.body[1:] or [ast.Pass()]
                if isinstance(inner, ast.arg):
                    inner.annotation = None
                if isinstance(inner, ast.FunctionDef):
                    inner.returns = None
            return ast.unparse(node)
    return source


def _jaccard(a: frozenset[int], b: frozenset[int]) -> float:
    union = len(a | b)
    return len(a & b) / union if union else 1.0
