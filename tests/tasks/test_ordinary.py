"""Modules written like those of people: every spelling and its kernel compute the same as the program."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder.data.arrays import ArrayVerifier
from kernel_coder.data.verifiers import Candidate, InterpreterVerifier
from kernel_coder.tasks import load_tasks
from kernel_coder.tasks.generator import generate, generate_many
from kernel_coder.tasks.generator.bugs import plant_bug
from kernel_coder.tasks.generator.fingerprint import fingerprint
from kernel_coder.tasks.generator.ordinary import Program, draw, spell
from kernel_coder.tasks.generator.pointwise import UnsuitableError, evaluate
from kernel_coder.tasks.generator.programs import OPERATIONS, PATTERNS, Constant, Node, composition, expand, fold, lower
from kernel_coder.tasks.generator.spellings import CALLS, DEFAULTS, LAYERS
from kernel_coder.tasks.sources import PACKAGED_TABLES

HAND_WRITTEN = Path(__file__).parents[1] / "models" / "ordinary"


def drawn(seed: int, level: int = 1) -> Program:
    for attempt in range(100):
        try:
            return draw(Random(f"program {seed} {level} {attempt}"), level)
        except UnsuitableError:
            continue
    raise AssertionError(f"no program of seed {seed}")


def spelt(program: Program, seed: int) -> tuple[str, str]:
    for attempt in range(20):
        try:
            return spell(program, Random(f"spelling {seed} {attempt}"))
        except UnsuitableError:
            continue
    raise AssertionError("no spelling")


def computed(root: Node, leaves: Mapping[str, Any]) -> Any:
    """The value of the program, computed with the operations' Triton texts on float64 arrays."""
    done: dict[int, Any] = {}
    for node in root.walk():
        if node.args:
            numbers = {key: constant.value for key, constant in node.values.items()}
            done[id(node)] = evaluate(OPERATIONS[node.op], numbers, *(done[id(arg)] for arg in node.args))
        else:
            done[id(node)] = leaves[node.name]
    return done[id(root)]


def module_of(reference: str) -> tuple[torch.nn.Module, Callable[[], list[torch.Tensor]]]:
    names: dict[str, Any] = {}
    exec(reference, names)
    return names["Model"](*names["get_init_inputs"]()).double(), names["get_inputs"]


@given(st.integers(0, 10_000), st.integers(0, 2))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_every_spelling_computes_the_value_of_the_program(seed: int, level: int) -> None:
    program = drawn(seed, level)
    for each in range(4):
        reference, _ = spelt(program, each)
        module, get_inputs = module_of(reference)
        torch.manual_seed(seed)
        inputs = [value.double() for value in get_inputs()]
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.rand_like(parameter) + 0.5)
        leaves = {name: value.numpy() for name, value in zip(program.inputs, inputs, strict=True)}
        leaves |= {name: getattr(module, name).detach().numpy() for name in program.parameters}
        shape = inputs[0].shape
        want = computed(program.root, {name: np.broadcast_to(value, shape).ravel() for name, value in leaves.items()})
        with torch.no_grad():
            got = module(*inputs).numpy().ravel()
        np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-8, err_msg=reference)


def test_kernels_are_right_in_the_interpreter_and_on_arrays() -> None:
    made = list(islice(generate_many(3, ("ordinary",), (0, 1, 2)), 30))
    candidates = [Candidate(each.task, each.task.solution or "") for each in made]
    with ArrayVerifier() as arrays:
        assert all(finding.correct for finding in arrays.verify(candidates))
    with InterpreterVerifier(workers=2) as interpreter:
        assert all(finding.correct for finding in interpreter.verify(candidates[:6]))


@pytest.mark.parametrize("kind", ["grid_too_small", "wrong_dtype", "returns_input", "not_launched", "undefined_name"])
def test_array_verifier_finds_planted_bugs(kind: str) -> None:
    made = [generate(seed, "ordinary", 1) for seed in range(8)]
    wrong = [Candidate(each.task, plant_bug(each.task, Random(0), kind)[0]) for each in made]
    with ArrayVerifier() as arrays:
        findings = list(arrays.verify(wrong))
    assert sum(finding.correct is False for finding in findings) >= 7
    assert all(finding.reason for finding in findings if not finding.correct)


@pytest.mark.parametrize("op", sorted(OPERATIONS))
def test_every_call_and_layer_computes_the_operation(op: str) -> None:
    values = {key: choices[0] for key, (_, choices) in OPERATIONS[op].constants.items()}
    x = torch.linspace(0.1 if op in ("sqrt", "log", "rsqrt", "reciprocal") else -3.4, 3.4, 101, dtype=torch.float64)
    y = torch.linspace(2.0, 0.3 if op == "div" else -2.9, 101, dtype=torch.float64)
    cases = [(call, values) for call in (*CALLS[op], *(f"({layer})({{x}})" for layer in LAYERS.get(op, ())))]
    if op in DEFAULTS:
        number, call, layer = DEFAULTS[op]
        cases += [(call, {"a": number}), (f"({layer})({{x}})", {"a": number})]
    for call, numbers in cases:
        code = call.format(x="x", y="y", **{key: repr(value) for key, value in numbers.items()})
        got = eval(code, {"torch": torch, "F": F, "nn": torch.nn, "x": x, "y": y})
        want = evaluate(OPERATIONS[op], numbers, x.numpy(), y.numpy())
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-9, atol=1e-9, err_msg=call)


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_expanding_and_folding_a_fused_operation_restores_it(name: str) -> None:
    x, y = Node(name="x"), Node(name="y")
    binary = OPERATIONS[name].is_binary
    values = {key: Constant(choices[0]) for key, (_, choices) in OPERATIONS[name].constants.items()}
    node = Node(name, (x, y) if binary else (x,), values)
    for seed in range(10):
        apart = expand(node, Random(seed), share=1.0)
        assert apart.op not in PATTERNS
        again = fold(apart)
        assert (again.op, dict(again.values)) == (name, dict(values))
        operands = [arg.name for arg in again.args]
        assert operands == [arg.name for arg in node.args] or (name == "hypot" and operands == ["y", "x"])


def test_expanding_operations_does_not_change_the_composition() -> None:
    for seed in range(60):
        program = drawn(seed, seed % 3)
        named = program.composition
        assert all(composition(expand(program.root, Random(each)), program.parameters) == named for each in range(5))


def test_lowering_does_not_overwrite_a_value_that_is_needed_again() -> None:
    x, gate = Node(name="x"), Node("sigmoid", (Node(name="x"),))
    assert lower([("out", Node("add", (x, Node("exp", (gate,)))))], ["x"], []) == [
        "h = tl.sigmoid(x)",
        "h = tl.exp(h)",
        "x = x + h",
        "x",
    ]
    tree = x
    for op in ("abs", "cos", "sin", "exp"):
        tree = Node("sub", (Node(op, (x,)), tree))
    with pytest.raises(UnsuitableError, match="more values at a time"):
        lower([("out", tree)], ["x"], [])


def test_generated_modules_cover_all_styles() -> None:
    made = list(islice(generate_many(9, ("ordinary",), (0, 1)), 300))
    texts = [each.task.reference for each in made]
    for part in (
        *("F.", "torch.sigmoid(", ".sigmoid()", "nn.Sequential(", "nn.Parameter(", "super(Model, self)", '"""', "# "),
        *("x: torch.Tensor", "from torch import nn", "def forward(self, x, y", "def forward(self, x, y, z", "**"),
    ):
        assert sum(part in text for text in texts) >= 3, part
    defaults = [text for text in texts if any(default(node) for node in ast.walk(ast.parse(text)))]
    assert len(defaults) > 15
    one_line = [text for text in texts if text.split("def forward")[1].split("\n\n")[0].count("\n") == 1]
    assert 0.2 < len(one_line) / len(texts) < 0.8
    assert all("def forward(self, x" in (each.task.solution or "") for each in made)


def default(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "__init__" and bool(node.args.defaults)


def test_hash_of_the_generated_texts_is_unchanged() -> None:
    """After an intended change, the packaged tables and the packaged model belong to an older generator."""
    texts = [[m.task.reference, m.task.solution] for m in islice(generate_many(0, ("ordinary",), (0, 1, 2)), 90)]
    assert hashlib.sha256(repr(texts).encode()).hexdigest()[:16] == TEXTS


TEXTS = "1f039a703fd852e0"


def test_family_ordinary_is_generated_only_when_named() -> None:
    assert "ordinary" not in {made.family for made in islice(generate_many(1), 100)}
    with pytest.raises(ValueError, match=r"family must be one of .*, ordinary.*; got 'usual'"):
        generate(0, "usual")


def test_hand_written_modules_are_in_no_packaged_table() -> None:
    known = {fingerprint(path.read_text(), class_name="Model") for path in HAND_WRITTEN.glob("*.py")}
    assert len(known) == 10
    tables = [load_tasks(f"packaged:{name}") for name in PACKAGED_TABLES]
    assert not known & {fingerprint(task.reference, class_name="Model") for tasks in tables for task in tasks}
