"""The families of inputs that candidates are checked with."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from kernel_coder.judge.config import FAMILIES
from kernel_coder.judge.examiner.input_families import (
    INPUT_FAMILIES,
    OUTLIER,
    Pattern,
    is_whole,
    of_family,
    pattern_of,
)
from kernel_coder.judge.examiner.samples import Sample, SampleMaker


def test_every_family_of_the_settings_can_be_made() -> None:
    assert tuple(INPUT_FAMILIES) == FAMILIES


@pytest.mark.parametrize("shape", [(2,), (3, 1), (6, 40), (2, 3, 5)])
def test_a_structured_input_has_an_outlier_every_time(shape: tuple[int, ...]) -> None:
    """Otherwise a candidate that forgets to subtract a maximum could pass by luck."""
    rng = torch.Generator().manual_seed(0)
    own = torch.rand(shape)
    before = own.clone()
    made = [of_family("structured", own, rng) for _ in range(200)]
    assert all(float(one.max()) == OUTLIER for one in made)
    assert sum(float(one.min()) == -OUTLIER for one in made) >= 80
    assert all(one.shape == own.shape and one.dtype == own.dtype for one in made)
    assert torch.equal(own, before)


@pytest.mark.parametrize("family", [name for name in INPUT_FAMILIES if name != "own"])
def test_families_keep_whole_numbers_and_sorted_rows(family: str) -> None:
    rng = torch.Generator().manual_seed(0)
    for whole in (torch.randint(0, 10, (4, 6)).float(), (torch.rand(5, 5) > 0.5).half(), torch.rand(40).sign() * -1):
        whole[0] = 2
        assert torch.equal(of_family(family, whole, rng), whole)
    for other in (torch.ones(4, 6), torch.rand(40), torch.full((2, 3), 7.0)):
        assert not torch.equal(of_family(family, other, rng), other)
    assert not is_whole(torch.randperm(40).float() * 2.0**30), "as all large numbers are"
    shuffled = of_family(family, torch.rand(40), rng)
    assert not torch.equal(shuffled, shuffled.sort().values)
    for rows in (torch.randn(31), torch.rand(3, 50)):
        own = rows.sort(dim=-1).values
        made = of_family(family, own, rng)
        assert torch.equal(made, made.sort(dim=-1).values)
        assert not torch.equal(made, own)


@pytest.mark.parametrize(
    ("inexact", "reaches", "kept"),
    [
        ([], [1.0], 1.0),
        ([0], [1.0, 1.0], 1.0),  # inexact once, by chance
        ([0, 1], [1.0, 1.0, 0.6], 0.6),
        ([0, 1, 2, 3], [1.0, 1.0, 0.6, 0.3, 0.0], 0.0),
    ],
)
def test_reach_of_a_family_shrinks_only_after_the_reference_is_inexact_twice(
    monkeypatch: pytest.MonkeyPatch, inexact: list[int], reaches: list[float], kept: float
) -> None:
    """Otherwise one softmax task in ten would get no row below -10,000, and wrong padding would pass."""
    maker, asked, sample = SampleMaker(SimpleNamespace(), "fp32"), list[float](), object.__new__(Sample)  # type: ignore[arg-type]

    def try_sample(family: str, get_inputs: None, reach: float) -> Sample | str:
        asked.append(reach)
        return "the reference is inexact" if len(asked) - 1 in inexact else sample

    monkeypatch.setattr(maker, "try_sample", try_sample)
    assert maker.sample("negative") is sample
    assert asked == reaches
    inexact.clear()
    asked.clear()
    maker.sample("negative")
    assert asked == [kept]


def test_structured_input_of_one_number_is_not_always_an_outlier() -> None:
    rng = torch.Generator().manual_seed(0)
    assert any(float(of_family("structured", torch.rand(()), rng)) < 1 for _ in range(20))


def test_pattern_of_an_input_agrees_with_definitions_over_all_elements() -> None:
    """Shapes and values are random. Some inputs break a pattern in one element only."""
    torch.manual_seed(0)
    shapes = [(), (1,), (2,), (3,), (40,), (5, 5), (3, 7), (2, 4, 4), (1500,), (2, 1200), (1, 1)]
    seen = set()
    for number in range(1500):
        own = torch.rand(shapes[number % len(shapes)]) - 0.3
        if number % 2 and own.dim():
            own = own.sort(dim=-1).values
        if number % 3 == 0:
            own = (own * 9).round()
        if number % 5 == 0 and own.dim() >= 2 and own.shape[-1] == own.shape[-2]:
            own = own + own.transpose(-1, -2)
        if number % 7 == 0:
            own = own * (torch.rand(own.shape) > 0.2)
        if number % 11 == 0:
            own.view(-1)[-1] = -0.37
        rows = own.reshape(-1, own.shape[-1]).tolist() if own.dim() else []
        wide, square = own.dim() > 0 and own.shape[-1] > 2, own.dim() >= 2 and own.shape[-1] == own.shape[-2] > 1
        numbers = own.reshape(-1).tolist()
        expected = Pattern(
            is_whole=all(one == round(one) for one in numbers) and len(set(numbers)) > 1,
            is_sorted=wide and all(row == sorted(row) for row in rows) and any(row[0] < row[-1] for row in rows),
            is_symmetric=square and torch.equal(own, own.transpose(-1, -2)),
            is_sparse=numbers.count(0.0) > 0.05 * len(numbers),
        )
        assert pattern_of(own) == expected, own
        assert is_whole(own) is expected.is_whole
        seen.add(expected)
    assert len(seen) > 9
