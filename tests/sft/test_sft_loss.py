"""The loss of a packed row is that of each answer alone: against float64, token by token, without any packing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from kernel_coder.models.tiny import tiny_model, tiny_tokenizer
from kernel_coder.policy.attention import packed
from kernel_coder.policy.model import Policy
from kernel_coder.policy.parts import head_of
from kernel_coder.run.errors import UsageError
from kernel_coder.sft.attention import check_separation
from kernel_coder.sft.examples import Example
from kernel_coder.sft.packing import Filled, PackedBatch, collate
from kernel_coder.sft.setup import neighbours
from kernel_coder.sft.update import Losses, backward, launch_step, loss_of, measure
from kernel_coder.train.update import clip
from torch import Tensor, nn
from transformers import Lfm2Config, Lfm2ForCausalLM, MistralConfig, MistralForCausalLM

TOKENIZER = tiny_tokenizer()
CPU = torch.device("cpu")


def policy(dtype: torch.dtype = torch.float64) -> Policy:
    return Policy(tiny_model(len(TOKENIZER), hidden=32).to(dtype).eval(), TOKENIZER)


def sliding(window: int) -> Policy:
    config = MistralConfig(
        vocab_size=len(TOKENIZER),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=window,
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    return Policy(MistralForCausalLM(config).double().eval(), TOKENIZER)


def examples() -> list[Example]:
    """Lengths from 2 to 40, a different share of each in the loss."""
    draw = np.random.default_rng(0)
    found = []
    for i, length in enumerate([17, 40, 2, 9, 23, 5]):
        in_loss = np.arange(length) >= max(1, length - 1 - 3 * i)
        found.append(Example(str(i), draw.integers(3, len(TOKENIZER), length).astype(np.int32), in_loss))
    return found


def slow(policy: Policy, chosen: list[Example]) -> Tensor:
    """The mean over the answers' tokens, one example at a time, in float64, straight from the definition."""
    nll, count = torch.zeros((), dtype=torch.float64), 0
    for example in chosen:
        ids = torch.from_numpy(example.ids.astype(np.int64))
        logprobs = policy.model(input_ids=ids[None]).logits[0].double().log_softmax(-1)
        for i in range(1, len(ids)):
            if example.in_loss[i]:
                nll, count = nll - logprobs[i - 1, ids[i]], count + 1
    return nll / count


def gradient(policy: Policy) -> Tensor:
    return torch.cat([p.grad.flatten().double() for p in policy.trainable().values() if p.grad is not None])


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def run(policy: Policy, batches: list[PackedBatch], **options: bool) -> tuple[Losses, Tensor]:
    policy.model.zero_grad(set_to_none=True)
    total = float(sum(batch.num_targets for batch in batches))
    sums = backward(policy, batches, total, **options)
    return Losses.of(sums.tolist(), total), gradient(policy)


def slow_run(policy: Policy) -> tuple[float, Tensor]:
    policy.model.zero_grad(set_to_none=True)
    loss = slow(policy, examples())
    loss.backward()
    return float(loss.detach()), gradient(policy)


@pytest.mark.parametrize("cut", [[6], [2, 4], [1, 1, 1, 1, 1, 1]], ids=["one row", "two rows", "no packing"])
def test_packed_loss_and_gradient_equal_those_of_each_answer_alone(cut: list[int]) -> None:
    model = policy()
    expected, expected_gradient = slow_run(model)
    chosen = iter(examples())
    batches = [collate([next(chosen) for _ in range(size)], CPU) for size in cut]
    losses, found = run(model, batches)
    assert losses.tokens == sum(int(e.in_loss.sum()) for e in examples())
    assert losses.mean == pytest.approx(expected, rel=1e-10)
    assert apart(found, expected_gradient) < 1e-9
    assert measure(model, batches).mean == pytest.approx(expected, rel=1e-10)


def test_loss_changes_if_an_example_sees_its_neighbours() -> None:
    """Proves that the test above can fail: one long example in place of six gives another loss."""
    model = policy()
    expected, _ = slow_run(model)
    batch = collate(examples(), CPU)
    length = len(batch.ids)
    joined = replace(
        batch, positions=torch.arange(length), cu_seqlens=torch.tensor([0, length], dtype=torch.int32), longest=length
    )
    assert abs(run(model, [joined])[0].mean - expected) > 1e-3 * expected


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_other_attention_implementations_give_the_same_loss(implementation: str) -> None:
    model = policy()
    expected, expected_gradient = slow_run(model)
    model.model.set_attn_implementation(implementation)
    losses, found = run(model, [collate(examples(), CPU)])
    assert losses.mean == pytest.approx(expected, rel=1e-7)  # eager takes its softmax in float32
    assert apart(found, expected_gradient) < 1e-6
    assert model.model.config._attn_implementation == implementation


def test_sliding_window_counts_within_an_example() -> None:
    model = sliding(6)
    expected, expected_gradient = slow_run(model)
    losses, found = run(model, [collate(examples(), CPU)])
    assert losses.mean == pytest.approx(expected, rel=1e-9)
    assert apart(found, expected_gradient) < 1e-8
    assert slow(sliding(99), examples()).item() != pytest.approx(expected, rel=1e-4)


def test_padding_to_one_shape_changes_nothing() -> None:
    model = policy()
    plain, plain_gradient = run(model, [collate(examples(), CPU)])
    filled, filled_gradient = run(model, [collate(examples(), CPU, filled=Filled(150, longest=40))])
    assert filled.tokens == plain.tokens
    assert filled.mean == pytest.approx(plain.mean, rel=1e-12)
    assert apart(filled_gradient, plain_gradient) < 1e-11


def test_recomputed_activations_give_the_same_gradient() -> None:
    plain, other = policy(), policy()
    other.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    other.model.train()
    assert apart(run(other, [collate(examples(), CPU)])[1], run(plain, [collate(examples(), CPU)])[1]) < 1e-12


def test_bfloat16_computes_with_float32_weights() -> None:
    model = policy(torch.float32)
    exact, exact_gradient = run(model, [collate(examples(), CPU)])
    rounded, rounded_gradient = run(model, [collate(examples(), CPU)], bf16=True)
    assert {p.grad.dtype for p in model.trainable().values() if p.grad is not None} == {torch.float32}
    assert rounded.mean == pytest.approx(exact.mean, rel=2e-2)
    assert rounded.mean != exact.mean
    assert apart(rounded_gradient, exact_gradient) < 5e-2


class Odd(nn.Linear):
    """A head that the fused loss does not support."""


def test_unknown_head_falls_back_to_logits() -> None:
    plain, odd = policy(), policy()
    head = odd.model.lm_head
    other = Odd(head.in_features, head.out_features, bias=False, dtype=torch.float64)
    other.weight = head.weight
    odd.model.lm_head = other
    assert head_of(odd.model) is None
    (losses, found), (expected, expected_gradient) = (run(m, [collate(examples(), CPU)]) for m in (odd, plain))
    assert losses.mean == pytest.approx(expected.mean, rel=1e-10)
    assert apart(found, expected_gradient) < 1e-9


def stepped(gradients: list[list[float]], losses: list[float], *, on_device: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """A weight and the optimiser's state after these steps. Steps that are not finite are skipped."""
    weight = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    for gradient, loss in zip(gradients, losses, strict=True):
        weight.grad = torch.tensor(gradient)
        norm = clip([weight], 1.0)
        if on_device:
            launch_step(optimizer, torch.tensor(loss), norm)
        elif bool(norm.isfinite()) and math.isfinite(loss):
            optimizer.step()
    return weight.detach(), optimizer.state[weight]


def test_step_launched_without_waiting_is_the_same_and_skips_values_that_are_not_finite() -> None:
    gradients = [[0.1, 2.0, -3.0], [1.0, math.nan, 0.0], [0.3, 0.1, 0.2], [1.0, 1.0, 1.0], [math.inf, 0.0, 0.0]]
    losses = [0.5, 0.5, 0.5, math.inf, 0.5]
    (found, state), (expected, expected_state) = (stepped(gradients, losses, on_device=on) for on in (True, False))
    assert torch.equal(found, expected)
    assert state.keys() == expected_state.keys()
    assert all(torch.equal(state[name], expected_state[name]) for name in state)
    assert state["step"] == 2


def test_nan_in_a_weight_gives_a_nan_loss() -> None:
    model = policy(torch.float32)
    with torch.no_grad():
        model.model.model.norm.weight[0] = torch.nan
    with packed(model.model):
        assert loss_of(model.model, collate(examples(), CPU), 1.0).loss.isnan()


def test_model_that_mixes_tokens_of_different_examples_is_refused() -> None:
    model = policy()
    one, two = neighbours(model)
    check_separation(model, one, two)
    model.model.set_attn_implementation("eager")
    blind = [replace(batch, positions=torch.arange(len(batch.ids))) for batch in (one, two)]
    with pytest.raises(UsageError, match="lets an example see its neighbour"):
        check_separation(model, *blind)
    config = Lfm2Config(
        vocab_size=len(TOKENIZER),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention"],
    )
    with pytest.raises(UsageError, match="layers of type conv"):
        check_separation(Policy(Lfm2ForCausalLM(config), TOKENIZER), one, two)
