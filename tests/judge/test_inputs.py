"""Kinds of inputs that candidates are checked with."""

from __future__ import annotations

import pytest
import torch
from kernel_coder.judge.inputs import OUTLIER, of_family


@pytest.mark.parametrize("shape", [(2,), (3, 1), (6, 40), (2, 3, 5)])
def test_a_structured_input_has_an_outlier_every_time(shape: tuple[int, ...]) -> None:
    """Else who forgets to subtract a maximum would pass by luck."""
    rng = torch.Generator().manual_seed(0)
    own = torch.rand(shape)
    before = own.clone()
    made = [of_family("structured", own, rng) for _ in range(200)]
    assert all(float(one.max()) == OUTLIER for one in made)
    assert sum(float(one.min()) == -OUTLIER for one in made) >= 80
    assert all(one.shape == own.shape and one.dtype == own.dtype for one in made)
    assert torch.equal(own, before)


def test_one_number_is_not_always_an_outlier() -> None:
    rng = torch.Generator().manual_seed(0)
    assert any(float(of_family("structured", torch.rand(()), rng)) < 1 for _ in range(20))
