"""The arithmetic of torch's operators is counted: every operator that contains a product counts its work."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_coder.judge.wire.op_work import WorkCounter, product_work
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

sizes = st.integers(1, 300)


def test_no_process_of_the_judge_imports_torchs_compiler_to_observe_operators() -> None:
    """torch imports it at the first operator in a mode that is excluded from compilation."""
    for module in ("examiner.service", "runner.process"):
        importlib.import_module(f"kernel_coder.judge.{module}")
    left, found = [TorchDispatchMode], list[type[TorchDispatchMode]]()
    while left:
        kinds = left.pop().__subclasses__()
        left += kinds
        found += [kind for kind in kinds if kind.__module__.startswith("kernel_coder.judge.")]
    assert len(found) >= 4
    assert not [kind for kind in found if kind._should_skip_dynamo()]


@given(sizes, sizes, sizes)
def test_work_of_a_product_is_computed_from_the_sizes_of_its_matrices(m: int, k: int, n: int) -> None:
    a, b, c = (torch.empty(shape, device="meta") for shape in ((m, k), (k, n), (m, n)))
    assert product_work("mm", [a, b], [c]) in (2 * m * k * n, 2 * m * k * n - 2)  # a square root is rounded down


def work_of_call(call: Callable[[], object]) -> int:
    with torch.no_grad(), WorkCounter() as counter:
        call()
    return counter.work


A, B, IMAGE, FILTERS = torch.ones(64, 32), torch.ones(32, 48), torch.ones(2, 16, 8, 8), torch.ones(16, 16, 3, 3)
QUERY = torch.ones(2, 4, 16, 8)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.addbmm(torch.zeros(64, 48), A[None], B[None], beta=0),
        lambda: torch.stack([torch.mv(B.t(), row) for row in A]),
        lambda: torch._trilinear(A, B, torch.ones(()), [2], [0], [0, 1, 2], [1]),
        lambda: torch._addmm_activation(torch.zeros(48), A, B),
        lambda: torch.cdist(A, B.t().contiguous()),
        lambda: torch.nn.functional.embedding_bag(
            torch.arange(32).repeat(64, 1), B, per_sample_weights=A, mode="sum"
        ),
    ],
)  # fmt: skip
def test_operator_that_contains_a_product_counts_at_least_its_work(call: Callable[[], Tensor]) -> None:
    assert work_of_call(call) >= work_of_call(lambda: A @ B)


SQUARE = torch.eye(32)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.linalg.solve_triangular(SQUARE, SQUARE, upper=True),
        lambda: torch.linalg.solve(SQUARE, SQUARE),
        lambda: torch.linalg.inv(SQUARE),
        lambda: torch.linalg.pinv(SQUARE),
        lambda: torch.linalg.lu_solve(*torch.linalg.lu_factor(SQUARE), SQUARE),
        lambda: torch.linalg.lstsq(SQUARE, SQUARE),
    ],
)
def test_solving_a_linear_system_counts_at_least_as_much_as_a_product(call: Callable[[], object]) -> None:
    assert work_of_call(call) >= 2 * 32**3
    assert work_of_call(lambda: torch.linalg.vector_norm(SQUARE)) == 32**2


def test_attention_counts_both_of_its_products() -> None:
    attention = torch.nn.functional.scaled_dot_product_attention
    assert work_of_call(lambda: attention(QUERY, QUERY, QUERY)) == 4 * QUERY.numel() * 16


def test_a_convolution_counts_like_torch_s_formula() -> None:
    plain = work_of_call(lambda: torch.nn.functional.conv2d(IMAGE, FILTERS, padding=1))
    assert product_work("_convolution_pointwise", [IMAGE, FILTERS], [IMAGE]) == plain


@pytest.mark.parametrize(
    "call", [lambda: A.to(torch.float64), lambda: A.t().contiguous(), lambda: torch.cat([A, A]), lambda: A.view(-1)]
)
def test_copies_and_views_are_no_work(call: Callable[[], Tensor]) -> None:
    assert work_of_call(call) == 0


def test_interpolation_is_no_product() -> None:
    call = lambda: torch.nn.functional.interpolate(IMAGE, scale_factor=2, mode="bilinear")  # noqa: E731
    assert work_of_call(call) == 4 * IMAGE.numel()
