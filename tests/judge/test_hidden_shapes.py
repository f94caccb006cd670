"""Sizes that differ from the task's own: which numbers of a reference they replace, and which sizes are tried first."""

from __future__ import annotations

import random
from typing import Any

import pytest
from kernel_coder.judge.examiner.hidden_shapes import other_sizes, with_named_sizes
from kernel_coder.judge.wire.messages import TensorSpec

REFERENCE = '''"""A module."""
from __future__ import annotations
import torch


class Model(torch.nn.Module):
    def forward(self, x, y):
        return x * y


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
'''


def shapes_of(inputs: str, is_larger: bool = False) -> list[list[tuple[int, ...]]]:
    """The shapes of all choices, for a reference with these inputs whose output is like its first input."""
    source = REFERENCE.format(inputs=inputs)
    space: dict[str, Any] = {}
    exec(source, space)
    own = [tuple(one.shape) for one in space["get_inputs"]()]
    outputs = [TensorSpec(own[0], "float32")]
    rng = random.Random(0)
    choices = other_sizes(source, space["get_inputs"], own, outputs, is_larger, rng)
    return [[tuple(one.shape) for one in choice.get_inputs()] for choice in choices]


@pytest.mark.parametrize("call", ["rand(6, 40)", "randn([6, 40])", "ones((6, 40), dtype=torch.float32)"])
def test_numbers_inside_get_inputs_are_sizes_too(call: str) -> None:
    rows, both, _, columns, _ = shapes_of(f"torch.{call}, torch.{call}")
    assert all(2 <= shape[0] < 6 and shape[1] == 40 for shape in rows)
    assert all(2 <= shape[0] < 6 and 13 <= shape[1] < 40 for shape in both)
    assert all(shape[0] == 6 and 13 <= shape[1] < 40 for shape in columns)
    assert rows[0] == rows[1]
    assert both[0] == both[1]


def test_size_two_varies_as_the_batch_but_not_as_the_last_dimension() -> None:
    (rows,), *_ = shapes_of("torch.rand(2, 40), torch.rand(2, 40)")[:1], None
    assert all(shape == (1, 40) for shape in rows)
    assert all(shape[-1] == 2 for choice in shapes_of("torch.rand(6, 2), torch.rand(6, 2)") for shape in choice)


def test_single_larger_sizes_start_with_the_second_dimension() -> None:
    _, columns, rows, *_ = shapes_of("torch.rand(6, 40), torch.rand(6, 40)", is_larger=True)
    assert all(shape[0] == 6 and shape[1] > 64 for shape in columns)
    assert all(shape[0] > 8 and shape[1] == 40 for shape in rows)


def test_elements_of_a_shape_tuple_are_sizes() -> None:
    source = "import torch\nSHAPE = (6, 40)\ndef get_inputs(): return [torch.rand(SHAPE)]\n"
    space: dict[str, Any] = {}
    exec(source, space)
    outputs = [TensorSpec((6, 40), "float32")]
    rows, both, *_ = other_sizes(source, space["get_inputs"], [(6, 40)], outputs, False, random.Random(0))
    assert rows.get_inputs()[0].shape[1] == 40 > both.get_inputs()[0].shape[1]
    assert rows.description.startswith("SHAPE[0] = ")


def test_larger_sizes_exceed_the_next_power_of_two() -> None:
    both, *_ = shapes_of("torch.rand(6, 40), torch.rand(6, 40)", is_larger=True)
    assert both[0] == both[1]
    assert both[0][0] > 8
    assert both[0][1] > 64


def test_equal_sizes_of_different_dimensions_may_become_different() -> None:
    assert any(len(set(choice[0])) > 1 for choice in shapes_of("torch.rand([9, 9, 9, 9]), torch.rand([9, 9, 9, 9])"))


@pytest.mark.parametrize(
    "inputs",
    [
        "torch.randint(0, 9, (5, 7)), torch.rand(5, 7)",
        "torch.rand(5, 7), torch.arange(5)",
        "torch.rand(5, 7), torch.zeros(5, dtype=torch.long)",
    ],
)
def test_sizes_stay_if_an_input_holds_integers_that_may_be_indices(inputs: str) -> None:
    source = REFERENCE.format(inputs=inputs)
    assert with_named_sizes(source) == source


def test_numbers_that_are_no_sizes_are_not_replaced() -> None:
    source = REFERENCE.format(inputs="torch.full((5, 7), 300.0), torch.rand(1, 2) * 77")
    assert with_named_sizes(source) == with_named_sizes(with_named_sizes(source))
    assert "77" in with_named_sizes(source)
    assert "was_77" not in with_named_sizes(source)


def test_batch_size_stays_if_get_init_inputs_returns_the_same_variable() -> None:
    source = REFERENCE.format(inputs="torch.rand(rows, 40), torch.rand(rows, 40)")
    told = source.replace("class Model", "rows = 6\n\n\nclass Model").replace("return []", "return [rows]")
    rng = random.Random(0)
    for text, may_change in ((told, False), (told.replace("return [rows]", "return [6]"), True)):
        space: dict[str, Any] = {}
        exec(text, space)
        outputs = [TensorSpec((6, 40), "float32")]
        choices = list(other_sizes(text, space["get_inputs"], [(6, 40), (6, 40)], outputs, False, rng))
        rows = {choice.get_inputs()[0].shape[0] for choice in choices}
        assert (rows != {6}) == may_change
