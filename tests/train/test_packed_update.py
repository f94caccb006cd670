"""Packed updates with shared prompts: only tokens with gradient are computed; gradients equal those of padded rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from kernel_coder.models.tiny import tiny_model, tiny_tokenizer
from kernel_coder.ops import LossSpec
from kernel_coder.policy import attention
from kernel_coder.policy.attention import attention_by_spans, packed, packed_attention, shared_flash
from kernel_coder.policy.layout import LONG_SEQUENCE_TOKENS, layout_of, place
from kernel_coder.policy.model import Policy
from kernel_coder.policy.packing import with_packing
from kernel_coder.policy.recomputation import ActivationMemory, can_recompute, kept_bytes, measure, recompute
from kernel_coder.rollout import Turn
from kernel_coder.train.batch import (
    PADDED,
    Batch,
    Form,
    collate,
    denominator,
    forward_passes,
    make_batch,
)
from kernel_coder.train.config import AdvantagesConfig, OptimConfig
from kernel_coder.train.update import Learner, backward, form_of, score
from torch import Tensor
from transformers import MambaConfig, MambaForCausalLM, MistralConfig, MistralForCausalLM

TOKENIZER = tiny_tokenizer()
PACKED, SHARED = Form(packing=True), Form(packing=True, sharing=True)
SPEC = LossSpec.preset("dapo", beta=0.05)


def policy(dtype: torch.dtype = torch.float64, **changes: Any) -> Policy:
    return Policy(tiny_model(len(TOKENIZER), hidden=32).to(dtype).eval(), TOKENIZER, **changes)


def turn(prompt: int, length: int, seed: int) -> Turn:
    ids = torch.randint(3, 600, (prompt + length,), generator=torch.Generator().manual_seed(seed)).tolist()
    begun = torch.randint(3, 600, (prompt,), generator=torch.Generator().manual_seed(prompt)).tolist()
    return Turn(tuple(begun), tuple(ids[:length]), (-1.0,) * length, "", "stop")


def batch_of(turns: list[Turn], rewards: list[float], **options: Any) -> Batch:
    scored = torch.tensor(rewards, dtype=torch.float64)
    return make_batch(turns, scored, AdvantagesConfig(), 4, mask_truncated=False, **options)


@pytest.fixture
def batch() -> Batch:
    """Two groups of four answers, and a third group that has gradients only from the KL term."""
    turns = [
        turn(prompt, length, seed)
        for prompt, lengths in ((9, (5, 1, 7, 3)), (14, (2, 6, 6, 1)), (4, (3, 2, 5, 4)))
        for seed, length in enumerate(lengths)
    ]
    return batch_of(turns, [0.0, 1.0, 0.5, 0.25, 2.0, 0.0, 1.0, 3.0, 1.0, 1.0, 1.0, 1.0])


def gradients(policy: Policy, batch: Batch, form: Form, size: int, spec: LossSpec = SPEC) -> dict[str, Tensor]:
    policy.model.zero_grad(set_to_none=True)
    passes = forward_passes(batch, spec, 1, size)[0]
    if spec.beta:
        batch = replace(batch, ref_logprobs=tuple(logprobs - 0.1 for logprobs in score(policy, batch, passes, 0.9)))
    backward(policy, batch, passes, spec, 0.9, denominator(batch, spec, 1), form)
    return {name: p.grad.clone() for name, p in policy.trainable().items() if p.grad is not None}


def apart(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    flat_a, flat_b = (torch.cat([g[name].flatten() for name in sorted(a)]) for g in (a, b))
    return float((flat_a - flat_b).norm() / flat_b.norm())


@pytest.mark.parametrize("form", [PACKED, SHARED])
@pytest.mark.parametrize("size", [1, 3, 5, 12])
def test_packed_rows_and_shared_prompts_give_the_gradients_of_padded_rows(batch: Batch, form: Form, size: int) -> None:
    model = policy()
    wanted = gradients(model, batch, PADDED, 4)
    assert apart(gradients(model, batch, form, size), wanted) < 1e-6
    other = replace(batch, advantages=batch.advantages.flip(0))
    assert apart(gradients(model, other, form, size), wanted) > 1e-2  # the comparison can fail


@pytest.mark.parametrize("form", [PACKED, SHARED])
def test_packed_rows_have_no_padding_and_hold_a_shared_prompt_once(batch: Batch, form: Form) -> None:
    micro = collate(batch, TOKENIZER.pad_token_id, torch.device("cpu"), form)
    prompts = [len(each.prompt_ids) for each in batch.turns]
    answers = sum(len(each.completion_ids) for each in batch.turns)
    assert micro.ids.shape == (1, answers + (9 + 14 + 4 if form.sharing else sum(prompts)))
    assert micro.positions is not None
    assert micro.attention_mask is None
    # For every completion token, `rows` points to the state one position before that token.
    lengths = [len(each.completion_ids) for each in batch.turns]
    wanted = [prompt - 1 + i for prompt, n in zip(prompts, lengths, strict=True) for i in range(n)]
    assert micro.positions[micro.rows].tolist() == wanted
    later = micro.rows[[i for i, position in enumerate(wanted) if position + 1 not in prompts]]
    assert torch.equal(
        micro.ids[0][later + 1], micro.targets[[i for i, p in enumerate(wanted) if p + 1 not in prompts]]
    )


def test_turns_of_a_conversation_share_their_common_prefix() -> None:
    first = [turn(9, n, n) for n in (3, 4, 5, 6)]
    second = [replace(turn(2, 4, 7), prompt_ids=one.prompt_ids + one.completion_ids + (7, 8)) for one in first]
    turns = [each for pair in zip(first, second, strict=True) for each in pair]
    batch = batch_of(turns, [0.0, 1.0, 0.5, 0.25, 2.0, 0.0, 1.0, 3.0], turn_counts=[2] * 4)
    model = policy()
    micro = collate(batch, 0, torch.device("cpu"), SHARED)
    assert micro.ids.shape == (1, 9 + sum(len(one.prompt_ids) - 9 + 4 for one in second))
    wanted = gradients(model, batch, PADDED, 4)
    for form in (PACKED, SHARED):
        assert apart(gradients(model, batch, form, 4), wanted) < 1e-6


def test_answers_without_gradient_are_in_no_row(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    model, plain = policy(can_pack=True, can_share=True), LossSpec.preset("dapo")
    model.model.model.embed_tokens.register_forward_hook(lambda m, inputs, out: seen.append(inputs[0].numel()))
    found = gradients(model, batch, SHARED, 12, plain)
    tokens = [len(each.completion_ids) for each in batch.turns]
    zero = [i for i in range(12) if batch.advantages[i] == 0]
    assert {8, 9, 10, 11} <= set(zero)
    prompts = 9 + 14
    assert seen == [prompts + sum(n for i, n in enumerate(tokens) if i not in zero)]
    assert found


def test_scoring_in_the_passes_of_the_update_gives_the_same_bits(batch: Batch) -> None:
    model = replace(policy(torch.float32), can_pack=True, can_share=True)
    spec, config = LossSpec.preset("dapo"), OptimConfig(per_device_train_batch_size=5, num_iterations=2)
    assert form_of(model, config) == SHARED
    optimizer = torch.optim.SGD(model.model.parameters())
    scored = Learner(model, None, optimizer, spec, config, 0.9, 1, lambda number: 0.0, 1).with_logprobs(batch)
    assert scored.old_logprobs is not None
    for indices in forward_passes(batch, spec, 1, 5)[0]:
        again = score(model, batch, [indices], 0.9, SHARED)
        assert all(torch.equal(again[i], scored.old_logprobs[i]) for i in indices)
    padded = score(model, batch, [range(12)], 0.9)
    for one, other in zip(score(model, batch, [range(12)], 0.9, SHARED), padded, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def test_config_and_model_decide_the_form() -> None:
    able = policy(can_pack=True, can_share=True)
    assert form_of(able, OptimConfig()) == SHARED
    assert form_of(able, OptimConfig(share_prompts=False)) == PACKED
    assert form_of(able, OptimConfig(packing=False)) == PADDED
    assert form_of(policy(), OptimConfig()) == PADDED
    assert form_of(policy(bf16=True), OptimConfig()) == Form(bf16=True)


def test_bfloat16_gradients_keep_the_dtype_of_the_weights_and_are_close(batch: Batch) -> None:
    model = policy(torch.float32)
    exact = gradients(model, batch, SHARED, 12)
    rounded = gradients(model, batch, replace(SHARED, bf16=True), 12)
    assert 1e-4 < apart(rounded, exact) < 0.1
    assert all(grad.dtype == torch.float32 for grad in rounded.values())


def test_with_packing_finds_which_models_can_pack_and_share() -> None:
    able, problem = with_packing(policy(torch.float32))
    assert (able.can_pack, able.can_share, problem) == (True, True, None)
    config = MistralConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=4,
    )
    window, problem = with_packing(Policy(MistralForCausalLM(config).eval(), TOKENIZER))
    assert (window.can_pack, window.can_share, problem) == (True, True, None)
    mamba = MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4))
    other, problem = with_packing(Policy(mamba.eval(), TOKENIZER))
    assert not other.can_pack
    assert problem is not None
    assert problem.startswith("sequences are padded, not packed")


def test_place_shares_common_prompts_and_keeps_other_sequences_whole() -> None:
    placed = place([(1, 2, 3), (1, 2, 4, 5), (6, 7)], [(1, 2), (1, 2), (6,)], torch.device("cpu"))
    assert placed.ids == [1, 2, 3, 4, 5, 6, 7]
    assert placed.positions == [0, 1, 2, 2, 3, 0, 1]
    assert [list(places) for places in placed.places] == [[0, 1, 2], [0, 1, 3, 4], [5, 6]]
    assert placed.layout.spans == ((0, 2, 0, 0), (2, 3, 0, 2), (3, 5, 0, 2), (5, 7, 0, 0))


def flash_forward(
    query: Tensor, key: Tensor, value: Tensor, ends_q: Tensor, ends_k: Tensor, *rest: Any, scale: float
) -> tuple[Tensor, ...]:
    """The forward pass of FlashAttention in plain torch: [tokens, heads, d] and log-sum-exps [heads, tokens]."""
    causal = rest[3]
    outs, lses = [], []
    for i in range(len(ends_q) - 1):
        q, k, v = query[ends_q[i] : ends_q[i + 1]], key[ends_k[i] : ends_k[i + 1]], value[ends_k[i] : ends_k[i + 1]]
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), -math.inf)
        outs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
        lses.append(scores.logsumexp(-1))
    return torch.cat(outs), torch.cat(lses, 1), torch.zeros(1), torch.zeros(1), torch.zeros(1)


def flash_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    ends_q: Tensor,
    ends_k: Tensor,
    *rest: Any,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The backward pass of FlashAttention in plain torch, from the given output and log-sum-exps."""
    causal = rest[3]
    found = [torch.zeros_like(each) for each in (query, key, value)]
    for i in range(len(ends_q) - 1):
        qs, ks = slice(ends_q[i], ends_q[i + 1]), slice(ends_k[i], ends_k[i + 1])
        scores = torch.einsum("qhd,khd->hqk", query[qs], key[ks]) * scale
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), -math.inf)
        weights = (scores - lse[:, qs, None]).exp()
        d_weights = torch.einsum("qhd,khd->hqk", grad[qs], value[ks])
        d_scores = weights * (d_weights - (grad[qs] * out[qs]).sum(-1).T[:, :, None]) * scale
        found[0][qs] += torch.einsum("hqk,khd->qhd", d_scores, key[ks])
        found[1][ks] += torch.einsum("hqk,qhd->khd", d_scores, query[qs])
        found[2][ks] += torch.einsum("hqk,qhd->khd", weights, grad[qs])
    return found[0], found[1], found[2]


def test_shared_flash_has_the_output_and_gradients_of_attention_by_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arithmetic of the GPU path, with plain torch in place of FlashAttention."""

    class Ops:
        _flash_attention_forward = staticmethod(flash_forward)
        _flash_attention_backward = staticmethod(flash_backward)

    monkeypatch.setattr(attention.torch.ops, "aten", Ops, raising=False)
    layout = layout_of([7, 4], [[3, 5, 1], [2, 6]], [9, 1], torch.device("cpu"))
    tokens = int(layout.cu_seqlens[-1])
    inputs = [torch.randn(1, heads, tokens, 8, dtype=torch.float64) for heads in (4, 2, 2)]
    weight = torch.randn(1, tokens, 4, 8, dtype=torch.float64)
    results = []
    for by in (
        lambda q, k, v: shared_flash(q, k, v, layout, 0.3),
        lambda q, k, v: attention_by_spans(q, k, v, layout.spans, 0.3),
    ):
        leaves = [each.clone().requires_grad_() for each in inputs]
        found = by(*leaves)
        results.append([found, *torch.autograd.grad(found, leaves, weight)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


@pytest.mark.gpu
def test_flash_attention_supports_shared_prompts(device: str) -> None:
    assert attention.flash_shares(torch.device(device, 0), torch.bfloat16)


@pytest.mark.gpu
def test_attention_path_for_long_sequences_agrees_with_the_usual_path(device: str) -> None:
    layout = layout_of([], [], [2 * LONG_SEQUENCE_TOKENS - 700, 900], torch.device(device))
    assert layout.is_long
    short = replace(layout, spans=layout.spans * 2)  # the same sequences; more spans turn the long path off
    assert not short.is_long
    shapes = [(1, heads, layout.spans[-1][1], 64) for heads in (4, 2, 2)]
    inputs = [torch.randn(shape, device=device, dtype=torch.bfloat16) for shape in shapes]
    results = []
    for each in (layout, short):
        leaves = [one.clone().requires_grad_() for one in inputs]
        found, _ = packed_attention(
            torch.nn.Identity(), *leaves, None, layout=each, cu_seq_lens_q=each.cu_seqlens, max_length_q=each.longest
        )
        results.append([found.detach(), *torch.autograd.grad(found.float().square().sum(), leaves)])
    for one, other in zip(*results, strict=True):
        assert float((one.float() - other.float()).norm() / other.float().norm()) < attention.FLASH_TOLERANCE


@pytest.mark.parametrize("length", [1, LONG_SEQUENCE_TOKENS - 1, LONG_SEQUENCE_TOKENS])
def test_attention_receives_the_layout_only_if_all_sequences_are_long(length: int) -> None:
    layout = layout_of([], [], [length, LONG_SEQUENCE_TOKENS], torch.device("cpu"))
    tokens = layout.spans[-1][1]
    inputs = attention.packed_inputs(torch.zeros(tokens, dtype=torch.int64), torch.arange(tokens), layout)
    assert ("layout" in inputs) is layout.is_long is (length == LONG_SEQUENCE_TOKENS)


def test_packed_attention_refuses_soft_capped_scores() -> None:
    with pytest.raises(attention.UsageError, match="soft-capped"):
        packed_attention(
            torch.nn.Identity(),
            *(torch.zeros(1, 1, 1, 4),) * 3,
            None,
            cu_seq_lens_q=torch.zeros(2),
            max_length_q=1,
            softcap=1.0,
        )


def test_no_more_layers_are_recomputed_than_memory_requires() -> None:
    appetite = ActivationMemory(fixed=50, token=110, layer=10, layers=10)
    counts = [appetite.recomputed(tokens=2, free=free) for free in (1000, 270, 269, 200, 100, 0)]
    assert counts == [0, 0, 2, 5, 10, 10]
    for count, free in zip(counts[:4], (1000, 270, 269, 200), strict=True):
        assert appetite.bytes(2, count) <= free


def test_measured_activation_memory_predicts_kept_bytes_with_and_without_recomputing() -> None:
    model = tiny_model(len(TOKENIZER), hidden=64)
    assert can_recompute(model)
    appetite = measure(model)
    model.train()
    assert kept_bytes(model, 700) == pytest.approx(appetite.bytes(700, 0), rel=0.05)
    recompute(model, 2)
    inputs = 2 * 700 * 64 * 4  # the inputs of both layers, which the hooks do not see
    assert kept_bytes(model, 700) + inputs == pytest.approx(appetite.bytes(700, 2) - 700 * appetite.layer, rel=0.05)
    assert appetite.layers == 2
    assert 0 < appetite.layer < appetite.token
    assert not can_recompute(torch.nn.Linear(1, 1))


def test_recomputed_layers_give_the_same_gradients_bit_for_bit(batch: Batch) -> None:
    model = policy(torch.float32)
    model.model.train()
    wanted = gradients(model, batch, SHARED, 12)
    for count in (1, 2, 0):
        recompute(model.model, count)
        found = gradients(model, batch, SHARED, 12)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_packed_restores_the_attention_of_the_model() -> None:
    model = tiny_model(len(TOKENIZER), hidden=32)
    with packed(model):
        assert model.config._attn_implementation == attention.NAME
    assert model.config._attn_implementation == "sdpa"
