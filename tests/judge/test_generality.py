"""Other sizes, the library's share of the work, the families of inputs, and how parameters are loaded."""

from __future__ import annotations

import os

import corpus
import pytest
import torch
from kernel_coder.judge import Judge, JudgeConfig, Outcome, Verdict
from kernel_coder.judge.examiner.input_families import INPUT_FAMILIES, is_table, of_family, perturb
from kernel_coder.judge.examiner.tolerance import of_output
from kernel_coder.judge.wire.messages import Loaded
from kernel_coder.judge.wire.module_calls import load_state, one_value, state_of
from kernel_coder.ops import compare
from kernel_coder.tasks import Task
from torch import nn

DEVICE = "cuda" if os.environ.get("KC_REQUIRE_CUDA") == "1" else "cpu"


def judged(name: str, **changes: object) -> Verdict:
    """The verdict on an honest candidate of the corpus."""
    one = next(candidate for candidate in corpus.honest() if candidate.name == name)
    task = Task(id=one.task.name, source="corpus", reference=one.task.source, precision=one.task.precision)
    config = JudgeConfig.model_validate({"timing": False, "profile": False, "workers": 1, **changes})
    with Judge(DEVICE, config=config) as judge:
        return judge.evaluate(task, one.source, one.backend)


# ---- other sizes


@pytest.mark.parametrize(
    ("hidden_shapes", "outcome", "says"),
    [("flag", Outcome.CORRECT, True), ("require", Outcome.RUNTIME_ERROR, False), ("off", Outcome.CORRECT, False)],
)
def test_hidden_shapes_setting_decides_how_an_error_on_other_sizes_counts(
    hidden_shapes: str, outcome: Outcome, says: bool
) -> None:
    verdict = judged("softmax_for_8_rows", hidden_shapes=hidden_shapes)
    assert verdict.outcome is outcome
    assert (verdict.specialised is not None) == says
    assert not says or "AssertionError" in str(verdict.specialised)


def test_general_candidate_is_not_specialised_and_is_deterministic() -> None:
    verdict = judged("softmax_row", hidden_shapes="flag")
    assert (verdict.correct, verdict.specialised, verdict.deterministic) == (True, None, True)
    assert (verdict.library_share, verdict.aliases_input, verdict.clock_note) == (0.0, False, None)


def test_verdict_says_whether_a_candidate_overwrites_its_last_output() -> None:
    one = next(candidate for candidate in corpus.honest() if candidate.name == "elu_workspace")
    remembers = one.source.replace("if self.workspace.shape != x.shape:", "if True:")
    assert remembers != one.source
    task = Task(id=one.task.name, source="corpus", reference=one.task.source)
    with Judge(DEVICE, config=JudgeConfig(timing=False, profile=False, workers=1)) as judge:
        verdicts = [judge.evaluate(task, source, "triton") for source in (one.source, remembers)]
    assert [(one.outcome, one.reuses_output) for one in verdicts] == [(Outcome.CORRECT, True), (Outcome.CORRECT, False)]


# ---- the library's share of the work


def test_library_product_is_rejected_unless_the_settings_allow_it() -> None:
    refused = judged("linear_relu_epilogue")
    assert refused.outcome is Outcome.REJECTED
    assert "of the arithmetic" in str(refused.reason)
    allowed = judged("linear_relu_epilogue", allow=["library_matmul"])
    assert allowed.correct
    assert judged("linear_relu_epilogue", min_kernel_share=0.0).library_share == refused.library_share > 0.9


# ---- inputs and parameters


@pytest.mark.parametrize("family", [one for one in INPUT_FAMILIES if one != "own"])
def test_every_family_changes_inputs_and_keeps_their_shape(family: str) -> None:
    own = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    made = of_family(family, own, torch.Generator().manual_seed(2))
    assert (made.shape, made.dtype) == (own.shape, own.dtype)
    assert not torch.equal(made, own)
    assert made.isfinite().all()


def test_each_input_family_has_its_characteristic_values() -> None:
    own = torch.randn(9, 33, generator=torch.Generator().manual_seed(1))

    def made(family: str) -> torch.Tensor:
        return of_family(family, own, torch.Generator().manual_seed(2))

    assert made("tiny").abs().max() < 1e-2
    assert made("huge").abs().max() > 1e3
    assert made("negative").max() <= -1
    assert made("offset").mean(1).abs().min() > 90
    assert (made("outlier").abs() == 1e4).sum() == 1
    ties = made("ties")
    assert all(torch.equal(row, own[0]) or row.max() - row.min() < 0.011 for row in ties)


def test_perturb_changes_zeros_of_parameters_but_not_of_buffers_and_tables() -> None:
    module = nn.Module()
    module.weight = nn.Parameter(torch.eye(4))
    module.scale = nn.Parameter(1e-6 * torch.ones(4))
    module.register_buffer("band", torch.eye(4))
    module.register_buffer("mask", torch.tril(torch.ones(4, 4)))
    perturb(module, torch.Generator().manual_seed(0), frozenset({"mask"}))
    assert (module.weight != 0).all()
    assert (module.scale > 0.5).all()
    assert torch.equal(module.band != 0, torch.eye(4) != 0)
    assert torch.equal(module.mask, torch.tril(torch.ones(4, 4)))
    assert is_table(module.mask, module.mask.clone())


def test_bfloat16_tolerance_is_at_most_about_three_rounding_errors() -> None:
    y = torch.randn(4096, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rounded = compare(y.bfloat16(), y).read()
    exact = compare(y, y).read()
    allowed = of_output(torch.bfloat16, rounded, exact, "bf16")
    assert rounded.relative_error < allowed.relative < 3.1 * rounded.relative_error


# ---- how parameters are loaded


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(3))
        self.scale = nn.Parameter(torch.ones(3))


REFERENCE = {"weight": torch.tensor([1.0, 2.0, 3.0]), "bias": torch.tensor([4.0, 5.0, 6.0])}
INITIAL = {"weight": 1.0, "bias": 0.0}


def test_parameters_of_equal_shape_are_matched_by_their_initial_values() -> None:
    module = Norm()
    first = {name: one_value(value) for name, value in state_of(module).items()}
    for _ in range(2):  # in the second round the parameters no longer have their initial values
        found = load_state(module, REFERENCE, False, (), INITIAL, first)
        assert found == (Loaded.BY_ORDER, {"weight": "scale", "bias": "shift"})
        assert torch.equal(module.scale, REFERENCE["weight"])
        assert torch.equal(module.shift, REFERENCE["bias"])


def test_extra_buffer_does_not_prevent_loading_by_name() -> None:
    module = nn.Linear(3, 1)
    module.register_buffer("workspace", torch.zeros(5))
    state = {"weight": torch.ones(1, 3), "bias": torch.ones(1)}
    assert load_state(module, state, True) == (Loaded.BY_NAME, {"weight": "weight", "bias": "bias"})
    assert torch.equal(module.weight, state["weight"])


def test_candidate_may_lack_a_constant_table() -> None:
    state = {"weight": torch.ones(1, 3), "bias": torch.ones(1), "mask": torch.ones(2, 2)}
    assert load_state(nn.Linear(3, 1), state, False) is None
    found = load_state(nn.Linear(3, 1), state, False, ["mask"])
    assert found == (Loaded.BY_NAME, {"weight": "weight", "bias": "bias"})


def test_load_hook_of_a_candidate_sees_the_names_of_the_reference() -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = nn.Parameter(torch.zeros(2, 3))
            self._register_load_state_dict_pre_hook(self.join)

        def join(self, state: dict[str, torch.Tensor], prefix: str, *_: object) -> None:
            state[f"{prefix}both"] = torch.stack([state.pop(f"{prefix}{name}") for name in REFERENCE])

    module = Joined()
    assert load_state(module, REFERENCE, False) == (Loaded.BY_NAME, {})
    assert torch.equal(module.both, torch.stack(list(REFERENCE.values())))
