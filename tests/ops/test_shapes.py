"""Padded tensors, lists, arrays and other usual forms of the inputs give the same bits as the packed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kernel_coder import LossSpec, ops
from torch import Tensor

SEQUENCES, LENGTH, VOCAB, WIDTH = 3, 5, 48, 8
PRESETS = ["grpo", "dapo", "gspo", "dr_grpo", "rloo", "luspo"]


class Batch:
    """Answers padded to one length, with a mask. ``packed`` gives the same tokens in one row."""

    def __init__(self, device: str, dtype: torch.dtype = torch.float32) -> None:
        rng = torch.Generator().manual_seed(7)
        # A model returns one position more than the answers have. The last one predicts no token of an answer.
        self.long_logits = torch.randn(SEQUENCES, LENGTH + 1, VOCAB, generator=rng).to(device, dtype)
        self.long_hidden = torch.randn(SEQUENCES, LENGTH + 1, WIDTH, generator=rng).to(device, dtype)
        self.weight = torch.randn(VOCAB, WIDTH, generator=rng).to(device, dtype)
        self.ids = torch.randint(0, VOCAB, (SEQUENCES, LENGTH), generator=rng).to(device)
        self.advantages = torch.randn(SEQUENCES, generator=rng).to(device)
        self.by_token = torch.randn(SEQUENCES, LENGTH, generator=rng).to(device)
        self.old = (-2 - torch.rand(SEQUENCES, LENGTH, generator=rng)).to(device)
        lengths = torch.tensor([5, 2, 4])
        self.mask = (torch.arange(LENGTH) < lengths[:, None]).to(device)
        self.cu_seqlens = torch.arange(0, SEQUENCES * LENGTH + 1, LENGTH, device=device)

    @property
    def logits(self) -> Tensor:
        """``[sequences, length, vocab]``, with a gap in memory between one sequence and the next."""
        return self.long_logits[:, :-1]

    @property
    def hidden(self) -> Tensor:
        return self.long_hidden[:, :-1]

    def packed(self, advantages: Tensor) -> dict[str, Any]:
        return dict(
            ids=self.ids.reshape(-1),
            advantages=advantages.reshape(-1),
            old_logprobs=self.old.reshape(-1),
            mask=self.mask.reshape(-1),
            cu_seqlens=self.cu_seqlens,
        )

    def padded(self, advantages: Tensor) -> dict[str, Any]:
        return dict(ids=self.ids, advantages=advantages, old_logprobs=self.old, mask=self.mask)


def same(found: Tensor | None, wanted: Tensor | None) -> bool:
    """The same bits, in any shape."""
    if found is None or wanted is None:
        return found is wanted
    return torch.equal(found.reshape(-1), wanted.reshape(-1))


def loss_and_gradient(call: Any, leaf: Tensor, **arguments: Any) -> tuple[ops.LossOutput, Tensor]:
    leaf = leaf.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    out = call(leaf, **arguments)
    (gradient,) = torch.autograd.grad(out.loss, leaf)
    return out, gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padded_log_probs_are_those_of_the_packed_rows(device: str, dtype: torch.dtype) -> None:
    batch = Batch(device, dtype)
    long = batch.long_logits.clone().requires_grad_()
    found = ops.token_logprobs(long[:, :-1], batch.ids, mask=batch.mask, entropy=True)
    packed = batch.logits.reshape(-1, VOCAB).requires_grad_()
    wanted = ops.token_logprobs(packed, batch.ids.reshape(-1), mask=batch.mask.reshape(-1), entropy=True)
    assert found.logprobs.shape == (SEQUENCES, LENGTH)
    assert same(found.logprobs, wanted.logprobs)
    assert same(found.entropy, wanted.entropy)
    (gradient,) = torch.autograd.grad(found.logprobs.sum() + found.entropy.sum(), long)
    (by_row,) = torch.autograd.grad(wanted.logprobs.sum() + wanted.entropy.sum(), packed)
    assert same(gradient[:, :-1], by_row)
    assert not gradient[:, -1].any()


def test_padded_logits_are_not_copied(device: str) -> None:
    """The in-place loss must leave its gradient in the tensor that the padded logits are a view of."""
    batch = Batch(device)
    before = ops.token_logprobs(batch.logits, batch.ids).logprobs
    batch.long_logits[1, 2] += torch.arange(VOCAB, device=device)
    after = ops.token_logprobs(batch.logits, batch.ids).logprobs
    changed = (before != after).nonzero().tolist()
    assert changed == [[1, 2]]
    out = ops.grpo_loss(batch.logits, batch.ids, batch.advantages, "grpo", inplace=True)
    assert torch.isfinite(out.loss)
    assert (batch.long_logits[:, :-1].sum(-1).abs() < 1e-5).all(), "the rows hold their gradient now"
    assert (batch.long_logits[:, -1].abs().sum(-1) > 1).all(), "and the positions left out are untouched"


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("per_token", [False, True])
def test_padded_losses_have_the_bits_of_packed_ones(device: str, preset: str, per_token: bool) -> None:
    batch, spec = Batch(device), LossSpec.preset(preset)
    advantages = batch.by_token if per_token else batch.advantages
    packed, padded = batch.packed(advantages), batch.padded(advantages)

    found, by_padded = loss_and_gradient(lambda x, **rest: ops.grpo_loss(x, spec=spec, **rest), batch.logits, **padded)
    rows = batch.logits.reshape(-1, VOCAB)
    wanted, by_packed = loss_and_gradient(lambda x, **rest: ops.grpo_loss(x, spec=spec, **rest), rows, **packed)
    assert same(found.loss, wanted.loss)
    assert same(found.metrics, wanted.metrics)
    assert found.logprobs.shape == (SEQUENCES, LENGTH)
    assert same(found.logprobs, wanted.logprobs)
    assert same(by_padded, by_packed)

    inplace, by_inplace = loss_and_gradient(
        lambda x, **rest: ops.grpo_loss(x.view_as(x), spec=spec, inplace=True, **rest), batch.logits, **padded
    )
    flat, by_flat = loss_and_gradient(
        lambda x, **rest: ops.grpo_loss(x.view_as(x), spec=spec, inplace=True, **rest), rows, **packed
    )
    assert same(inplace.loss, flat.loss)
    assert same(by_inplace, by_flat)

    logprobs = wanted.logprobs
    found, by_padded = loss_and_gradient(
        lambda x, ids, **rest: ops.policy_loss(x, spec=spec, **rest), logprobs.view(SEQUENCES, LENGTH), **padded
    )
    wanted, by_packed = loss_and_gradient(
        lambda x, ids, **rest: ops.policy_loss(x, spec=spec, **rest), logprobs, **packed
    )
    assert same(found.loss, wanted.loss)
    assert same(by_padded, by_packed)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("skip", [False, True])
def test_padded_hidden_states_have_the_bits_of_packed_ones(device: str, preset: str, skip: bool) -> None:
    batch, spec = Batch(device), LossSpec.preset(preset)
    advantages = batch.advantages.clone()
    advantages[1] = 0

    def call(x: Tensor, **rest: Any) -> ops.LossOutput:
        return ops.linear_grpo_loss(x, batch.weight, spec=spec, skip_zero_advantage=skip, **rest)

    found, by_padded = loss_and_gradient(call, batch.hidden, **batch.padded(advantages))
    wanted, by_packed = loss_and_gradient(call, batch.hidden.reshape(-1, WIDTH), **batch.packed(advantages))
    assert same(found.loss, wanted.loss)
    assert same(found.logprobs, wanted.logprobs)
    assert by_padded.shape == batch.hidden.shape
    assert same(by_padded, by_packed)
    scores = ops.linear_token_logprobs(batch.hidden, batch.weight, batch.ids, mask=batch.mask, entropy=True)
    rows = batch.hidden.reshape(-1, WIDTH)
    flat = ops.linear_token_logprobs(rows, batch.weight, batch.ids.reshape(-1), mask=batch.mask.reshape(-1))
    assert scores.logprobs.shape == (SEQUENCES, LENGTH)
    assert same(scores.logprobs, flat.logprobs)


def test_other_forms_of_the_same_numbers_give_the_same_bits(device: str) -> None:
    batch = Batch(device)
    packed = batch.packed(batch.advantages)
    ids, rows = packed.pop("ids"), batch.logits.reshape(-1, VOCAB)
    wanted = ops.grpo_loss(rows, ids, spec=LossSpec.preset("gspo"), **packed)
    others: list[dict[str, Any]] = [
        {"cu_seqlens": batch.cu_seqlens.int()},
        {"cu_seqlens": batch.cu_seqlens.tolist()},
        {"advantages": batch.advantages.tolist()},
        {"advantages": batch.advantages.cpu().numpy()},
        {"mask": batch.mask.reshape(-1).long()},
        {"mask": batch.mask.reshape(-1).to(torch.uint8)},
    ]
    for other in others:
        for call in (
            lambda **rest: ops.grpo_loss(rows, ids, spec="gspo", **rest),
            lambda **rest: ops.policy_loss(wanted.logprobs, spec="gspo", **rest),
        ):
            found = call(**{**packed, **other})
            assert torch.equal(found.loss, call(**packed).loss), list(other)
    column = ops.grpo_loss(batch.logits, **{**batch.padded(batch.advantages[:, None])}, spec="gspo")
    assert torch.equal(column.loss, wanted.loss)
    hidden, weight = batch.hidden.reshape(-1, WIDTH), batch.weight
    head = ops.linear_grpo_loss(hidden, weight, ids, spec="gspo", **packed).loss
    for other in others:
        assert torch.equal(ops.linear_grpo_loss(hidden, weight, ids, spec="gspo", **{**packed, **other}).loss, head)


def test_one_row_of_packed_sequences_takes_cu_seqlens() -> None:
    """Padding-free batches of transformers have the shape [1, tokens]."""
    batch = Batch("cpu")
    packed = batch.packed(batch.advantages)
    ids, rows = packed.pop("ids"), batch.logits.reshape(-1, VOCAB)
    wanted = ops.grpo_loss(rows, ids, spec="gspo", **packed)
    found = ops.grpo_loss(rows[None], ids[None], spec="gspo", **packed)
    assert torch.equal(found.loss, wanted.loss)


def test_rewards_may_be_lists() -> None:
    wanted = ops.group_advantages(torch.tensor([0.0, float("nan"), 2.0, 3.0]), 2, mode="dr_grpo")
    assert torch.equal(ops.group_advantages([0, None, 2, 3], 2, mode="dr_grpo"), wanted)
    assert torch.equal(ops.group_advantages(np.array([0, np.nan, 2, 3]), [7, 7, 1, 1], mode="dr_grpo"), wanted)
    by_turn = ops.turn_advantages(torch.tensor([0.0, 0, 1, 0, 0.5]), 2, cu_turns=torch.tensor([0, 3, 5]))
    assert torch.equal(ops.turn_advantages([0, 0, 1, 0, 0.5], 2, cu_turns=[0, 3, 5]), by_turn)


class DTensor(Tensor):
    """The ops recognise a DTensor by the name of its class."""


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"logits": [[0.0]]}, TypeError, r"logits must be a torch.Tensor; got list. Pass torch.tensor\(logits\)"),
        ({"ids": [0, 1]}, TypeError, r"ids must be a torch.Tensor; got list. Pass torch.tensor\(ids\)"),
        ({"ids": np.zeros(5)}, TypeError, r"ids must be a torch.Tensor; got ndarray. Pass torch.from_numpy\(ids\)"),
        ({"mask": [True]}, TypeError, r"mask must be a torch.Tensor; got list"),
        ({"old_logprobs": [0.0]}, TypeError, r"old_logprobs must be a torch.Tensor; got list"),
        ({"spec": "grop"}, ValueError, "preset must be one of .*; got 'grop'"),
        ({"spec": None}, TypeError, "spec must be a LossSpec or the name of a preset; got NoneType"),
        ({"advantages": "high"}, TypeError, "advantages must be a tensor or a list of numbers; got 'high'"),
        ({"logits": torch.zeros(5, 8).as_subclass(DTensor)}, TypeError, r"logits is a DTensor.*logits.to_local\(\)"),
        ({"advantages": torch.ones(2)}, ValueError, r"Without cu_seqlens all tokens are one sequence: pass cu_seqlens"),
        (
            {"logits": torch.zeros(5)},
            ValueError,
            r"logits must have shape \[tokens, vocab\] or \[sequences",
        ),
        ({"logits": torch.zeros(1, 5, 8), "ids": torch.zeros(5, 1).long()}, ValueError, r"ids must have shape \[seq"),
        (
            {"logits": torch.zeros(2, 2, 8), "ids": torch.zeros(2, 2).long(), "cu_seqlens": torch.tensor([0, 4])},
            ValueError,
            "cu_seqlens must not be given for tokens of shape .*each row is a sequence",
        ),
    ],
)
def test_wrong_inputs_are_refused_in_one_sentence(
    change: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    arguments: dict[str, Any] = {
        "logits": torch.zeros(5, 8),
        "ids": torch.zeros(5).long(),
        "advantages": torch.ones(1),
        "spec": "dapo",
    }
    with pytest.raises(error, match=sentence):
        ops.grpo_loss(**{**arguments, **change})


def test_as_dict_gives_the_metrics_by_name() -> None:
    out = ops.policy_loss(torch.tensor([-1.0, -2.0]), [1.0, 0.0], "dapo")
    numbers = out.as_dict()
    assert tuple(numbers) == ops.LOSS_METRICS
    assert numbers["tokens"] == 2
    assert numbers["loss"] == float(out.loss)


def test_loss_spec_takes_the_names_of_trl() -> None:
    trl = LossSpec.from_trl
    assert trl() == LossSpec(use_bias_correction_kl=True)
    assert trl(loss_type="grpo", use_bias_correction_kl=False) == LossSpec.preset("grpo")
    assert trl(loss_type="dr_grpo", max_completion_length=100).length_constant == 100
    assert trl(loss_type="cispo", epsilon_high=5.0, use_bias_correction_kl=False) == LossSpec.preset("cispo")
    assert trl(use_vllm=True) == LossSpec.preset("trl")
    assert trl(use_vllm=True, vllm_importance_sampling_mode="token_truncate").mismatch == "token_truncate"

    class Config:
        loss_type = "bnpo"
        beta = 0.04

    assert trl(Config(), delta=2.0) == LossSpec(beta=0.04, delta=2.0, use_bias_correction_kl=True)
    with pytest.raises(ValueError, match=r"loss_type must be one of grpo, .*; got 'ppo'"):
        trl(loss_type="ppo")
    with pytest.raises(ValueError, match=r"top_entropy_quantile must be 1.0"):
        trl(top_entropy_quantile=0.2)
    with pytest.raises(ValueError, match="temprature is no argument of TRL's loss"):
        trl(temprature=1.0)


def test_autocast_multiplies_in_its_dtype() -> None:
    batch = Batch("cpu")
    hidden, weight = batch.hidden.reshape(-1, WIDTH), batch.weight
    ids, advantages = batch.ids.reshape(-1), batch.by_token.reshape(-1)
    low = ops.linear_grpo_loss(hidden.bfloat16(), weight.bfloat16(), ids, advantages, "dapo")
    with torch.autocast("cpu", torch.bfloat16):
        found = ops.linear_grpo_loss(hidden.bfloat16(), weight, ids, advantages, "dapo")
        scores = ops.linear_token_logprobs(hidden, weight, ids)
    assert torch.equal(found.loss, low.loss)
    assert torch.equal(scores.logprobs, low.logprobs)


def test_padded_loss_compiles_without_a_graph_break() -> None:
    batch = Batch("cpu")

    def loss(logits: Tensor, ids: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        return ops.grpo_loss(logits, ids, advantages, "grpo", mask=mask, temperature=0.7).loss

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    arguments = (batch.ids, batch.advantages, batch.mask)
    gradients = []
    for function in (loss, compiled):
        leaf = batch.long_logits.clone().requires_grad_()
        function(leaf[:, :-1], *arguments).backward()
        gradients.append(leaf.grad)
    assert torch.equal(gradients[0], gradients[1])
