from __future__ import annotations

import pytest
import torch
from tolerances import TOLERANCE, assert_close


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_a_result_rounded_once_passes(dtype: torch.dtype) -> None:
    reference = torch.randn(1000, dtype=torch.float64)
    assert_close(reference.to(dtype), reference)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_error_slightly_above_the_bound_is_refused_at_every_scale(dtype: torch.dtype, scale: float) -> None:
    reference = scale * torch.randn(1000, dtype=torch.float64)
    assert_close(reference * (1 + 0.9 * TOLERANCE[dtype]), reference, dtype=dtype)
    with pytest.raises(AssertionError, match="relative error"):
        assert_close(reference * (1 + 1.1 * TOLERANCE[dtype]), reference, dtype=dtype)


def test_one_wrong_element_is_refused() -> None:
    reference = torch.randn(100, dtype=torch.float64)
    reference[17] = 1.0
    wrong = reference.clone()
    wrong[17] = 0.0
    with pytest.raises(AssertionError, match="relative error"):
        assert_close(wrong, reference, dtype=torch.bfloat16)


def test_nonzero_result_for_a_zero_reference_is_refused() -> None:
    with pytest.raises(AssertionError, match="relative error inf"):
        assert_close(torch.full((3,), 1e-30), torch.zeros(3))


def test_nan_is_refused() -> None:
    with pytest.raises(AssertionError, match="finite"):
        assert_close(torch.tensor([float("nan")]), torch.zeros(1))
