"""Batch and update: exact token weights, exact shortcuts, and no value that is not finite reaches the weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from kernel_coder.models.tiny import tiny_model, tiny_tokenizer
from kernel_coder.ops import LossSpec
from kernel_coder.policy.config import ModelConfig
from kernel_coder.policy.model import Policy, load_policy
from kernel_coder.policy.parts import head_of
from kernel_coder.rollout import Sampling, Turn
from kernel_coder.rollout.transformers_engine import TransformersEngine
from kernel_coder.run.errors import TrainingDiverged
from kernel_coder.train.batch import (
    Batch,
    carries_gradient,
    collate,
    denominator,
    finite_or_nan,
    forward_passes,
    make_batch,
)
from kernel_coder.train.config import AdvantagesConfig, OptimConfig
from kernel_coder.train.update import (
    METRIC,
    Learner,
    UpdateResult,
    backward,
    loss_and_sums,
    optimizer_step,
    score,
)
from torch import Tensor, nn

TOKENIZER = tiny_tokenizer()
REWARDS = [0.0, 1.0, 0.5, 0.5, 2.0, None, 1.0, 3.0]


def policy(dtype: torch.dtype = torch.float64) -> Policy:
    return Policy(tiny_model(len(TOKENIZER), hidden=32).to(dtype).eval(), TOKENIZER)


@pytest.fixture(scope="module")
def turns() -> list[Turn]:
    prompts = [TOKENIZER.encode(text) for text in ("def f(x):", "import torch as") for _ in range(4)]
    engine = TransformersEngine(policy(torch.float32).model, TOKENIZER)
    long = engine.generate(prompts, Sampling(max_completion_length=12), range(8))
    # Lengths from 1 to 12, so that a mean of means is not the mean.
    return [
        replace(t, completion_ids=t.completion_ids[: i + 1 + i // 2], logprobs=t.logprobs[: i + 1 + i // 2])
        for i, t in enumerate(long)
    ]


def batch_of(turns: list[Turn], rewards: list[float | None] = REWARDS, **config: object) -> Batch:
    return make_batch(turns, finite_or_nan(rewards), AdvantagesConfig(**config), 4, mask_truncated=False)  # type: ignore[arg-type]


def learner(model: Policy, spec: LossSpec, config: OptimConfig, **changes: Any) -> Learner:
    optimizer = torch.optim.AdamW(model.trainable().values(), lr=1e-3)
    fixed: dict[str, Any] = {
        "reference": None,
        "temperature": 1.0,
        "minibatches": 2,
        "learning_rate": lambda number: 1e-3,
        "max_skipped": 10,
    }
    return Learner(policy=model, optimizer=optimizer, spec=spec, config=config, **fixed | changes)


def gradients(policy: Policy, batch: Batch, spec: LossSpec, size: int) -> dict[str, Tensor]:
    policy.model.zero_grad(set_to_none=True)
    backward(policy, batch, forward_passes(batch, spec, 1, size)[0], spec, 0.9, denominator(batch, spec, 1))
    return {name: p.grad.clone() for name, p in policy.trainable().items() if p.grad is not None}


def apart(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    flat_a, flat_b = (torch.cat([g[name].flatten() for name in sorted(a)]) for g in (a, b))
    return float((flat_a - flat_b).norm() / flat_b.norm())


SPECS = ["grpo", "dr_grpo", "dapo", "gspo", "cispo", "dr_kernel"]


@pytest.mark.parametrize("preset", SPECS)
def test_gradients_do_not_depend_on_the_size_of_forward_passes(turns: list[Turn], preset: str) -> None:
    spec = LossSpec.preset(
        preset,
        **(
            {"mismatch": "none", "mismatch_min": 0.0, "mismatch_max": None, "token_veto": 0.0}
            if preset == "dr_kernel"
            else {}
        ),
    )
    batch, model = batch_of(turns), policy()
    whole = gradients(model, batch, spec, 8)
    for size in (1, 3):
        assert apart(gradients(model, batch, spec, size), whole) < 1e-6
    half = batch_of(turns[:4], REWARDS[:4])
    assert apart(gradients(model, half, spec, 8), whole) > 1e-3  # the comparison can fail


@pytest.mark.parametrize("preset", SPECS[:5])
def test_leaving_out_sequences_without_advantage_keeps_the_gradients(turns: list[Turn], preset: str) -> None:
    spec = LossSpec.preset(preset)
    batch = batch_of(turns, [1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 2.0, None])
    assert carries_gradient(batch, spec) == [4, 6]  # 5 is the mean of its group
    # A KL weight too small to matter forces every counted sequence through the model.
    full = LossSpec.preset(preset, beta=1e-300)
    assert carries_gradient(batch, full) == [0, 1, 2, 3, 4, 5, 6]
    model = policy()
    reference = replace(batch, ref_logprobs=score(model, batch, [range(8)], 0.9))
    assert apart(gradients(model, batch, spec, 8), gradients(model, reference, full, 8)) < 1e-6


def test_unscored_answer_is_left_out_of_baseline_loss_and_denominator(turns: list[Turn]) -> None:
    batch = batch_of(turns)
    assert batch.advantages[5] == 0
    assert not batch.counted[5]
    assert torch.isclose(batch.advantages[4:5], torch.tensor([2.0 - 2.0]).double(), atol=1e-12).all()  # mean of 2, 1, 3
    tokens = [len(turn.completion_ids) for turn in turns]
    assert denominator(batch, LossSpec.preset("dapo"), 1) == sum(tokens) - tokens[5]
    assert denominator(batch, LossSpec.preset("grpo"), 2) == 7 / 2


def test_truncated_answers_can_be_masked_and_stay_in_the_baseline(turns: list[Turn]) -> None:
    cut = [replace(turn, finish_reason="length" if i in (1, 4) else "stop") for i, turn in enumerate(turns)]
    batch = make_batch(cut, finite_or_nan(REWARDS), AdvantagesConfig(), 4, mask_truncated=True)
    assert batch.counted.tolist() == [True, False, True, True, False, False, True, True]
    assert torch.equal(batch.advantages, batch_of(turns).advantages)


@pytest.mark.parametrize("mode", get_args(AdvantagesConfig.model_fields["mode"].annotation))
def test_every_advantage_mode_of_the_config_gives_finite_advantages(turns: list[Turn], mode: str) -> None:
    batch = batch_of(turns, mode=mode)
    assert batch.advantages.isfinite().all()
    assert batch.advantages[5] == 0
    assert batch.advantages.abs().sum() > 0


def test_infinite_rewards_count_as_not_scored() -> None:
    assert finite_or_nan([1.0, None, math.inf, math.nan]).isnan().tolist() == [False, True, True, True]


def test_whole_batch_unscored_gives_no_gradient(turns: list[Turn]) -> None:
    batch = batch_of(turns, [None] * 8)
    spec = LossSpec.preset("dapo")
    assert denominator(batch, spec, 1) == 0
    assert gradients(policy(), batch, spec, 8) == {}


def test_collate_points_at_the_state_that_predicts_each_token(turns: list[Turn]) -> None:
    micro = collate(batch_of(turns), TOKENIZER.pad_token_id, torch.device("cpu"))
    flat = micro.ids.flatten()
    assert torch.equal(flat[micro.rows + 1], micro.targets)
    assert micro.cu_seqlens.diff().tolist() == [len(turn.completion_ids) for turn in turns]
    assert micro.attention_mask.sum(1).tolist() == [len(t.prompt_ids) + len(t.completion_ids) for t in turns]


def test_score_agrees_with_the_sampler(turns: list[Turn]) -> None:
    batch = batch_of(turns, [0.0] * 8)
    found = score(policy(torch.float32), batch, [[0, 1, 2], [3, 4, 5, 6, 7]], 1.0)
    for turn, logprobs in zip(turns, found, strict=True):
        torch.testing.assert_close(logprobs, torch.tensor(turn.logprobs), atol=1e-5, rtol=0)


def test_scoring_and_the_first_update_agree_bit_for_bit(turns: list[Turn]) -> None:
    model, spec = policy(torch.float32), LossSpec.preset("dapo")
    config = OptimConfig(per_device_train_batch_size=3, num_iterations=2)
    batch = learner(model, spec, config, temperature=0.9).with_logprobs(batch_of(turns))
    assert batch.old_logprobs is not None
    for indices in (indices for passes in forward_passes(batch, spec, 2, 3) for indices in passes):
        micro = collate(batch.select(indices), TOKENIZER.pad_token_id, torch.device("cpu"))
        output = loss_and_sums(model.model, micro, spec, 0.9, 1.0)
        assert output.loss.requires_grad
        assert torch.equal(output.logprobs, torch.cat([batch.old_logprobs[i] for i in indices]))
        assert float(output.metrics[METRIC["logratio_sq"]]) == 0


def test_forward_passes_contain_each_sequence_with_a_gradient_once(turns: list[Turn]) -> None:
    batch = batch_of(turns, [0.0, 1.0, 2.0, 3.0, 1.0, 1.0, 1.0, None])
    assert forward_passes(batch, LossSpec.preset("dapo"), 2, 3) == [[[0, 1, 2], [3]], []]
    assert forward_passes(batch, LossSpec.preset("dapo", beta=0.1), 2, 3) == [[[0, 1, 2], [3]], [[4, 5, 6]]]


def test_old_and_reference_logprobs_are_computed_only_when_needed(turns: list[Turn]) -> None:
    model, batch = policy(), batch_of(turns)
    once, twice = OptimConfig(), OptimConfig(num_iterations=2)
    plain = learner(model, LossSpec.preset("dapo"), once, minibatches=1).with_logprobs(batch)
    assert plain.old_logprobs is None
    assert plain.ref_logprobs is None
    spec = LossSpec.preset("dapo", beta=0.1)
    both = learner(model, spec, twice, minibatches=1, reference=policy()).with_logprobs(batch)
    assert both.old_logprobs is not None
    assert both.ref_logprobs is not None


class Odd(nn.Linear):
    """A head that the fused loss does not know."""


def test_unknown_head_falls_back_to_logits_with_the_same_gradient(turns: list[Turn]) -> None:
    plain, odd = policy(), policy()
    head = odd.model.lm_head
    other = Odd(head.in_features, head.out_features, bias=False, dtype=torch.float64)
    other.weight = head.weight
    odd.model.lm_head = other
    assert head_of(plain.model) is not None
    assert head_of(odd.model) is None
    spec, batch = LossSpec.preset("dapo"), batch_of(turns)
    assert apart(gradients(odd, batch, spec, 4), gradients(plain, batch, spec, 4)) < 1e-6


def test_backward_does_not_change_its_inputs(turns: list[Turn]) -> None:
    batch = batch_of(turns)
    before = (batch.advantages.clone(), batch.counted.clone(), tuple(turns))
    gradients(policy(), batch, LossSpec.preset("dapo"), 4)
    assert torch.equal(batch.advantages, before[0])
    assert torch.equal(batch.counted, before[1])
    assert batch.turns == before[2]


def run_update(model: Policy, batch: Batch, *, max_skipped: int = 10, skipped_in_a_row: int = 0) -> UpdateResult:
    config = OptimConfig(per_device_train_batch_size=4)
    one = learner(model, LossSpec.preset("dapo"), config, max_skipped=max_skipped)
    return one.update(batch, 0, skipped_in_a_row)


def poisoned(batch: Batch, index: int) -> Batch:
    advantages = batch.advantages.clone()
    advantages[index] = math.nan
    return replace(batch, advantages=advantages)


def test_update_that_is_not_finite_is_skipped_and_counted(turns: list[Turn]) -> None:
    model = policy()
    result = run_update(model, poisoned(batch_of(turns), 0))  # in the first of two minibatches
    assert (result.skipped, result.skipped_in_a_row, len(result.grad_norms)) == (1, 0, 1)
    assert all(torch.isfinite(parameter).all() for parameter in model.model.parameters())


def test_too_many_skipped_updates_end_the_run(turns: list[Turn]) -> None:
    model = policy()
    before = {name: p.clone() for name, p in model.trainable().items()}
    with pytest.raises(TrainingDiverged, match="3 updates in a row"):
        run_update(model, poisoned(batch_of(turns), 0), max_skipped=3, skipped_in_a_row=2)
    assert all(torch.equal(p, before[name]) for name, p in model.trainable().items())


def test_gradient_that_is_not_finite_changes_nothing() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    weight.grad = torch.tensor([0.0, math.inf, 0.0])
    assert optimizer_step(optimizer, [weight], 0.0, 1.0) is None
    weight.grad = torch.zeros(3)
    assert optimizer_step(optimizer, [weight], math.nan, 1.0) is None
    assert torch.equal(weight, torch.ones(3))
    weight.grad = None  # no sequence carried gradient: momentum and decay still apply
    assert optimizer_step(optimizer, [weight], 0.0, 1.0) == 0
    assert not torch.equal(weight, torch.ones(3))


@pytest.mark.parametrize("name", ["tiny", "nano"])
def test_bfloat16_weights_keep_the_rotary_frequencies_exact(name: str) -> None:
    rounded = load_policy(ModelConfig(name_or_path=name, dtype="bfloat16", device="cpu")).model
    exact = load_policy(ModelConfig(name_or_path=name, device="cpu")).model
    assert {parameter.dtype for parameter in rounded.parameters()} == {torch.bfloat16}
    assert torch.equal(rounded.model.rotary_emb.inv_freq, exact.model.rotary_emb.inv_freq)
