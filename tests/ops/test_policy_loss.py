from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from anywhere import anywhere, there
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder import _C, LossSpec, ops, reference
from kernel_coder.ops import LOSS_METRICS, LossOutput
from tolerances import assert_close

pytestmark = pytest.mark.usefixtures("ops_run_there")
policy_loss = anywhere(ops.policy_loss)
NAN, INF = float("nan"), float("inf")
LEVELS = ["token", "sequence", "sequence_token", "sequence_sum"]
REDUCTIONS = ["sequence_mean", "token_mean", "sequence_mean_token_sum", "sum"]
SURROGATES: list[dict[str, Any]] = [
    *({"surrogate": "clip", "importance_sampling_level": level, "epsilon_high": 0.28} for level in LEVELS),
    {"surrogate": "clip", "delta": 1.4},
    {"surrogate": "clip", "dual_clip": 1.5},
    *({"surrogate": "cispo", "importance_sampling_level": level, "epsilon_high": 1.3} for level in LEVELS),
    *({"surrogate": "cispo_two_sided", "importance_sampling_level": level} for level in LEVELS),
    *({"surrogate": "sapo", "importance_sampling_level": level} for level in LEVELS),
    {"surrogate": "gmpo", "importance_sampling_level": "sequence"},
    {"surrogate": "dppo", "epsilon": 0.05},
    {"surrogate": "vespo", "importance_sampling_level": "sequence_sum"},
    {"surrogate": "reinforce"},
    {"surrogate": "clip", "ratio_penalty": 0.3, "log_ratio_clamp": 0.4},
    {"surrogate": "clip", "importance_sampling_level": "sequence", "log_ratio_clamp": 0.05},
]
KLS: list[dict[str, Any]] = [
    {},
    {"beta": 0.3, "kl_estimator": "k1"},
    {"beta": 0.3, "kl_estimator": "k2", "kl_input_clamp": 0.4},
    {"beta": 0.3, "kl_estimator": "k3", "kl_output_clamp": 0.1, "entropy_coef": 0.2},
    {"beta": 0.3, "kl_estimator": "k3", "use_bias_correction_kl": True},
]
MISMATCHES: list[dict[str, Any]] = [
    {},
    {"mismatch": "token_truncate", "mismatch_min": 0.8, "mismatch_max": 1.2},
    {"mismatch": "token_mask", "mismatch_min": 0.8, "mismatch_max": 1.2},
    {"mismatch": "sequence_truncate", "mismatch_min": 0.8, "mismatch_max": 1.2},
    {"mismatch": "sequence_mask", "mismatch_max": 1.2, "missing_rollout": "weight_zero"},
    {"mismatch": "geometric", "mismatch_min": 0.9, "mismatch_max": 1.1, "token_veto": 0.6},
    {"mismatch": "geometric_mask", "mismatch_min": 0.9, "mismatch_max": 1.1, "off_policy_mask_threshold": 0.1},
]


def name_of(fields: dict[str, Any]) -> str:
    return "-".join(str(value) for value in fields.values()) or "none"


def random_batch(lengths: list[int], seed: int, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """Every input of a loss, with ratios on both sides of the bounds and a tenth of the rollout log-probs NaN."""
    rng = torch.Generator().manual_seed(seed)
    tokens = sum(lengths)

    def normal(scale: float) -> torch.Tensor:
        return (scale * torch.randn(tokens, generator=rng, dtype=torch.float64)).to(dtype)

    logprobs = -normal(1.0).abs() - 0.01
    rollout_logprobs = logprobs + normal(0.3)
    rollout_logprobs[torch.rand(tokens, generator=rng) < 0.1] = NAN
    return {
        "logprobs": logprobs,
        "advantages": normal(1.0),
        "old_logprobs": logprobs + normal(0.3),
        "ref_logprobs": logprobs + normal(0.5),
        "rollout_logprobs": rollout_logprobs,
        "mask": torch.rand(tokens, generator=rng) < 0.8,
        "cu_seqlens": torch.tensor([0, *itertools.accumulate(lengths)]),
        "entropy": normal(1.0).abs(),
    }


def run(batch: dict[str, Any], spec: LossSpec, **changes: Any) -> tuple[LossOutput, torch.Tensor, torch.Tensor]:
    """The output of the op, and the gradients of logprobs and entropy."""
    inputs = {**batch, **changes}
    logprobs = inputs.pop("logprobs").clone().requires_grad_()
    entropy = inputs.pop("entropy").clone().requires_grad_()
    out = policy_loss(logprobs, inputs.pop("advantages"), spec, entropy=entropy, **inputs)
    out.loss.backward()
    assert logprobs.grad is not None
    assert entropy.grad is not None
    return out, logprobs.grad, entropy.grad


def check_against_reference(batch: dict[str, Any], spec: LossSpec, **changes: Any) -> None:
    out, by_logprobs, by_entropy = run(batch, spec, **changes)
    inputs = {**batch, **changes}
    logprobs = inputs.pop("logprobs").double().clone().requires_grad_()
    entropy = inputs.pop("entropy").double().clone().requires_grad_()
    loss, metrics = reference.policy_loss(logprobs, inputs.pop("advantages"), spec, entropy=entropy, **inputs)
    dtype = batch["logprobs"].dtype
    wanted = torch.autograd.grad(loss, [logprobs, entropy], materialize_grads=True)
    # The terms of a loss may cancel to almost 0, so its error is measured against the size of its terms, about 1.
    scale = out.loss.new_tensor(1.0)
    assert_close(torch.stack([out.loss.detach(), scale]), torch.stack([loss.detach(), scale.double()]))
    assert_close(by_logprobs, wanted[0])
    assert_close(by_entropy, wanted[1])
    named = dict(zip(LOSS_METRICS, out.metrics.tolist(), strict=True))
    for name, value in metrics.items():
        assert named[name] == pytest.approx(value, rel=1e-9, abs=1e-9), name
    assert named["loss"] == pytest.approx(named["policy_loss"] + named["kl_loss"] + named["entropy_loss"], abs=1e-12)
    assert named["loss"] == pytest.approx(float(loss.detach()), rel=1e-9, abs=1e-9)
    assert named["nonfinite"] == 0
    assert out.loss.dtype == by_logprobs.dtype == dtype


@pytest.mark.parametrize("surrogate", SURROGATES, ids=name_of)
@pytest.mark.parametrize("mismatch", MISMATCHES, ids=name_of)
def test_every_combination_equals_the_reference(surrogate: dict[str, Any], mismatch: dict[str, Any]) -> None:
    if surrogate["surrogate"] == "vespo" and "mismatch" in mismatch:
        with pytest.raises(ValueError, match="mismatch must be 'none'"):
            LossSpec(**surrogate, **mismatch)
        return
    for index, (reduction, kl) in enumerate(itertools.product(REDUCTIONS, KLS)):
        spec = LossSpec(**surrogate, **mismatch, **kl, reduction=reduction, length_constant=7.0)
        batch = random_batch([5, 1, 0, 7], seed=index)
        advantages = batch["advantages"][:4] if index % 2 else batch["advantages"]
        check_against_reference(batch, spec, advantages=advantages)


@pytest.mark.parametrize("preset", LossSpec.presets())
@pytest.mark.parametrize("sign", [1.0, -1.0, 0.0])
def test_every_preset_equals_the_reference_for_each_sign_of_the_advantage(preset: str, sign: float) -> None:
    batch = random_batch([3, 9, 2], seed=3)
    spec = LossSpec.preset(preset)
    check_against_reference(batch, spec, advantages=sign * batch["advantages"].abs())
    check_against_reference(batch, spec, advantages=sign * batch["advantages"][:3].abs(), old_logprobs=None)


@settings(max_examples=300, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    seed=st.integers(0, 2**30),
    surrogate=st.sampled_from(SURROGATES),
    kl=st.sampled_from(KLS),
    mismatch=st.sampled_from(MISMATCHES),
    reduction=st.sampled_from(REDUCTIONS),
    missing=st.sets(st.sampled_from(["old_logprobs", "mask"])),
    denominator=st.one_of(st.none(), st.floats(0.1, 1000)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_random_ragged_batches_equal_the_reference(
    lengths: list[int],
    seed: int,
    surrogate: dict[str, Any],
    kl: dict[str, Any],
    mismatch: dict[str, Any],
    reduction: str,
    missing: set[str],
    denominator: float | None,
    dtype: torch.dtype,
) -> None:
    if surrogate["surrogate"] == "vespo":
        mismatch = {}
    spec = LossSpec(**surrogate, **mismatch, **kl, reduction=reduction)
    batch = random_batch(lengths, seed, dtype)
    check_against_reference(batch, spec, denominator=denominator, **dict.fromkeys(missing))


@pytest.mark.parametrize("level", ["token", "sequence", "sequence_sum"])
@pytest.mark.parametrize("surrogate", ["clip", "sapo", "gmpo", "dppo", "reinforce"])
def test_gradcheck(surrogate: str, level: str) -> None:
    level = {"gmpo": "sequence", "dppo": "token", "reinforce": "token"}.get(surrogate, level)
    spec = LossSpec(
        surrogate=surrogate,
        importance_sampling_level=level,
        reduction="sequence_mean",
        beta=0.2,
        use_bias_correction_kl=True,
        entropy_coef=0.1,
        mismatch="token_truncate",
        mismatch_max=1.1,
    )
    batch = random_batch([4, 3], seed=5)

    def loss(logprobs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        inputs = {**batch, "logprobs": logprobs, "entropy": entropy}
        return policy_loss(inputs.pop("logprobs"), inputs.pop("advantages"), spec, **inputs).loss

    inputs = (batch["logprobs"].requires_grad_(), batch["entropy"].requires_grad_())
    assert torch.autograd.gradcheck(loss, inputs)


@pytest.mark.parametrize("preset", ["grpo", "gspo", "nemo"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_opcheck(preset: str, dtype: torch.dtype) -> None:
    batch = {name: there(x) for name, x in random_batch([3, 4], seed=1, dtype=dtype).items()}
    args = (
        batch["logprobs"].requires_grad_(),
        batch["advantages"],
        batch["old_logprobs"],
        batch["ref_logprobs"],
        batch["rollout_logprobs"],
        batch["mask"],
        batch["cu_seqlens"],
        batch["entropy"].requires_grad_(),
        there(torch.tensor(3.0, dtype=torch.float64)),
        LossSpec.preset(preset, entropy_coef=0.1).pack(),
    )
    torch.library.opcheck(_C.policy_loss, args)
    torch.library.opcheck(
        _C.policy_loss, (*args[:2], None, None, None, None, None, None, None, LossSpec(reduction="sum").pack())
    )


# The values below are computed by hand. The probabilities give round ratios.


def one_token(spec: LossSpec, p: float, old: float, advantage: float, **others: float) -> tuple[float, float]:
    """Loss and gradient of one token whose probability went from `old` to `p`; others are probabilities too."""
    logprobs = torch.tensor([math.log(p)], dtype=torch.float64, requires_grad=True)
    inputs = {name: torch.tensor([math.log(value)], dtype=torch.float64) for name, value in others.items()}
    out = policy_loss(
        logprobs,
        torch.tensor([advantage], dtype=torch.float64),
        spec,
        old_logprobs=torch.tensor([math.log(old)], dtype=torch.float64),
        cu_seqlens=torch.tensor([0, 1]),
        **inputs,
    )
    out.loss.backward()
    assert logprobs.grad is not None
    return float(out.loss.detach()), float(logprobs.grad)


@pytest.mark.parametrize(
    ("fields", "p", "old", "advantage", "loss", "gradient"),
    [
        # PPO clip at 0.2: r = 1.25 is cut to 1.2 for A > 0 and kept for A < 0; r = 0.75 the other way round.
        ({}, 0.5, 0.4, 1.0, -1.2, 0.0),
        ({}, 0.5, 0.4, -1.0, 1.25, 1.25),
        ({}, 0.3, 0.4, 1.0, -0.75, -0.75),
        ({}, 0.3, 0.4, -2.0, 1.6, 0.0),
        ({"epsilon_high": 0.28}, 0.5, 0.4, 1.0, -1.25, -1.25),
        # Two-sided: r = 4 with A < 0 is bounded by delta, or by the dual clip.
        ({"delta": 3.0}, 0.8, 0.2, -1.0, 3.0, 0.0),
        ({"dual_clip": 3.0}, 0.8, 0.2, -1.0, 3.0, 0.0),
        ({"dual_clip": 3.0}, 0.4, 0.2, -1.0, 2.0, 2.0),
        # CISPO: TRL's bound is the ratio 5 itself; verl's is 1.2. ln 0.5 = -0.693147.
        ({"surrogate": "cispo", "epsilon_high": 5.0}, 0.5, 0.4, 1.0, 1.25 * 0.6931471805599453, -1.25),
        ({"surrogate": "cispo_two_sided"}, 0.5, 0.4, 1.0, 1.2 * 0.6931471805599453, -1.2),
        ({"surrogate": "cispo", "epsilon_high": 5.0}, 0.2, 0.4, 1.0, 0.5 * 1.6094379124341003, -0.5),
        ({"surrogate": "cispo_two_sided"}, 0.2, 0.4, 1.0, 0.8 * 1.6094379124341003, -0.8),
        # SAPO on policy: value -(4 / tau) / 2, gradient -A.
        ({"surrogate": "sapo"}, 0.5, 0.5, 1.0, -2.0, -1.0),
        ({"surrogate": "sapo"}, 0.5, 0.5, -1.0, 2 / 1.05, 1.0),
        # VESPO: phi(2) = 2^2 e^{3 (1 - 2)} for A > 0, 2^3 e^{2 (1 - 2)} for A < 0.
        (
            {"surrogate": "vespo", "importance_sampling_level": "sequence_sum"},
            0.5,
            0.25,
            1.0,
            0.19914827347145578 * 0.6931471805599453,
            -0.19914827347145578,
        ),
        (
            {"surrogate": "vespo", "importance_sampling_level": "sequence_sum"},
            0.5,
            0.25,
            -1.0,
            -1.0826822658929016 * 0.6931471805599453,
            1.0826822658929016,
        ),
        # DPPO: the probability rose by 0.3 > 0.2 with A > 0: dropped; fell by 0.3 with A > 0: kept.
        ({"surrogate": "dppo"}, 0.5, 0.2, 1.0, 0.0, 0.0),
        ({"surrogate": "dppo"}, 0.2, 0.5, 1.0, -0.4, -0.4),
        ({"surrogate": "reinforce"}, 0.5, 0.2, 2.0, 2 * 0.6931471805599453, -2.0),
    ],
)
def test_surrogates_equal_values_computed_by_hand(
    fields: dict[str, Any], p: float, old: float, advantage: float, loss: float, gradient: float
) -> None:
    assert one_token(LossSpec(**fields), p, old, advantage) == pytest.approx((loss, gradient), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(
    ("fields", "loss", "gradient"),
    [
        # p = 0.5, ref = 0.4: q = ln 0.8 = -0.2231436. A = 0, so only the KL is left; old = 0.4 makes r = 1.25.
        ({"kl_estimator": "k1"}, 0.22314355131420976, 1.0),
        ({"kl_estimator": "k2"}, 0.02489652224655867, 0.22314355131420976),
        ({"kl_estimator": "k3"}, 0.02314355131420976, 0.2),
        (
            {"kl_estimator": "k3", "use_bias_correction_kl": True},
            1.25 * 0.02314355131420976,
            1.25 * 0.22314355131420976,
        ),
        ({"kl_estimator": "k1", "kl_input_clamp": 0.1}, 0.1, 0.0),
        ({"kl_estimator": "k3", "kl_output_clamp": 0.01}, 0.01, 0.0),
    ],
)
def test_kl_equals_values_computed_by_hand(fields: dict[str, Any], loss: float, gradient: float) -> None:
    spec = LossSpec(beta=1.0, **fields)
    assert one_token(spec, 0.5, 0.4, 0.0, ref_logprobs=0.4) == pytest.approx((loss, gradient), rel=1e-12)


def two_rows(spec: LossSpec, **changes: Any) -> tuple[LossOutput, list[float]]:
    """Ratios (4, 1 | 0.5), advantages (1 | -1), rollout ratios (2, 2 | 1)."""
    ratios = torch.tensor([4.0, 1.0, 0.5], dtype=torch.float64)
    old = torch.log(torch.tensor([0.2, 0.5, 0.5], dtype=torch.float64))
    logprobs = (old + ratios.log()).requires_grad_()
    inputs = {
        "old_logprobs": old,
        "cu_seqlens": torch.tensor([0, 2, 3]),
        "rollout_logprobs": old - torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64).log(),
        **changes,
    }
    out = policy_loss(logprobs, torch.tensor([1.0, -1.0], dtype=torch.float64), spec, **inputs)
    out.loss.backward()
    assert logprobs.grad is not None
    return out, logprobs.grad.tolist()


@pytest.mark.parametrize(
    ("spec", "loss", "gradient"),
    [
        # GSPO: s = sqrt(4 * 1) = 2 in row one, 0.5 in row two. With a wide range nothing is clipped.
        (
            LossSpec(importance_sampling_level="sequence", reduction="sequence_mean", epsilon=1.0, epsilon_high=9.0),
            (-2.0 + 0.5) / 2,
            [-0.5, -0.5, 0.25],
        ),
        (
            LossSpec(
                importance_sampling_level="sequence_token", reduction="sequence_mean", epsilon=1.0, epsilon_high=9.0
            ),
            (-2.0 + 0.5) / 2,
            [-0.5, -0.5, 0.25],
        ),
        # RLOO's sequence ratio is the product: 4 and 0.5.
        (
            LossSpec.preset("rloo", epsilon=1.0, epsilon_high=9.0),
            (-4.0 + 0.5) / 2,
            [-2.0, -2.0, 0.25],
        ),
        # LUSPO: GSPO's row loss times the row's length.
        (LossSpec.preset("luspo", epsilon=1.0, epsilon_high=9.0), (-2 * 2.0 + 0.5) / 2, [-1.0, -1.0, 0.25]),
        # GMPO: row one, the log-ratio ln 4 is cut to 0.4: exp((0.4 + 0) / 2); row two, ln 0.5 is cut to -0.4.
        (
            LossSpec.preset("gmpo"),
            (-1.2214027581601699 + 0.6703200460356393) / 2,
            [0.0, -1.2214027581601699 / 4, 0.0],
        ),
        # Token-level PPO at 0.2: (1.2, 1 | -0.8), under each reduction.
        (LossSpec.preset("grpo"), (-1.1 + 0.8) / 2, [0.0, -0.25, 0.0]),
        (LossSpec.preset("bnpo"), (-2.2 + 0.8) / 3, [0.0, -1 / 3, 0.0]),
        (LossSpec.preset("dr_grpo", length_constant=10.0), (-2.2 + 0.8) / 20, [0.0, -0.05, 0.0]),
        (LossSpec(reduction="sum"), -1.4, [0.0, -1.0, 0.0]),
        # TRL's default drops row one: 2 * 2 > 3.
        (LossSpec.preset("trl"), 0.8 / 3, [0.0, 0.0, 0.0]),
        (
            LossSpec(mismatch="sequence_truncate", mismatch_max=3.0, reduction="sum"),
            3 * -2.2 + 0.8,
            [0.0, -3.0, 0.0],
        ),
        (LossSpec(mismatch="token_truncate", mismatch_max=1.5, reduction="sum"), 1.5 * -2.2 + 0.8, [0.0, -1.5, 0.0]),
        (LossSpec(mismatch="token_mask", mismatch_max=1.5, reduction="sum"), 0.8, [0.0, 0.0, 0.0]),
        # Geometric mean 2: kept with the raw token weights 2, or with weight 1.
        (LossSpec(mismatch="geometric", mismatch_max=2.1, reduction="sum"), 2 * -2.2 + 0.8, [0.0, -2.0, 0.0]),
        (LossSpec(mismatch="geometric_mask", mismatch_max=2.1, reduction="sum"), -2.2 + 0.8, [0.0, -1.0, 0.0]),
        (LossSpec(mismatch="geometric_mask", mismatch_max=1.9, reduction="sum"), 0.8, [0.0, 0.0, 0.0]),
        (LossSpec.preset("dr_kernel"), 0.8 / 2000, [0.0, 0.0, 0.0]),
        # The veto drops a sequence with one rho below it; here rho is 1 in row two.
        (LossSpec(token_veto=1.5, reduction="sum"), -2.2, [0.0, -1.0, 0.0]),
    ],
)
def test_sequence_levels_and_reductions_equal_values_computed_by_hand(
    spec: LossSpec, loss: float, gradient: list[float]
) -> None:
    out, got = two_rows(spec)
    assert float(out.loss.detach()) == pytest.approx(loss, rel=1e-12)
    assert got == pytest.approx(gradient, rel=1e-12, abs=1e-15)


def test_sequence_level_mixes_the_advantages_of_a_row_and_sequence_token_does_not() -> None:
    logprobs = torch.tensor([-1.0, -2.0], dtype=torch.float64)
    gradients = {}
    for level in ("sequence", "sequence_token"):
        leaf = logprobs.clone().requires_grad_()
        spec = LossSpec(importance_sampling_level=level, reduction="sum")
        advantages = torch.tensor([3.0, 1.0], dtype=torch.float64)
        policy_loss(leaf, advantages, spec, cu_seqlens=torch.tensor([0, 2])).loss.backward()
        assert leaf.grad is not None
        gradients[level] = leaf.grad.tolist()
    assert gradients == {"sequence": [-2.0, -2.0], "sequence_token": [-3.0, -1.0]}


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("ratio", [0.5, 1.5])
def test_a_ratio_exactly_on_a_bound_keeps_its_gradient(ratio: float, advantage: float) -> None:
    logprobs = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    exact = logprobs.detach().exp().item()
    spec = LossSpec(epsilon=abs(1 - exact), epsilon_high=abs(1 - exact))  # the subtraction is exact
    out = policy_loss(
        logprobs,
        torch.tensor([advantage], dtype=torch.float64),
        spec,
        old_logprobs=torch.zeros(1, dtype=torch.float64),
    )
    out.loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(-advantage * exact, rel=1e-15)
    assert metric(out, "clipped_low") == metric(out, "clipped_high") == 0


def metric(out: LossOutput, name: str) -> float:
    return float(out.metrics[LOSS_METRICS.index(name)])


@pytest.mark.parametrize(
    ("fields", "gradient"),
    [
        ({"delta": 2.0}, 2.0),
        ({"delta": 1.999}, 0.0),
        ({"log_ratio_clamp": math.log(2.0)}, 2.0),
        ({"log_ratio_clamp": 0.69}, 0.0),
        ({"beta": 1.0, "kl_estimator": "k1", "kl_input_clamp": math.log(2.0)}, 3.0),
        ({"beta": 1.0, "kl_estimator": "k1", "kl_output_clamp": math.log(2.0)}, 3.0),
        ({"beta": 1.0, "kl_estimator": "k1", "kl_output_clamp": 0.69}, 2.0),
    ],
)
def test_value_exactly_on_any_other_bound_keeps_its_gradient(fields: dict[str, Any], gradient: float) -> None:
    logprobs = torch.tensor([math.log(2.0)], dtype=torch.float64, requires_grad=True)
    zero = torch.zeros(1, dtype=torch.float64)
    out = policy_loss(logprobs, zero - 1, LossSpec(**fields), old_logprobs=zero, ref_logprobs=zero)
    out.loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(gradient)


@pytest.mark.parametrize("surrogate", ["clip", "sapo"])
def test_overflowing_ratio_with_a_positive_advantage_is_clipped(surrogate: str) -> None:
    logprobs = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    spec = LossSpec(surrogate=surrogate)
    out = policy_loss(logprobs, torch.ones(1), spec, old_logprobs=torch.tensor([-2000.0], dtype=torch.float64))
    out.loss.backward()
    assert logprobs.grad is not None
    assert float(out.loss.detach()) == pytest.approx({"clip": -1.2, "sapo": -4.0}[surrogate])
    assert logprobs.grad.item() == 0


@pytest.mark.parametrize(
    ("log_ratios", "log_w"),
    [([30.0, -25.0], 0.0), ([-30.0], math.log(1e-8)), ([-19.0, -19.0], math.log(1e-8)), ([2.0, -1.5], 0.5)],
)
def test_vespo_bounds_token_and_sequence_log_ratios(log_ratios: list[float], log_w: float) -> None:
    logprobs = torch.tensor(log_ratios, dtype=torch.float64) - 40
    old = torch.full_like(logprobs, -40.0)
    spec = LossSpec.preset("vespo", reduction="sum")
    leaf = logprobs.requires_grad_()
    cu_seqlens = torch.tensor([0, len(log_ratios)])
    policy_loss(leaf, torch.ones(1), spec, old_logprobs=old, cu_seqlens=cu_seqlens).loss.backward()
    phi = math.exp(3 + 2 * log_w - 3 * math.exp(log_w))
    assert leaf.grad is not None
    assert leaf.grad.tolist() == pytest.approx([-phi] * len(log_ratios), rel=1e-9, abs=0)


def test_a_denominator_of_zero_gives_zero() -> None:
    batch = random_batch([4, 5], seed=17)
    out, *grads = run(batch, LossSpec.preset("bnpo", beta=0.1, entropy_coef=0.1), denominator=0)
    assert out.loss == 0
    assert metric(out, "tokens") > 0
    assert not any(grad.any() for grad in grads)


def test_without_old_logprobs_the_ratio_is_exactly_one() -> None:
    batch = random_batch([4, 5], seed=2, dtype=torch.float32)
    out, by_logprobs, _ = run(batch, LossSpec(reduction="sum"), old_logprobs=None)
    assert metric(out, "ratio") == metric(out, "tokens")
    assert torch.equal(by_logprobs, torch.where(batch["mask"], -batch["advantages"], 0.0))


@pytest.mark.parametrize("garbage", [NAN, INF, -INF, 3e38])
@pytest.mark.parametrize("preset", ["grpo", "gspo", "vespo", "nemo", "trl", "prime", "dr_kernel"])
def test_masked_tokens_contribute_nothing_whatever_their_values(preset: str, garbage: float) -> None:
    spec = LossSpec.preset(preset, beta=0.1, entropy_coef=0.1, off_policy_mask_threshold=0.1)
    batch = random_batch([6, 3, 8], seed=4)
    dirty = {
        name: torch.where(batch["mask"], value, garbage) if value.is_floating_point() else value
        for name, value in batch.items()
    }
    clean_out, *clean_grads = run(batch, spec)
    out, *grads = run(dirty, spec)
    assert torch.equal(out.loss, clean_out.loss)
    assert torch.equal(out.metrics, clean_out.metrics)
    for grad, clean in zip(grads, clean_grads, strict=True):
        assert torch.equal(grad, clean)
        assert (grad[~batch["mask"]] == 0).all()


def test_a_fully_masked_sequence_changes_nothing() -> None:
    spec = LossSpec.preset("grpo")
    batch = random_batch([4, 5], seed=6)
    batch["mask"][4:] = False
    alone = {name: value[:4] for name, value in batch.items()} | {"cu_seqlens": torch.tensor([0, 4])}
    assert torch.equal(run(batch, spec)[0].loss, run(alone, spec)[0].loss)


@pytest.mark.parametrize("preset", LossSpec.presets())
@pytest.mark.parametrize("denominator", [None, 0.0, 5.0])
def test_a_fully_masked_batch_gives_zero_and_zero_gradients(preset: str, denominator: float | None) -> None:
    batch = random_batch([4, 5], seed=6)
    spec = LossSpec.preset(preset, beta=0.1, entropy_coef=0.1)
    out, *grads = run(batch, spec, mask=torch.zeros(9, dtype=torch.bool), denominator=denominator)
    assert out.loss == 0
    assert not out.metrics.any()
    assert not any(grad.any() for grad in grads)


def test_no_tokens_and_no_sequences_give_zero() -> None:
    out, by_logprobs, _ = run(random_batch([], seed=0), LossSpec.preset("grpo"))
    assert out.loss == 0
    assert by_logprobs.shape == (0,)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["logprobs", "old_logprobs", "ref_logprobs", "advantages", "entropy"])
def test_a_value_that_is_not_finite_is_counted_and_makes_the_loss_nan(name: str, value: float) -> None:
    batch = random_batch([3, 4], seed=8)
    batch["mask"][:] = True
    batch[name][2] = value
    spec = LossSpec(surrogate="reinforce", beta=0.1, kl_estimator="k2", entropy_coef=0.1, ratio_penalty=0.1)
    out, *_ = run(batch, spec)
    assert out.loss.isnan()
    assert metric(out, "nonfinite") == 1
    assert math.isnan(metric(out, "loss"))


def test_overflowing_ratio_gives_no_nan_for_a_zero_advantage_or_a_rejected_token() -> None:
    batch = random_batch([2, 2], seed=9)
    batch["mask"][:] = True
    batch["old_logprobs"][1] = -2000.0
    batch["rollout_logprobs"] = batch["old_logprobs"].clone()
    for sign, spec in ((0.0, LossSpec()), (-1.0, LossSpec(off_policy_mask_threshold=-1e6, reduction="sum"))):
        advantages = (
            batch["advantages"].abs() * sign
            if sign
            else batch["advantages"].clone().index_fill_(0, torch.tensor([1]), 0.0)
        )
        out, by_logprobs, _ = run(batch, spec, advantages=advantages)
        assert out.loss.isfinite()
        assert by_logprobs.isfinite().all()
        assert by_logprobs[1] == 0


def test_an_unscored_rollout_token_has_ratio_one_or_weight_zero() -> None:
    logprobs = torch.tensor([-1.0, -1.0], dtype=torch.float64)
    rollout = torch.tensor([NAN, -2.0], dtype=torch.float64)
    for policy, weights in (("ratio_one", 1.0 + math.e), ("weight_zero", math.e)):
        spec = LossSpec(mismatch="token_truncate", mismatch_max=10.0, missing_rollout=policy)
        out = policy_loss(logprobs, torch.ones(2), spec, rollout_logprobs=rollout)
        assert metric(out, "is_weight") == pytest.approx(weights)
        assert metric(out, "rollout_tokens") == 1
        assert metric(out, "rejected") == (policy == "weight_zero")


def test_the_veto_drops_policy_kl_and_entropy_of_the_whole_sequence() -> None:
    batch = random_batch([3, 4], seed=10)
    batch["mask"][:] = True
    batch["rollout_logprobs"] = batch["old_logprobs"].clone()
    batch["rollout_logprobs"][1] += 10.0  # rho = e^-10 < 1e-4
    spec = LossSpec(token_veto=1e-4, beta=0.1, entropy_coef=0.1)
    out, by_logprobs, by_entropy = run(batch, spec)
    assert metric(out, "vetoed_sequences") == 1
    assert metric(out, "rejected") == 3
    assert not by_logprobs[:3].any()
    assert not by_entropy[:3].any()
    assert by_logprobs[3:].all()


def test_the_off_policy_mask_drops_negative_advantages_of_drifted_sequences() -> None:
    logprobs = torch.tensor([-3.0, -3.0, -1.0, -1.0], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    spec = LossSpec(surrogate="reinforce", off_policy_mask_threshold=0.5, reduction="sum")
    out = policy_loss(
        logprobs,
        advantages,
        spec,
        old_logprobs=torch.full((4,), -1.0, dtype=torch.float64),
        cu_seqlens=torch.tensor([0, 2, 4]),
    )
    out.loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-1.0, 0.0, -1.0, 1.0]
    assert metric(out, "rejected") == 1


def test_neither_a_zero_advantage_nor_an_unscored_token_is_dropped_as_off_policy() -> None:
    logprobs = torch.full((2,), -3.0, dtype=torch.float64)
    spec = LossSpec(off_policy_mask_threshold=0.5)
    inputs = {"old_logprobs": torch.full((2,), -1.0, dtype=torch.float64), "cu_seqlens": torch.tensor([0, 2])}
    drifted = policy_loss(logprobs, torch.tensor([0.0, -1.0]), spec, **inputs)
    assert metric(drifted, "rejected") == 1
    unscored = policy_loss(logprobs, -torch.ones(2), spec, rollout_logprobs=torch.full((2,), NAN), **inputs)
    assert metric(unscored, "rejected") == 0


@pytest.mark.parametrize("preset", LossSpec.presets())
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_eight_micro_batches_add_up_to_one_batch(preset: str, reduction: str) -> None:
    spec = LossSpec.preset(preset, reduction=reduction, beta=0.1, entropy_coef=0.05)
    lengths = [3, 1, 7, 2, 9, 4, 1, 6]
    batch = random_batch(lengths, seed=11)
    tokens = int(batch["mask"].sum())
    bounds = batch["cu_seqlens"].tolist()
    sequences = sum(bool(batch["mask"][b:e].any()) for b, e in itertools.pairwise(bounds))
    denominator = {"token_mean": tokens, "sum": 1}.get(reduction, sequences)
    whole, *whole_grads = run(batch, spec)
    parts = []
    for begin, end in itertools.pairwise(bounds):
        part = {name: value[begin:end] for name, value in batch.items() if name != "cu_seqlens"}
        parts.append(run(part, spec, cu_seqlens=torch.tensor([0, end - begin]), denominator=torch.tensor(denominator)))
    assert_close(sum(out.metrics for out, *_ in parts), whole.metrics)
    assert float(sum(out.loss.detach() for out, *_ in parts)) == pytest.approx(float(whole.loss.detach()), rel=1e-12)
    for index, wanted in enumerate(whole_grads):
        assert_close(torch.cat([part[1 + index] for part in parts]), wanted)


def test_gradient_is_right_if_the_loss_is_scaled_and_used_twice() -> None:
    batch = random_batch([4, 5], seed=12)
    spec = LossSpec.preset("gspo", beta=0.1, entropy_coef=0.1)
    _, by_logprobs, by_entropy = run(batch, spec)
    inputs = dict(batch)
    logprobs, entropy = inputs.pop("logprobs").requires_grad_(), inputs.pop("entropy").requires_grad_()
    loss = policy_loss(logprobs, inputs.pop("advantages"), spec, entropy=entropy, **inputs).loss
    (3 * loss + loss / 2).backward()
    assert_close(logprobs.grad, 3.5 * by_logprobs)
    assert_close(entropy.grad, 3.5 * by_entropy)


def test_a_second_derivative_is_refused() -> None:
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    loss = policy_loss(logprobs, torch.ones(2), LossSpec()).loss
    (gradient,) = torch.autograd.grad(loss, logprobs, create_graph=True)
    with pytest.raises(RuntimeError, match="the policy loss is differentiable once"):
        gradient.square().sum().backward()


def test_metrics_and_gradients_of_the_op_carry_no_gradient() -> None:
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    out = policy_loss(logprobs, torch.ones(2), LossSpec())
    assert out.loss.requires_grad
    assert not out.metrics.requires_grad
    assert not out.logprobs.requires_grad


def test_scoring_without_gradient_gives_the_same_bits_and_leaves_inputs_alone() -> None:
    batch = random_batch([4, 5], seed=13, dtype=torch.float32)
    before = {name: value.clone() for name, value in batch.items()}
    out, *_ = run(batch, LossSpec.preset("gspo"))
    with torch.no_grad():
        inputs = dict(batch)
        again = policy_loss(inputs.pop("logprobs"), inputs.pop("advantages"), LossSpec.preset("gspo"), **inputs)
    assert torch.equal(out.loss, again.loss)
    assert torch.equal(out.metrics, again.metrics)
    for name, value in before.items():
        torch.testing.assert_close(batch[name], value, rtol=0, atol=0, equal_nan=True)


@pytest.mark.cpu
def test_the_number_of_threads_does_not_change_a_bit() -> None:
    batch = random_batch([5, 9, 0, 3] * 40, seed=16)
    spec = LossSpec.preset("gspo", beta=0.1)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = run(batch, spec)
        torch.set_num_threads(2)
        two = run(batch, spec)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one[0].metrics, two[0].metrics)
    assert torch.equal(one[1], two[1])


def test_strided_inputs_give_the_same_bits() -> None:
    batch = random_batch([4, 5], seed=14)
    strided = {
        name: torch.stack([value, value], dim=1)[:, 0] if name != "cu_seqlens" else value
        for name, value in batch.items()
    }
    spec = LossSpec.preset("nemo")
    assert torch.equal(run(batch, spec)[0].loss, run(strided, spec)[0].loss)
    assert torch.equal(run(batch, spec)[1], run(strided, spec)[1])


def test_compiles_without_a_graph_break() -> None:
    spec = LossSpec.preset("grpo", beta=0.1)
    batch = random_batch([4, 5], seed=15)

    def loss(logprobs: torch.Tensor) -> torch.Tensor:
        inputs = {name: value for name, value in batch.items() if name not in ("logprobs", "advantages")}
        return 2 * policy_loss(logprobs, batch["advantages"], spec, **inputs).loss

    eager, compiled = batch["logprobs"].clone().requires_grad_(), batch["logprobs"].clone().requires_grad_()
    loss(eager).backward()
    torch.compile(loss, backend="aot_eager", fullgraph=True)(compiled).backward()
    assert torch.equal(eager.grad, compiled.grad)


@pytest.mark.parametrize(
    ("changes", "spec", "sentence"),
    [
        (
            {"logprobs": torch.zeros(2, 2, 1)},
            {},
            r"logprobs must have shape \[tokens\] or \[sequences, length\]; got .*",
        ),
        ({"logprobs": torch.zeros(4, dtype=torch.bfloat16)}, {}, "logprobs must be float32 or float64; got bfloat16"),
        (
            {"advantages": torch.zeros(3)},
            {},
            r"advantages must have one value a token or one a sequence, shape \[4\] or \[2\]; got \[3\]",
        ),
        ({"old_logprobs": torch.zeros(3)}, {}, r"old_logprobs must have shape \[tokens\] = \[4\]; got \[3\]"),
        ({"mask": torch.ones(4)}, {}, "mask must be bool; got float32"),
        ({"cu_seqlens": torch.tensor([0, 2, 4], dtype=torch.int16)}, {}, "cu_seqlens must be int64; got int16"),
        (
            {"cu_seqlens": None},
            {"reduction": "sequence_mean"},
            r"cu_seqlens must be given: .* is about sequences\. Pass .*",
        ),
        ({}, {"beta": 0.1}, "ref_logprobs must be given when the spec's beta is not 0: .*"),
        ({}, {"entropy_coef": 0.1}, "entropy must be given when the spec's entropy_coef is not 0: .*"),
        (
            {},
            {"mismatch": "token_mask", "mismatch_max": 2.0},
            "rollout_logprobs must be given when the spec's mismatch is 'token_mask', .*",
        ),
        ({}, {"token_veto": 1e-4}, "rollout_logprobs must be given when the spec's token_veto is not 0"),
        ({}, {"ratio_to_rollout": True}, "rollout_logprobs must be given when the spec's ratio_to_rollout is set: .*"),
        ({"denominator": -1.0}, {}, "denominator must be at least 0; got -1.0"),
        ({"denominator": torch.ones(2)}, {}, r"denominator must be a number or 0-D; got shape \[2\]"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(
    changes: dict[str, Any], spec: dict[str, Any], sentence: str
) -> None:
    inputs = {
        "logprobs": torch.zeros(4),
        "advantages": torch.zeros(4),
        "cu_seqlens": torch.tensor([0, 2, 4]),
        **changes,
    }
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        policy_loss(inputs.pop("logprobs"), inputs.pop("advantages"), LossSpec(**spec), **inputs)


@pytest.mark.cpu  # only the CPU checks values
@pytest.mark.parametrize(
    ("changes", "spec", "sentence"),
    [
        ({"cu_seqlens": torch.tensor([1, 2, 4])}, {}, "cu_seqlens must begin with 0; got 1"),
        ({"cu_seqlens": torch.tensor([0, 2, 5])}, {}, "cu_seqlens must end with the number of tokens, 4; got 5"),
        ({"cu_seqlens": torch.tensor([0, 3, 2, 4])}, {}, "cu_seqlens must not decrease; got 3 before 2"),
        ({"denominator": torch.tensor(NAN)}, {}, "denominator must be at least 0; got nan"),
    ],
)
def test_wrong_values_are_refused_in_one_sentence(changes: dict[str, Any], spec: dict[str, Any], sentence: str) -> None:
    test_wrong_arguments_are_refused_in_one_sentence(changes, spec, sentence)


@pytest.mark.cpu
def test_packed_spec_of_the_wrong_length_is_refused() -> None:
    # Without its Python wrapper the op raises ValueError up to torch 2.14, RuntimeError from 2.15 on.
    with pytest.raises(
        (ValueError, RuntimeError), match=r"^spec must have \d+ numbers, as LossSpec.pack\(\) makes them; got 3$"
    ):
        _C.policy_loss(torch.zeros(2), torch.zeros(2), *[None] * 7, [0.0, 1.0, 2.0])


@pytest.mark.cpu
def test_docstring_of_policy_loss_names_every_metric() -> None:
    assert policy_loss.__doc__ is not None
    assert all(f"``{name}``" in policy_loss.__doc__ for name in LOSS_METRICS if name != "entropy")


@pytest.mark.cpu
def test_ops_exports_the_public_names() -> None:
    assert {"LOSS_METRICS", "LossOutput", "LossSpec", "policy_loss"} <= set(ops.__all__)
