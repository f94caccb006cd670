"""The generator of modules in the style of repositories: right at odd sizes, one text for all sizes, no leaks."""

from __future__ import annotations

import ast
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from kernel_coder.data.__main__ import main
from kernel_coder.data.screen import Screen
from kernel_coder.data.verifiers import Candidate, InterpreterVerifier
from kernel_coder.tasks import load_tasks
from kernel_coder.tasks.generator import ALL_FAMILIES, generate
from kernel_coder.tasks.generator.repository import GROUP_FREQUENCIES, KINDS, OPERATIONS, Made, UnsuitableError, make
from kernel_coder.tasks.generator.repository.names import LAYER_WORDS, PREFIXES, SUFFIXES
from kernel_coder.tasks.generator.split import HELDOUT_KINDS, HELDOUT_OPERATIONS
from kernel_coder.tasks.task import Task, reference_problem, solution_problem

_COPY = Path(__file__).resolve().parents[3] / "shared/data/kernelbench"
KERNELBENCH = os.environ.get("KERNELBENCH_DIR", str(_COPY) if _COPY.is_dir() else None)

TEMPLATES = (
    "matmul",
    "matmul_large_k",
    "bmm_bt",
    "matmul_4d",
    "matmul_upper",
    "matvec",
    "outer",
    "elu",
    "argmax",
    "logsumexp",
    "var",
    "softmax",
    "l2_normalize",
    "cumprod",
    "masked_cumsum",
    "norm_all",
    "layer_norm",
    "group_norm",
    "batch_norm",
    "max_pool2d",
    "avg_pool3d",
    "conv1d_dilated",
    "conv2d_grouped",
    "conv2d_depthwise",
    "conv2d_pointwise",
    "convtranspose2d_grouped",
    "cross_entropy",
    "huber_loss",
    "triplet_loss",
    "attention",
    "embedding",
)
"""A kind for each kernel; the others differ from one of these in a line. The interpreter takes a second for each."""


@pytest.fixture(scope="module")
def verifier() -> Iterator[InterpreterVerifier]:
    with InterpreterVerifier(workers=2, timeout_s=120.0) as verifier:
        yield verifier


def drawn(seed: str, level: int, kind: str | None = None) -> Made:
    for attempt in range(30):
        try:
            return make(Random(f"{seed} {attempt}"), level, kind)
        except UnsuitableError:
            continue
    raise AssertionError(f"nothing came of {seed}")


@pytest.mark.parametrize("kind", sorted(OPERATIONS))
def test_references_solutions_and_thinking_of_every_kind_are_valid(kind: str) -> None:
    for seed in range(3):
        made = drawn(f"{kind} {seed}", 1, kind)
        for text in (made.reference, made.small_reference):
            assert reference_problem(text, made.entry_point) is None, text
        assert solution_problem(made.solution) is None, made.solution
        assert made.thinking.endswith(".")
        assert made.thinking.count(". ") == 0, made.thinking
        assert "get_inputs" not in made.solution


@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_small_module_is_the_same_text_with_other_numbers(level: int) -> None:
    for seed in range(40):
        made = drawn(f"twin {seed}", level)
        words = [re.sub(r"\d+", "0", text) for text in (made.reference, made.small_reference)]
        assert words[0] == words[1]


def test_number_of_operations_fits_the_level() -> None:
    counts = {level: [len(drawn(f"count {seed}", level).composition) for seed in range(40)] for level in (1, 2, 3)}
    assert max(counts[1]) <= 2
    assert min(counts[2]) >= 2
    assert min(counts[3]) >= 4


def test_the_same_seed_gives_the_same_task() -> None:
    first, second = (generate(5, "repository", 3).task for _ in range(2))
    assert first == second
    assert "repository" in ALL_FAMILIES
    assert first.metadata["thinking"]


def test_generated_texts_with_constructor_arguments_parse() -> None:
    for seed in range(60):
        made = drawn(f"arguments {seed}", 3)
        ast.parse(made.reference)
        ast.parse(made.solution)


def check(verifier: InterpreterVerifier, cases: list[Made]) -> None:
    candidates = [
        Candidate(
            Task(id=str(number), source="test", reference=made.small_reference, entry_point=made.entry_point),
            made.solution,
            as_constructed=True,
        )
        for number, made in enumerate(cases)
    ]
    for made, finding in zip(cases, verifier.verify(candidates), strict=True):
        assert finding.correct, f"{made.composition}: {finding.reason}\n{made.solution}"


def test_solutions_of_templates_are_right(verifier: InterpreterVerifier) -> None:
    check(verifier, [drawn(f"right {kind}", 1, kind) for kind in TEMPLATES])


def test_solutions_of_chains_are_right(verifier: InterpreterVerifier) -> None:
    check(verifier, [drawn(f"chain {seed}", 2 + seed % 2) for seed in range(8)])


def test_held_out_operations_exist_and_are_not_trained_on() -> None:
    assert HELDOUT_OPERATIONS <= OPERATIONS
    assert len(HELDOUT_OPERATIONS) >= 6
    found = {generate(seed, "repository", 1 + seed % 2).split for seed in range(200)}
    assert {"train", "heldout_operation", "heldout_family", "heldout_composition"} == found
    for seed in range(200):
        task = generate(seed, "repository", 1 + seed % 2)
        held_out = bool((HELDOUT_OPERATIONS | HELDOUT_KINDS) & set(task.composition))
        assert held_out == (task.split in ("heldout_operation", "heldout_family"))


def test_every_kind_has_a_share() -> None:
    assert set(KINDS) == set(GROUP_FREQUENCIES)
    assert len(OPERATIONS) > 140


@pytest.mark.skipif(KERNELBENCH is None, reason="needs a copy of KernelBench")
def test_no_kept_module_resembles_a_kernelbench_problem() -> None:
    screen = Screen(splits=("train",), per_structure=100, against=KERNELBENCH)
    kept = 0
    for seed in range(150):
        task = generate(seed, "repository", 1 + seed % 3).task
        _, drop = screen.look(task)
        kept += drop is None and screen.resemblance(task) is None
    assert kept > 80  # the check must not drop nearly every task


def test_build_writes_rows_with_thinking_and_small_modules(tmp_path: Path) -> None:
    out = tmp_path / "pairs.parquet"
    words = f"build --families repository --levels 1 --count 4 --seed 3 --out {out} --workers 2 --timeout 120"
    assert main(words.split()) == 0
    tasks = load_tasks(str(out))
    assert len(tasks) == 4
    assert all(task.solution and task.metadata["thinking"] for task in tasks)
    from pyarrow import parquet

    rows = parquet.read_table(out).to_pylist()
    assert all(row["small_python_code"] != row["python_code"] and row["verified"] for row in rows)


def test_layers_arguments_and_inputs_have_many_names_and_solutions_use_the_same() -> None:
    layers, arguments, inputs = set(), set(), set()
    for seed in range(100):
        made = make(Random(seed), 1, "conv2d_plain") if seed % 2 else make(Random(seed), 1, "softmax")
        for text in (made.reference, made.small_reference, made.solution):
            ast.parse(text)
        for name in (found := re.findall(r"self\.(\w+) = nn\.Conv2d", made.reference)):
            assert f"self.{name} = nn.Conv2d" in made.solution
        (first,) = re.findall(r"def forward\(self, (\w+)", made.reference)
        assert f"def forward(self, {first}" in made.solution
        layers.update(found)
        inputs.add(first)
        arguments.update(re.findall(r"nn\.Conv2d\((\w+)", made.reference))
    assert len(layers) >= 15
    assert len(inputs) >= 20
    assert len(arguments) >= 10
    assert not layers & set(dir(torch.nn.Module()))


def test_no_possible_layer_name_is_an_attribute_of_nn_module() -> None:
    possible = {f"{a}{b}{c}" for a in PREFIXES for b in LAYER_WORDS.split() for c in SUFFIXES}
    assert not possible & set(dir(torch.nn.Module()))


def test_docstrings_name_arguments_of_the_constructor() -> None:
    described = 0
    for seed in range(80):
        made = make(Random(seed), 1, "conv2d_plain")
        names = re.findall(r"^ +(\w+) \((?:int|bool|tuple)", made.reference, re.MULTILINE)
        arguments = re.findall(r"def __init__\(self, (.*)\):", made.reference)[0]
        described += bool(names)
        assert all(re.search(rf"\b{name}\b", arguments) for name in names)
    assert described > 10


def _parameters(text: str, name: str) -> list[str]:
    """The arguments of the constructor of a class, with their defaults."""
    (cls,) = [each for each in ast.parse(text).body if isinstance(each, ast.ClassDef) and each.name == name]
    for each in cls.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            names = [argument.arg for argument in each.args.args[1:]]
            defaults = [f"={ast.unparse(default)}" for default in each.args.defaults]
            return [a + b for a, b in zip(names, [""] * (len(names) - len(defaults)) + defaults, strict=True)]
    return []


@pytest.mark.parametrize("level", [1, 2])
def test_solutions_repeat_all_constructor_arguments_even_unused_ones(level: int) -> None:
    unread = 0
    for seed in range(150):
        made = drawn(f"constructor {seed}", level)
        arguments = _parameters(made.reference, made.entry_point)
        assert arguments == _parameters(made.solution, "ModelNew"), made.reference
        init = made.reference.partition("__init__")[2].partition("def forward")[0].partition("__init__")[2]
        unread += any(not re.search(rf"\b{each.partition('=')[0]}\b", init) for each in arguments)
    assert unread > 5


def test_input_functions_run_in_both_sizes_and_have_many_forms() -> None:
    forms = {
        "products of numbers": r"^\w+ = \d+ \* \d+$",
        "a shared tail": r"\(\w+, \*\w+\)",
        "one value, two names": r"^\w+ = \w+ = \d+$",
        "several values": r"^\w+, \w+.* = ",
        "a random scale": r"torch\.rand\(\(\)\)",
        "numbers for the constructor": r"get_init_inputs\(\):\n    return \[-?\d",
        "another tensor's shape": r"\w+\.shape\)",
    }
    found = dict.fromkeys(forms, 0)
    for seed in range(300):
        made = drawn(f"inputs {seed}", 1)
        for name, pattern in forms.items():
            found[name] += bool(re.search(pattern, made.reference, re.MULTILINE))
        for text, device in ((made.reference, "meta"), (made.small_reference, "cpu")):
            space: dict[str, Any] = {}
            with torch.device(device):
                exec(text, space)
                space[made.entry_point](*space["get_init_inputs"]())(*space["get_inputs"]())
    assert min(found.values()) >= 2, found


def test_plain_products_often_use_torch_matmul() -> None:
    references = [drawn(f"spelt {seed}", 1, "matmul").reference for seed in range(60)]
    assert sum(bool(re.search(r"(?:=|return) torch\.matmul\(\w+, \w+\)$", each, re.M)) for each in references) >= 15


PLAIN = ("matmul", "matmul_square", "matmul_tall", "matmul_large_k", "matmul_3d", "matmul_4d", "matmul_symmetric")


def test_products_with_the_same_text_have_the_same_solution() -> None:
    kernels, found = set(), 0
    for kind in (*PLAIN, "matvec"):
        for seed in range(12):
            made = drawn(f"same {seed}", 1, kind)
            if re.search(r"(?:=|return) torch\.matmul\(\w+, \w+\)$", made.reference, re.M):
                found += 1
                kernels.add(made.solution.partition("class ModelNew")[0])
    assert found > 20
    assert len(kernels) == 1


@pytest.mark.parametrize("kind", ["bmm", "bmm_bt"])
def test_text_of_batched_products_shows_that_they_are_batched(kind: str) -> None:
    for seed in range(20):
        made = drawn(f"batched {seed}", 1, kind)
        assert re.search(r"bmm|einsum|transpose\(1, 2\)", made.reference), made.reference


def _with_inputs(made: Made, forward: str, shapes: list[tuple[int, ...]]) -> Made:
    """A module with the solution of `made` and inputs of the given shapes."""
    names = ", ".join("ab"[: len(shapes)])
    inputs = ", ".join(f"torch.rand({shape!r})" for shape in shapes)
    reference = (
        "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n"
        f"    def forward(self, {names}):\n        return {forward}\n\n\n"
        f"def get_inputs():\n    return [{inputs}]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    return Made("Model", reference, reference, made.solution, made.thinking, made.composition)


def _without_constructor(kind: str, pattern: str) -> Made:
    for seed in range(200):
        made = drawn(f"bare {seed}", 1, kind)
        if "def __init__" not in made.solution and re.search(pattern, made.reference):
            return made
    raise AssertionError(f"{kind} always has a constructor")


def test_solution_of_one_product_is_right_for_every_shape(verifier: InterpreterVerifier) -> None:
    made = _without_constructor("matmul_square", r"torch\.matmul\(")
    shapes = [((70, 70), (70, 70)), ((5, 9000), (9000, 1)), ((3, 9000), (9000,)), ((2, 3, 33), (33, 70))]
    shapes += [((2, 3, 4, 33), (33, 9)), ((130, 5), (5, 3)), ((3, 4097), (4097, 20))]
    check(verifier, [_with_inputs(made, "torch.matmul(a, b)", list(pair)) for pair in shapes])


def test_solution_of_one_loss_is_right_for_every_broadcast(verifier: InterpreterVerifier) -> None:
    made = _without_constructor("hinge_loss", "clamp")
    shapes = [((9, 9), (9, 9)), ((9, 9), (9,)), ((7, 9), (9,)), ((7, 9), (7, 1)), ((70, 70), (70,)), ((9,), (9,))]
    forward = "torch.mean(torch.clamp(1 - a * b, min=0))"
    check(verifier, [_with_inputs(made, forward, list(pair)) for pair in shapes])


@pytest.mark.long
def test_chains_cover_operations_that_often_follow_a_layer() -> None:
    wanted = {"residual", "mean_rest", "sum_rest", "add_own_input", "instance_norm", "max_pool1d", "layer_norm"}
    wanted |= {"double", "gated_mish", "gated_hardswish", "min_scalar_parameter", "sub_scalar_parameter", "avg_pool3d"}
    texts = {
        "pooling with a number": r"Pool\dd\((kernel_size=)?\d\)",
        "a layer with its defaults": r"nn\.(Hardtanh|LeakyReLU|ELU)\(\)",
        "a constant named after its layer": r"leaky_relu_negative_slope|hardtanh_m(in|ax)|elu_alpha",
        "a mean without its dimensions": r"mean\((\{x\}, |x, )?(dim=)?[\[(]2, 3[\])]\)",
        "a viewed parameter": r"\.view\(1, -1, 1",
        "a learnt number in a vector": r"(gain|sum_weight|constant)\d?_shape = \(1,\)",
    }
    missing, poolings = set(texts), 0
    for seed in range(900):
        made = drawn(f"kinds {seed}", 2 + seed % 2)
        wanted -= set(made.composition)
        poolings = max(poolings, *(made.composition.count(f"{kind}_pool2d") for kind in ("max", "avg")))
        missing -= {name for name in missing if re.search(texts[name], made.reference)}
    assert not wanted
    assert not missing
    assert poolings == 2


@pytest.mark.parametrize("seed", range(2))
def test_solutions_with_gates_learnt_numbers_and_poolings_are_right(seed: int, verifier: InterpreterVerifier) -> None:
    forms = ("gated", "double", "min_scalar", "sub_scalar", "global_avg", "max_pool", "avg_pool")
    inexact = {"tanhshrink", "log_sigmoid", "batch_norm", "instance_norm"}  # small differences of large numbers
    every = (drawn(f"forms {seed} {number}", 2) for number in itertools.count())
    wanted = (
        made
        for made in every
        if not inexact & set(made.composition) and any(op.startswith(forms) for op in made.composition)
    )
    check(verifier, list(itertools.islice(wanted, 6)))
