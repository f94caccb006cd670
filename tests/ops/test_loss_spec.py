from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest
from kernel_coder import _C, LossSpec, ops


def test_python_and_cpp_have_the_same_fields_and_defaults() -> None:
    names = [name for name, _, _ in _C.LOSS_SPEC_FIELDS]
    assert [field.name for field in dataclasses.fields(LossSpec)] == names
    assert LossSpec().pack() == [default for _, _, default in _C.LOSS_SPEC_FIELDS]


def test_pack_follows_the_order_of_the_struct_and_sends_a_choice_as_its_index() -> None:
    packed = LossSpec(surrogate="sapo", importance_sampling_level="sequence", kl_estimator="k1", beta=0.5).pack()
    named = dict(zip([name for name, _, _ in _C.LOSS_SPEC_FIELDS], packed, strict=True))
    assert named["surrogate"] == _C.LOSS_SPEC_CHOICES["Surrogate"].index("sapo")
    assert named["importance_sampling_level"] == 1
    assert named["kl_estimator"] == 0
    assert named["beta"] == 0.5
    assert named["delta"] == math.inf
    assert named["epsilon_high"] == 0.2


def test_epsilon_high_is_epsilon_unless_given() -> None:
    index = [name for name, _, _ in _C.LOSS_SPEC_FIELDS].index("epsilon_high")
    assert LossSpec(epsilon=0.1).pack()[index] == 0.1
    assert LossSpec(epsilon=0.1, epsilon_high=0.3).pack()[index] == 0.3


def test_spec_is_frozen_comparable_and_hashable() -> None:
    assert LossSpec.preset("grpo") == LossSpec(reduction="sequence_mean")
    assert len({LossSpec(), LossSpec(), LossSpec(beta=0.1)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        LossSpec().beta = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        LossSpec("clip")  # type: ignore[misc]


# The fields of each preset, with the numbers of its paper or library. Other fields keep LossSpec's default.
PRESETS: dict[str, dict[str, Any]] = {
    "grpo": {"reduction": "sequence_mean"},
    "dr_grpo": {"reduction": "sequence_mean_token_sum", "length_constant": 256.0},
    "dapo": {"epsilon_high": 0.28},
    "bnpo": {},
    "cispo": {"surrogate": "cispo", "epsilon_high": 5.0},
    "cispo_verl": {"surrogate": "cispo_two_sided", "log_ratio_clamp": 20.0},
    "gspo": {
        "importance_sampling_level": "sequence",
        "reduction": "sequence_mean",
        "epsilon": 3e-4,
        "epsilon_high": 4e-4,
    },
    "gspo_token": {
        "importance_sampling_level": "sequence_token",
        "reduction": "sequence_mean",
        "epsilon": 3e-4,
        "epsilon_high": 4e-4,
    },
    "sapo": {"surrogate": "sapo", "reduction": "sequence_mean"},
    "gmpo": {
        "surrogate": "gmpo",
        "importance_sampling_level": "sequence",
        "reduction": "sequence_mean",
        "epsilon": 0.4,
    },
    "luspo": {
        "importance_sampling_level": "sequence",
        "reduction": "sequence_mean_token_sum",
        "epsilon": 3e-4,
        "epsilon_high": 4e-4,
    },
    "vespo": {"surrogate": "vespo", "importance_sampling_level": "sequence_sum"},
    "rloo": {"importance_sampling_level": "sequence_sum", "reduction": "sequence_mean"},
    "reinforce": {"surrogate": "reinforce"},
    "trl": {"use_bias_correction_kl": True, "mismatch": "sequence_mask", "mismatch_max": 3.0},
    "verl": {"dual_clip": 3.0, "log_ratio_clamp": 20.0, "kl_input_clamp": 20.0, "kl_output_clamp": 10.0},
    "nemo": {"beta": 0.01, "missing_rollout": "weight_zero", "kl_input_clamp": 20.0, "kl_output_clamp": 10.0},
    "openrlhf": {"log_ratio_clamp": 20.0, "kl_estimator": "k1", "kl_output_clamp": 10.0},
    "prime": {"surrogate": "dppo", "ratio_penalty": 1e-3, "ratio_to_rollout": True},
    "dr_kernel": {
        "epsilon_high": 0.28,
        "dual_clip": 3.0,
        "reduction": "sequence_mean_token_sum",
        "length_constant": 1000.0,
        "mismatch": "geometric_mask",
        "mismatch_min": 0.999,
        "mismatch_max": 1.001,
        "token_veto": 1e-4,
    },
}


def test_presets_have_the_published_numbers() -> None:
    assert set(LossSpec.presets()) == set(PRESETS)
    for name, fields in PRESETS.items():
        assert LossSpec.preset(name) == LossSpec(**fields), name


def test_a_preset_takes_changes_and_checks_them() -> None:
    assert LossSpec.preset("grpo", beta=0.04).beta == 0.04
    with pytest.raises(ValueError, match=r"^preset must be one of bnpo, cispo, .*; got 'ppo2'$"):
        LossSpec.preset("ppo2")
    with pytest.raises(ValueError, match=r"^LossSpec has no field betta$"):
        LossSpec.preset("grpo", betta=0.1)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"surrogate": "ppo"}, "surrogate must be one of clip, cispo, .*; got 'ppo'"),
        ({"reduction": "mean"}, "reduction must be one of sequence_mean, token_mean, .*; got 'mean'"),
        ({"beta": "0.1"}, "beta must be a finite number; got '0.1'"),
        ({"beta": float("nan")}, "beta must be a finite number; got nan"),
        ({"beta": -1.0}, "beta must be at least 0; got -1.0"),
        ({"beta": None}, "beta must be a finite number; got None"),
        ({"use_bias_correction_kl": 1}, "use_bias_correction_kl must be True or False; got 1"),
        ({"length_constant": 0.0}, "length_constant must be above 0; got 0.0"),
        ({"delta": 0.0}, "delta must be above 0, or None for no bound; got 0.0"),
        ({"dual_clip": 1.0}, "dual_clip must be above 1, or None; got 1.0"),
        ({"epsilon": 1.5}, "epsilon must be at most 1, for the ratio's lower bound is 1 - epsilon; got 1.5"),
        ({"epsilon_high": -0.1}, "epsilon_high must be at least 0; got -0.1"),
        ({"surrogate": "cispo"}, "epsilon_high must be given for surrogate 'cispo', .*"),
        ({"surrogate": "cispo", "epsilon_high": 0.28}, "epsilon_high is the largest ratio itself .* got 0.28 .*"),
        ({"surrogate": "sapo", "delta": 2.0}, "delta is a bound of surrogate 'clip'; got it with 'sapo'"),
        (
            {"surrogate": "gmpo"},
            "importance_sampling_level must be 'sequence' for surrogate 'gmpo'; got 'token'",
        ),
        ({"mismatch_max": 2.0}, "mismatch must name a mode when .*; got 'none'"),
        ({"mismatch": "token_mask"}, "mismatch_min or mismatch_max must be given for mismatch 'token_mask', .*"),
        (
            {"mismatch": "token_mask", "mismatch_min": 2.0, "mismatch_max": 1.0},
            "mismatch_min must be at most mismatch_max; got 2.0 and 1.0",
        ),
        (
            {"mismatch": "token_truncate", "mismatch_max": 2.0, "ratio_to_rollout": True},
            "mismatch must be 'none' when ratio_to_rollout is set, .*; got 'token_truncate'",
        ),
        (
            {
                "surrogate": "vespo",
                "importance_sampling_level": "sequence_sum",
                "mismatch": "token_truncate",
                "mismatch_max": 2.0,
            },
            "mismatch must be 'none' for surrogate 'vespo', .*",
        ),
    ],
)
def test_invalid_value_or_combination_is_refused_in_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        LossSpec(**fields)


def test_metric_names_come_from_the_compiled_module() -> None:
    assert ops.LOSS_METRICS == _C.LOSS_METRICS
    assert len(set(ops.LOSS_METRICS)) == len(ops.LOSS_METRICS)
    assert ops.LOSS_METRICS[:3] == ("tokens", "sequences", "loss")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("loss_type", "LossSpec has no field loss_type; LossSpec.from_trl takes TRL's names"),
        ("epsilon_hihg", "LossSpec has no field epsilon_hihg; did you mean epsilon_high?"),
        ("colour", "LossSpec has no field colour; LossSpec's docstring lists the fields"),
    ],
)
def test_unknown_field_is_refused_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(TypeError, match=re.escape(hint)):
        LossSpec(**{name: 1})
