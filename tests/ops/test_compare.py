from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder import _C, ops, reference
from kernel_coder.ops import ComparisonResult
from memory import allocated_bytes

NAN, INF = float("nan"), float("inf")
REAL = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
INTEGER = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
COMPLEX = [torch.complex128, torch.complex64]
PAIRS = [
    *((x, y) for x in REAL for y in REAL),
    *((x, x) for x in INTEGER),
    *((x, y) for x in COMPLEX for y in COMPLEX),
]
# Sizes around the vector widths, the columns and blocks of the CPU kernel, and the share of one thread.
SIZES = [0, 1, 2, 7, 8, 9, 15, 17, 255, 511, 513, 4097, 20000]


def pair_names(pair: tuple[torch.dtype, torch.dtype]) -> str:
    return "-".join(str(dtype).removeprefix("torch.") for dtype in pair)


def values(size: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(size, device=device) < 0.5
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(0, 100, (size,), dtype=dtype, device=device)
    return torch.randn(size, dtype=torch.complex128 if dtype.is_complex else torch.float64, device=device).to(dtype)


def assert_same(fast: ComparisonResult, slow: ComparisonResult) -> None:
    """Counts and the first mismatch must be equal. The largest errors may differ by a rounding, sums by their order."""
    assert fast[:7] == slow[:7]
    assert repr(fast[7:9]) == repr(slow[7:9])  # repr: NaN equals NaN, and 1 differs from 1.0
    for name in ("max_abs_error", "max_rel_error"):
        assert getattr(fast, name) == pytest.approx(getattr(slow, name), rel=1e-15, abs=0), name
    for name in ("squared_error", "squared_expected"):
        assert getattr(fast, name) == pytest.approx(getattr(slow, name), rel=1e-12, abs=0), name


def check(output: torch.Tensor, expected: torch.Tensor, **tolerances: float) -> ComparisonResult:
    result = ops.compare(output, expected, **tolerances).read()
    assert_same(result, reference.compare(output, expected, **tolerances))
    return result


@pytest.mark.parametrize("pair", PAIRS, ids=pair_names)
def test_equals_the_reference_for_every_pair_of_dtypes(device: str, pair: tuple[torch.dtype, torch.dtype]) -> None:
    for size in SIZES:
        expected = values(size, pair[1], device)
        output = expected.to(pair[0])
        if size:
            output[torch.randperm(size, device=device)[: size // 8 + 1]] = values(size // 8 + 1, pair[0], device)
        result = check(output, expected, rtol=0.1, atol=0.01)
        assert result.elements == size


@pytest.mark.parametrize("pair", PAIRS, ids=pair_names)
def test_equal_tensors_match_and_one_changed_element_is_found(
    device: str, pair: tuple[torch.dtype, torch.dtype]
) -> None:
    narrow = pair[1] if REAL[2:].count(pair[1]) or pair[1] == torch.complex64 else pair[0]
    expected = values(3000, narrow, device).to(pair[1])
    output = expected.to(pair[0])
    if torch.equal(output.to(pair[1]), expected):
        result = check(output, expected)
        assert result.matches
        assert result.max_abs_error == result.relative_error == 0.0
    output = output.clone()
    output[2999] = not output[2999] if pair[0] == torch.bool else output[2999] + 1
    result = check(output, expected, rtol=0.05)
    assert (result.mismatches, result.first) == (1, 2999)


@pytest.mark.parametrize("pair", [*((x, y) for x in REAL for y in REAL), *((x, y) for x in COMPLEX for y in COMPLEX)])
def test_nan_and_infinity_match_only_the_same_value(device: str, pair: tuple[torch.dtype, torch.dtype]) -> None:
    odd = [NAN, INF, -INF, 0.0, -0.0, 1.0]
    x = torch.tensor([a for a in odd for _ in odd], device=device).to(pair[0])
    y = torch.tensor([b for _ in odd for b in odd], device=device).to(pair[1])
    result = check(x, y, rtol=10.0, atol=10.0)  # finite elements all match
    assert (result.nan_added, result.nan_missing, result.inf_added, result.inf_missing) == (5, 5, 8, 6)
    assert result.mismatches == 24
    assert result.max_abs_error == result.max_rel_error == result.relative_error == INF
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        one = check(torch.tensor([a], device=device).to(pair[0]), torch.tensor([b], device=device).to(pair[1]))
        assert one.matches == (a == b or (a != a and b != b))


floats = st.one_of(st.floats(width=16), st.floats(width=32), st.floats())


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(floats, floats, st.booleans()), max_size=24),
    st.sampled_from([pair for pair in PAIRS if pair[0] in REAL]),
    st.sampled_from([0.0, 1e-6, 0.5]),
    st.sampled_from([0.0, 1e-8, 2.0]),
)
def test_equals_the_reference_for_any_floats(
    rows: list[tuple[float, float, bool]], pair: tuple[torch.dtype, torch.dtype], rtol: float, atol: float
) -> None:
    expected = torch.tensor([y for _, y, _ in rows], dtype=torch.float64).to(pair[1])
    output = torch.tensor([y if same else x for x, y, same in rows], dtype=torch.float64).to(pair[0])
    result = ops.compare(output, expected, rtol=rtol, atol=atol).read()
    slow = reference.compare(output, expected, rtol=rtol, atol=atol)
    if math.isinf(slow.squared_error) or math.isinf(slow.squared_expected):  # sums of squares that overflow
        result, slow = (one._replace(squared_error=0.0, squared_expected=0.0) for one in (result, slow))
    assert_same(result, slow)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(INTEGER))
def test_integers_are_compared_exactly_and_without_tolerance(data: st.DataObject, dtype: torch.dtype) -> None:
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    rows = data.draw(st.lists(st.tuples(*[st.integers(low, high)] * 2, st.booleans()), max_size=20))
    expected = torch.tensor([y for _, y, _ in rows], dtype=dtype)
    output = torch.tensor([y if same else x for x, y, same in rows], dtype=dtype)
    check(output, expected, rtol=1e9, atol=1e9)


def test_int64_values_too_large_for_float64_are_told_apart_and_reported_exactly(device: str) -> None:
    for value in (2**53, 2**63 - 2, -(2**63), -(2**53) - 2):
        result = check(torch.tensor([value + 1], device=device), torch.tensor([value], device=device))
        assert (result.mismatches, result.got, result.expected) == (1, value + 1, value)
        assert result.max_abs_error == 1.0


def test_a_bool_byte_that_is_neither_0_nor_1_is_true(device: str) -> None:
    odd = torch.tensor([0, 1, 2, 255], dtype=torch.uint8, device=device).view(torch.bool)
    assert ops.compare(odd, torch.tensor([False, True, True, True], device=device)).read().matches
    assert ops.compare(odd, torch.tensor([False, True, True, False], device=device)).read().first == 3


@pytest.mark.parametrize(
    ("x", "y", "rtol", "atol", "matches"),
    [
        (1.5, 1.0, 0.5, 0.0, True),
        (1.5 + 2**-52, 1.0, 0.5, 0.0, False),
        (1.5, 1.0, 0.0, 0.5, True),
        (2.0, 1.0, 0.5, 0.5, True),
        (2.0 + 2**-51, 1.0, 0.5, 0.5, False),
        (0.0, 5e-324, 0.0, 0.0, False),
        (1.0, 1.5, 0.34, 0.0, True),  # relative to expected, not to output
        (1.5, 1.0, 0.34, 0.0, False),
        (1e308, -1e308, 0.1, 0.0, False),  # the error overflows
    ],
)
def test_the_tolerance_is_atol_plus_rtol_times_expected(
    device: str, x: float, y: float, rtol: float, atol: float, matches: bool
) -> None:
    output, expected = (torch.tensor([v], dtype=torch.float64, device=device) for v in (x, y))
    assert check(output, expected, rtol=rtol, atol=atol).matches is matches


def test_relative_errors_are_bounded_by_the_smallest_normal_number(device: str) -> None:
    zero = torch.zeros(1, dtype=torch.float64, device=device)
    for dtype in REAL:
        tiny = torch.finfo(dtype).smallest_normal
        assert check(torch.tensor([4 * tiny], dtype=dtype, device=device), zero).max_rel_error == 4.0
        assert check(torch.tensor([tiny], dtype=dtype, device=device), zero + tiny / 4).max_rel_error == 0.75
    assert check(torch.tensor([3], device=device), torch.tensor([0], device=device)).max_rel_error == 3.0


def test_relative_error_is_the_norm_of_the_error_over_that_of_expected(device: str) -> None:
    expected = torch.tensor([3.0, 4.0], device=device)
    assert check(expected + torch.tensor([0.3, 0.4], device=device), expected).relative_error == pytest.approx(0.1)
    zeros = torch.zeros(2, device=device)
    assert check(zeros, zeros).relative_error == 0.0
    assert check(expected, zeros).relative_error == INF
    huge = torch.tensor([1e300], dtype=torch.float64, device=device)
    assert ops.compare(huge, 2 * huge).read().relative_error == INF  # both sums overflow, so the error is unknown


VIEWS = {
    "transposed": lambda t: t.view(30, 20).t(),
    "slice": lambda t: t.view(20, 30)[3:17, 2:29:3],
    "permuted": lambda t: t.view(2, 3, 4, 25).permute(3, 1, 0, 2),
    "expanded": lambda t: t[:24].view(1, 24, 1).expand(5, 24, 3),
    "offset by one": lambda t: t[1:],
    "offset and odd": lambda t: t[3:560],
    "scalar": lambda t: t[7],
    "ones": lambda t: t.view(1, 600, 1, 1).transpose(0, 1),
    "column": lambda t: t.view(30, 20)[:, 3],
    "empty": lambda t: t.view(30, 20)[:, 3:3],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("pair", [(torch.float32, torch.float64), (torch.bfloat16, torch.bfloat16), (torch.int32,) * 2])
def test_strided_tensors_are_read_in_row_major_order(
    device: str, view: str, pair: tuple[torch.dtype, torch.dtype]
) -> None:
    base = values(600, pair[1], device)
    expected, output = VIEWS[view](base), VIEWS[view](base.to(pair[0]))
    wrong = output.contiguous().clone()
    if wrong.numel() > 9:
        wrong.view(-1)[[4, 9]] += 3
    elif wrong.numel():
        wrong += 3
    for x, y in [
        (output, expected),
        (output.contiguous(), expected),
        (wrong, expected),
        (wrong, expected.contiguous()),
    ]:
        check(x, y, rtol=0.02)
    if wrong.dim() == 2:
        check(wrong.t(), expected.t(), rtol=0.02)


def test_more_than_16_dimensions_are_refused_unless_they_can_be_merged(device: str) -> None:
    deep = torch.zeros((2,) * 17, device=device)
    assert ops.compare(deep, deep + 1).read().mismatches == 2**17
    with pytest.raises(
        ValueError, match=r"^output and expected must lie in at most 16 dimensions that cannot be merged"
    ):
        ops.compare(deep.permute(tuple(range(16, -1, -1))), deep)


def test_bits_are_the_same_in_every_run_and_with_every_number_of_threads(device: str) -> None:
    output = torch.randn(300_001, device=device)
    expected = output.double() + 1e-3 * torch.randn(300_001, dtype=torch.float64, device=device)
    first = ops.compare(output, expected, rtol=1e-3).packed
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(ops.compare(output, expected, rtol=1e-3).packed, first)
    finally:
        torch.set_num_threads(threads)


def test_mismatch_at_the_end_of_a_large_tensor_is_found(device: str) -> None:
    expected = torch.zeros(3_000_003, dtype=torch.float16, device=device)
    output = expected.clone()
    output[3_000_001] = 1.0
    result = ops.compare(output, expected).read()
    assert (result.elements, result.mismatches, result.first, result.squared_error) == (3_000_003, 1, 3_000_001, 1.0)


def test_memory_does_not_grow_with_the_tensors(device: str) -> None:
    large = torch.zeros(1 << 20, dtype=torch.bfloat16, device=device)
    strided = large.view(1 << 10, -1).t()
    for x in (large, strided):
        if device == "cpu":
            assert allocated_bytes(lambda x=x: ops.compare(x, x.contiguous() if x is large else x)) <= 1 << 12
        else:
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            ops.compare(x, x).read()
            assert torch.cuda.max_memory_allocated() - before <= 1 << 17


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_compare_does_not_wait_for_the_device(device: str) -> None:
    if device == "cpu":
        return
    x = torch.randn(5000, device=device)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        comparisons = [ops.compare(x, x), ops.compare(x, x + 1)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [result.mismatches for result in ops.read_comparisons(comparisons)] == [0, 5000]


def test_reading_no_comparisons_gives_an_empty_list() -> None:
    assert ops.read_comparisons([]) == []


def test_inputs_are_left_alone_and_the_result_carries_no_gradient(device: str) -> None:
    x = torch.randn(100, device=device, requires_grad=True)
    before = x.detach().clone()
    assert not ops.compare(x, x * 2).packed.requires_grad
    assert torch.equal(x.detach(), before)


def test_lazily_conjugated_tensors_are_compared_by_their_values(device: str) -> None:
    z = torch.randn(10, dtype=torch.complex64, device=device)
    assert ops.compare(z.conj(), torch.conj_physical(z)).read().matches
    assert not ops.compare(z.conj(), z).read().matches


@pytest.mark.parametrize(
    ("output", "expected", "options", "sentence"),
    [
        (
            torch.zeros(2, 3),
            torch.zeros(3, 2),
            {},
            r"^expected must have the shape of output; got \[2, 3\] for output and \[3, 2\] for expected$",
        ),
        (torch.zeros(1), torch.zeros(()), {}, r"^expected must have the shape of output; got \[1\] .* and \[\] "),
        (
            torch.zeros(2),
            torch.zeros(2, dtype=torch.int64),
            {},
            r"^output and expected must be both floating point, both complex, or of one integer dtype; got float32 and "
            r"int64$",
        ),
        (torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.int64), {}, r"got int32 and int64$"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.complex64), {}, r"got float32 and complex64$"),
        (
            torch.zeros(2).to(torch.float8_e4m3fn),
            torch.zeros(2),
            {},
            r"^output must be float16, .*; got another dtype$",
        ),
        (torch.zeros(2), torch.zeros(2), {"rtol": -0.1}, r"^rtol must be finite and at least 0; got -0.1$"),
        (torch.zeros(2), torch.zeros(2), {"atol": NAN}, r"^atol must be finite and at least 0; got nan$"),
        (torch.zeros(2), torch.zeros(2), {"atol": INF}, r"^atol must be finite and at least 0; got inf$"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(
    device: str, output: torch.Tensor, expected: torch.Tensor, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        ops.compare(output.to(device), expected.to(device), **options)


def test_tensors_on_two_devices_are_refused(device: str) -> None:
    if device == "cpu":
        return
    for x, y in [("cpu", device), (device, "cpu")]:
        with pytest.raises(ValueError, match=r"^expected must be on the device of output; got "):
            ops.compare(torch.zeros(2, device=x), torch.zeros(2, device=y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64])
def test_opcheck(device: str, dtype: torch.dtype) -> None:
    x = values(40, dtype, device).view(8, 5)
    torch.library.opcheck(_C.compare, (x, x.t().contiguous().t(), 1e-3, 1e-6))


def test_compiles_without_a_graph_break(device: str) -> None:
    def mismatches(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ops.compare(x, y, atol=0.5).packed[2] + 1

    x, y = torch.randn(2, 50, device=device)
    compiled = torch.compile(mismatches, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, y), mismatches(x, y))


def test_check_of_these_tests_notices_each_changed_field() -> None:
    x, y = torch.randn(2, 100, dtype=torch.float64)
    good = ops.compare(x, y, rtol=0.5).read()
    for name in good._fields:
        value = getattr(good, name)
        with pytest.raises(AssertionError):
            assert_same(
                good._replace(**{name: (value or 1) * (1 + 1e-9) if isinstance(value, float) else value + 1}), good
            )
