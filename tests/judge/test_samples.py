"""What a sample expects of a candidate: the reference and other right implementations stay within the tolerance."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from kernel_coder import ops
from kernel_coder.judge import JudgeConfig
from kernel_coder.judge.examiner.prepared_task import PreparedTask
from kernel_coder.judge.examiner.randomness import Seeds
from kernel_coder.judge.examiner.scaling import scales_with_inputs
from kernel_coder.judge.examiner.tolerance import MAX_OFF_SHARE, SAMPLED, Tolerance, magnitudes_of, places_of
from kernel_coder.judge.gpu.turns import GpuTurns

DRAWS_A_LITTLE = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 16)
    def forward(self, x):
        return self.linear(x) + self.linear(1e-5 * torch.randn(x.shape))
def get_inputs():
    return [torch.rand(4, 8)]
def get_init_inputs():
    return []
"""


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Restores the number of threads, which preparing a task changes."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_reference_that_draws_random_numbers_is_within_the_tolerance_each_time() -> None:
    """The reference draws in float32. So the oracle in float64 fails, and the reference's own outputs are expected."""
    task = {"reference": DRAWS_A_LITTLE, "entry_point": "Model", "precision": "fp32"}
    for key in range(4):
        made = PreparedTask(task, JudgeConfig(), torch.device("cpu"), Seeds(key), GpuTurns())
        sample = made.samples.sample("own")
        allowed = sample.tolerances[0]
        assert allowed.relative < 1e-3
        for again in (made.reference.own_outputs(sample.inputs, [])[0] for _ in range(4)):
            result = ops.compare(again, sample.expected[0], rtol=allowed.rtol, atol=allowed.atol).read()
            assert allowed.passes(result), (key, result, allowed)


@pytest.mark.parametrize("backward", [False, True])
def test_outputs_and_gradients_are_expected_as_the_oracle_computes_them(backward: bool) -> None:
    """In float64. The reference's own float32 results are expected only if the oracle fails."""
    source = DRAWS_A_LITTLE.replace(" + self.linear(1e-5 * torch.randn(x.shape))", "")
    task = {"reference": source, "entry_point": "Model", "precision": "fp32"}
    config = JudgeConfig(backward=backward)
    made = PreparedTask(task, config, torch.device("cpu"), Seeds(0), GpuTurns())
    expected = made.samples.sample("own").expected
    assert len(expected) == (4 if backward else 1)  # the output, and gradients of the input, weight and bias
    for one in expected:
        assert one.dtype == torch.float64
        assert not torch.equal(one, one.float().double())


def test_few_small_elements_may_have_larger_errors_but_not_many() -> None:
    rng = torch.Generator().manual_seed(0)
    expected = torch.logspace(-6, 2, SAMPLED, dtype=torch.float64)
    magnitudes = magnitudes_of(expected, 1e-7 * expected * torch.rand(SAMPLED, generator=rng, dtype=torch.float64))
    tolerance = Tolerance(rtol=1e-6, atol=1e-4, relative=1e-6, reference_error=1e-7)

    def wrong(count: int) -> int:
        off = expected.clone()
        off[torch.randperm(SAMPLED // 4, generator=rng)[:count]] += 5e-5
        return int(magnitudes.wrong(off, expected, tolerance, places_of(expected)))

    assert wrong(0) == 0
    assert 0 < wrong(3) <= MAX_OFF_SHARE * SAMPLED < wrong(12)


ATTENTION = """
import torch
class Model(torch.nn.Module):
    def forward(self, q, k, v):
        {forward}
def get_inputs():
    return [torch.randn(2, 16, 20), torch.randn(2, 24, 20), torch.randn(2, 24, 20)]
def get_init_inputs():
    return []
"""

FORWARDS = {
    "matmul": "return torch.softmax(q @ k.mT * 20**-0.5, -1) @ v",
    "exp": "s = q @ k.mT * 20**-0.5; e = (s - s.amax(-1, True)).exp(); return e / e.sum(-1, keepdim=True) @ v",
    "sdpa": "return torch.nn.functional.scaled_dot_product_attention(q, k, v)",
    "fused": "return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]",
}


@pytest.mark.parametrize("forward", FORWARDS)
@pytest.mark.parametrize("family", ["huge", "offset", "negative", "outlier", "structured"])
def test_attention_may_scale_scores_and_subtract_the_largest_with_one_rounding(forward: str, family: str) -> None:
    """A GPU computes ``exp(x * scale - largest)`` with a fused multiply-add. It would return NaN for scores of 1e10."""
    task = {"reference": ATTENTION.format(forward=FORWARDS[forward]), "entry_point": "Model", "precision": "fp32"}
    samples = PreparedTask(task, JudgeConfig(), torch.device("cpu"), Seeds(0), GpuTurns()).samples
    for _ in range(12):
        sample = samples.sample(family)
        q, k, v = sample.inputs
        scores = q @ k.mT
        largest = (scores * 20**-0.5).amax(-1, keepdim=True)
        exponentials = (scores.double() * 20**-0.5 - largest.double()).float().exp()
        found = exponentials / exponentials.sum(-1, keepdim=True) @ v
        allowed = sample.tolerances[0]
        result = ops.compare(found, sample.expected[0], rtol=allowed.rtol, atol=allowed.atol).read()
        assert allowed.passes(result), (result, allowed)


LOSS = """
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def forward(self, x, y):
        return {forward}
def get_inputs():
    return [torch.randn(2, 40), torch.{targets}]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("family", ["huge", "offset", "negative", "outlier"])
def test_cross_entropy_may_subtract_the_chosen_logit_from_the_logsumexp(family: str) -> None:
    """The output is one number. This candidate subtracts the chosen logit last; torch subtracts the largest first."""
    reference = LOSS.format(forward="F.cross_entropy(x, y)", targets="randint(0, 40, (2,))")
    task = {"reference": reference, "entry_point": "Model", "precision": "fp32"}
    samples = PreparedTask(task, JudgeConfig(), torch.device("cpu"), Seeds(0), GpuTurns()).samples
    for _ in range(200):
        sample = samples.sample(family)
        x, y = sample.inputs
        found = (torch.logsumexp(x, 1) - x.gather(1, y[:, None])[:, 0]).mean()
        allowed = sample.tolerances[0]
        result = ops.compare(found, sample.expected[0], rtol=allowed.rtol, atol=allowed.atol).read()
        assert allowed.passes(result), (result, allowed)


@pytest.mark.parametrize(
    ("forward", "scales"),
    [
        ("x @ y.T", True),
        ("F.mse_loss(x, y)", True),
        ("(x - y).norm()", True),
        ("F.kl_div(x, y, reduction='batchmean')", False),
        ("x.tanh()", False),
        ("x.tanh().mean()", False),
        ("x.logsumexp((0, 1))", False),
    ],
)
def test_outputs_proportional_to_a_power_of_the_inputs_scale_are_recognised(forward: str, scales: bool) -> None:
    reference = LOSS.format(forward=forward, targets="rand(2, 40)")
    task = {"reference": reference, "entry_point": "Model", "precision": "fp32"}
    made = PreparedTask(task, JudgeConfig(), torch.device("cpu"), Seeds(0), GpuTurns())
    assert scales_with_inputs(made.reference) is scales


COMPILES_ITSELF = """
import torch
from torch.nn.attention.flex_attention import flex_attention
class Model(torch.nn.Module):
    def forward(self, q):
        return flex_attention(q, q, q)
def get_inputs():
    return [torch.randn(1, 2, 16, 16)]
def get_init_inputs():
    return []
"""


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_reference_with_flex_attention_keeps_its_input_families() -> None:
    """torch compiles nothing while operators are observed, and flex_attention then raises an error."""
    task = {"reference": COMPILES_ITSELF, "entry_point": "Model", "precision": "fp32"}
    made = PreparedTask(task, JudgeConfig(), torch.device("cpu"), Seeds(0), GpuTurns())
    assert {"huge", "offset", "negative"} <= set(made.families)


QUANTIZED = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.round(x / (x.abs().amax(dim=-1, keepdim=True) / 127)).to(torch.int8)
def get_inputs():
    return [torch.randn(256, 1024)]
def get_init_inputs():
    return []
"""


def test_number_halfway_between_two_integers_may_be_rounded_up_or_down() -> None:
    """A reciprocal adds up to three rounding errors. One number in 100,000 is that near to the middle."""
    task = {"reference": QUANTIZED, "entry_point": "Model", "precision": "fp32"}
    samples = PreparedTask(task, JudgeConfig(), torch.device("cpu"), Seeds(0), GpuTurns()).samples
    differ = 0
    for _ in range(30):
        sample = samples.sample("own")
        x = sample.inputs[0]
        for off in (1 - 2e-7, 1 + 2e-7):
            found = torch.round(x * (127 / x.abs().amax(dim=-1, keepdim=True)) * off).to(torch.int8)
            differ += int((found != sample.expected[0]).sum())
            assert torch.equal(found, sample.expected[0]) or sample.has_same_integers(0, found)
        assert not sample.has_same_integers(0, sample.expected[0] + 1)
    assert differ > 100
