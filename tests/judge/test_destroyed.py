"""The check that a candidate's own kernels do the work: without them, a quarter of the relevant elements are wrong."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from kernel_coder.judge.examiner.checks import is_destroyed
from torch import Tensor

X = torch.linspace(-2, 2, 64)
UPDATED = X.clone()
UPDATED[5:8] = 9.0
ONE_HOT = torch.zeros(64)
ONE_HOT[::8] = 1.5


def wrong(expected: Tensor, places: slice | list[int]) -> Tensor:
    """The expected output with other values at some places."""
    found = expected.clone()
    found[places] = torch.nan
    return found


@pytest.mark.parametrize(
    ("expected", "found", "destroyed"),
    [
        (X.exp(), wrong(X.exp(), slice(0, 16)), True),
        (X.exp(), wrong(X.exp(), slice(0, 15)), False),
        (UPDATED, X, True),  # only three elements need work
        (UPDATED, wrong(UPDATED, slice(20, 60)), False),
        (ONE_HOT, torch.zeros(64), True),
        (ONE_HOT, ONE_HOT, False),
        (X.relu(), X, True),  # all zeros of the ReLU are wrong
        (X.relu(), wrong(X.relu(), [3]), False),
        (wrong(X.exp(), [7]).nan_to_num(0.0), X.exp(), False),  # a single zero is too few to count
        (X.argsort(), torch.zeros(64, dtype=torch.int64), True),
    ],
)
def test_output_is_destroyed_if_a_quarter_of_its_computed_elements_are_wrong(
    expected: Tensor, found: Tensor, destroyed: bool
) -> None:
    tolerance = SimpleNamespace(rtol=1e-5, atol=1e-6)
    sample = SimpleNamespace(expected=[expected], tensors=[X], tolerances=[tolerance])
    assert is_destroyed([found], sample) is destroyed  # type: ignore[arg-type]
