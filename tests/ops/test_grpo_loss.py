from __future__ import annotations

from typing import Any

import pytest
import torch
from anywhere import anywhere, on, placed, there
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder import LossSpec, ops, reference
from kernel_coder.ops import LOSS_METRICS, LossOutput
from loss_batches import CHANCE, SPECS, assert_loss_equals_reference, loss_batch
from memory import allocated_bytes
from tolerances import assert_close
from torch import Tensor

pytestmark = pytest.mark.usefixtures("ops_run_there")
grpo_loss, policy_loss, token_logprobs = map(anywhere, (ops.grpo_loss, ops.policy_loss, ops.token_logprobs))
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
NAN = float("nan")


def random_logits(tokens: int, vocab: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return (2.0 * torch.randn(tokens, vocab, generator=rng, dtype=torch.float64)).to(dtype)


def run(logits: Tensor, batch: dict[str, Any], spec: LossSpec, **changes: Any) -> tuple[LossOutput, Tensor]:
    inputs = {**batch, **changes}
    leaf = logits.detach().requires_grad_()
    out = grpo_loss(leaf, inputs.pop("ids"), inputs.pop("advantages"), spec, **inputs)
    (grad,) = torch.autograd.grad(out.loss, leaf)
    return out, grad


def check_against_reference(
    logits: Tensor, batch: dict[str, Any], spec: LossSpec, slack: float = 1.0, **changes: Any
) -> None:
    out, grad = run(logits, batch, spec, **changes)
    inputs = {**batch, **changes}
    leaf = logits.detach().double().requires_grad_()
    loss, metrics = reference.grpo_loss(leaf, inputs.pop("ids"), inputs.pop("advantages"), spec, **inputs)
    (wanted,) = torch.autograd.grad(loss, leaf)
    # float32 stores a log-prob of -10 to within 5e-7. That becomes the relative error of a ratio.
    assert_loss_equals_reference(out, loss, metrics, slack=3 * slack)
    assert grad.dtype == logits.dtype
    ids = batch["ids"].clamp(min=0)
    chosen = torch.zeros_like(grad, dtype=torch.bool).scatter_(1, ids[:, None], True)
    slack *= 3.0 if logits.dtype == torch.float32 else 1.5
    assert_close(grad[chosen], wanted[chosen], slack=slack)
    assert_close(grad.masked_fill(chosen, 0), wanted.masked_fill(chosen, 0), slack=slack)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_loss_metrics_and_gradient_equal_the_reference(spec: LossSpec, dtype: torch.dtype) -> None:
    lengths = [5, 1, 0, 7]
    logits = random_logits(13, 1100, dtype)
    check_against_reference(logits, loss_batch(logits, lengths), spec, temperature=0.8)


@pytest.mark.parametrize("preset", LossSpec.presets())
def test_every_preset_equals_the_reference(preset: str) -> None:
    logits = random_logits(12, 200)
    batch = loss_batch(logits, [3, 9], seed=4)
    check_against_reference(logits, batch, LossSpec.preset(preset))
    check_against_reference(logits, batch, LossSpec.preset(preset), advantages=batch["advantages"][:2])


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    vocab=st.integers(1, 300),
    seed=st.integers(0, 2**30),
    spec=st.sampled_from(list(SPECS.values())),
    denominator=st.sampled_from([None, 3.0]),
    per_token_temperature=st.booleans(),
)
def test_any_batch_equals_the_reference(
    lengths: list[int], vocab: int, seed: int, spec: LossSpec, denominator: float | None, per_token_temperature: bool
) -> None:
    # float64, so that each ratio falls on the same side of its bound as in the reference.
    logits = random_logits(sum(lengths), vocab, torch.float64, seed)
    temperature = 0.5 + torch.rand(sum(lengths), dtype=torch.float64) if per_token_temperature else 1.0
    batch = loss_batch(logits, lengths, seed)
    check_against_reference(logits, batch, spec, CHANCE, denominator=denominator, temperature=temperature)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_equals_policy_loss_of_token_logprobs_bit_for_bit(spec: LossSpec) -> None:
    logits = random_logits(20, 3000)
    batch = loss_batch(logits, [9, 11])
    out, grad = run(logits, batch, spec)
    leaf = logits.clone().requires_grad_()
    parts = token_logprobs(leaf, batch["ids"], mask=batch["mask"], entropy=True)
    rest = {name: value for name, value in batch.items() if name not in ("ids", "advantages")}
    composed = policy_loss(parts.logprobs, batch["advantages"], spec, entropy=parts.entropy, **rest)
    composed.loss.backward()
    assert torch.equal(out.loss, composed.loss)
    assert torch.equal(out.metrics, composed.metrics)
    assert torch.equal(out.logprobs, parts.logprobs)
    assert torch.equal(out.entropy, parts.entropy)  # type: ignore[arg-type]
    assert torch.equal(grad, leaf.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_without_a_gradient_equal_those_of_the_loss_so_the_ratio_is_one(dtype: torch.dtype) -> None:
    logits = random_logits(30, 3000, dtype)
    batch = loss_batch(logits, [30])
    with torch.no_grad():
        scored = token_logprobs(logits, batch["ids"], mask=batch["mask"], temperature=0.9).logprobs
    out, grad = run(logits, batch, SPECS["clip"], old_logprobs=scored, temperature=0.9)
    assert torch.equal(out.logprobs, scored)
    metrics = dict(zip(LOSS_METRICS, out.metrics.tolist(), strict=True))
    assert metrics["logratio_sq"] == 0
    assert metrics["ratio"] == metrics["tokens"] == int(batch["mask"].sum())
    # Without an old policy the ratio is one too.
    assert torch.equal(grad, run(logits, batch, SPECS["clip"], old_logprobs=None, temperature=0.9)[1])


def test_gradients_of_eight_parts_add_up_to_those_of_the_whole() -> None:
    spec, lengths = SPECS["kl and entropy"], [4] * 8
    logits = random_logits(32, 500, torch.float64)
    batch = loss_batch(logits, lengths)
    out, grad = run(logits, batch, spec, denominator=8.0)
    losses, metrics, parts = torch.zeros((), dtype=torch.float64), torch.zeros_like(out.metrics), []
    for start in range(0, 32, 4):
        piece = {name: x[start : start + 4] for name, x in batch.items()} | {"cu_seqlens": torch.tensor([0, 4])}
        part, part_grad = run(logits[start : start + 4], piece, spec, denominator=8.0)
        losses, metrics = losses + part.loss.detach(), metrics + part.metrics
        parts.append(part_grad)
    assert torch.equal(torch.cat(parts), grad)
    assert_close(losses, out.loss)
    assert_close(metrics, out.metrics)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_fully_masked_batch_gives_zero(spec: LossSpec) -> None:
    logits = torch.full((6, 50), NAN)
    batch = loss_batch(torch.zeros(6, 50), [6])
    out, grad = run(logits, batch, spec, mask=torch.zeros(6, dtype=torch.bool))
    assert out.loss == 0
    assert bool((grad == 0).all())
    assert bool((out.logprobs == 0).all())


def test_no_tokens_give_zero() -> None:
    logits = torch.zeros(0, 50)
    out, grad = run(logits, loss_batch(logits, [0]), SPECS["clip"])
    assert out.loss == 0
    assert grad.shape == (0, 50)


def test_backward_does_not_read_rows_with_zero_advantage(device: str) -> None:
    logits = random_logits(6, 500)
    batch = loss_batch(logits, [6]) | {"mask": torch.ones(6, dtype=torch.bool), "ids": torch.arange(6)}
    batch["advantages"][2:4] = 0.0
    batch = on(device, batch)
    leaf = placed(logits, device).requires_grad_()
    out = ops.grpo_loss(leaf, batch.pop("ids"), batch.pop("advantages"), SPECS["clip"], **batch)
    with torch.no_grad():
        leaf.data[2:4] = NAN  # shows in the gradient if the backward pass reads the rows
    out.loss.backward()
    assert leaf.grad is not None
    assert bool((leaf.grad[2:4] == 0).all())
    assert bool(leaf.grad.isfinite().all())


def test_gradient_is_right_for_a_scaled_loss_and_for_a_sum_with_other_terms() -> None:
    logits = random_logits(9, 300)
    batch = loss_batch(logits, [9])
    leaf = logits.clone().requires_grad_()
    arguments = (leaf, batch.pop("ids"), batch.pop("advantages"), SPECS["kl and entropy"])
    out = grpo_loss(*arguments, **batch)
    (once,) = torch.autograd.grad(out.loss, leaf, retain_graph=True)
    (scaled,) = torch.autograd.grad(-4 * out.loss, leaf, retain_graph=True)
    assert torch.equal(scaled, -4 * once)
    (beside,) = torch.autograd.grad(out.loss + leaf.sum(), leaf)
    assert_close(beside, once.double() + 1)


def test_log_probs_entropy_and_metrics_carry_no_gradient() -> None:
    logits = random_logits(4, 30).requires_grad_()
    out = grpo_loss(logits, torch.arange(4), torch.ones(4), SPECS["clip"])
    assert out.loss.requires_grad
    assert out.entropy is not None
    assert not any(x.requires_grad for x in (out.logprobs, out.entropy, out.metrics))


def test_inputs_are_left_alone() -> None:
    logits = random_logits(9, 300)
    batch = loss_batch(logits, [4, 5])
    before = [x.clone() for x in (logits, *batch.values())]
    run(logits, batch, SPECS["kl and entropy"])
    assert all(torch.equal(a, b) for a, b in zip((logits, *batch.values()), before, strict=True))


def test_rows_inside_a_wider_tensor_give_the_same_loss_and_gradient(device: str) -> None:
    wide = random_logits(9, 302)
    inside = wide[:, 1:-1]
    batch = loss_batch(inside, [9])
    (out, grad), (wanted, wanted_grad) = (run(x, batch, SPECS["clip"]) for x in (inside, inside.contiguous()))
    if device == "cpu":
        assert torch.equal(out.loss, wanted.loss)
        assert torch.equal(grad, wanted_grad)
    else:  # the alignment of a row decides which of its elements are summed together
        assert_close(1 + out.loss.detach(), 1 + wanted.loss.detach().double())
        assert_close(grad, wanted_grad.double(), slack=5)


@pytest.mark.cpu
def test_memory_of_the_forward_does_not_grow_with_the_vocabulary() -> None:
    logits = random_logits(16, 60_000)
    batch = loss_batch(logits, [16])
    ids, advantages = batch.pop("ids"), batch.pop("advantages")
    assert allocated_bytes(lambda: grpo_loss(logits, ids, advantages, SPECS["kl and entropy"], **batch)) < 8192


# CISPO treats a weight that depends on the log-probs as a constant, so finite differences disagree with its gradient.
@pytest.mark.parametrize("name", [name for name in SPECS if name != "cispo"])
def test_gradcheck(name: str) -> None:
    spec, logits = SPECS[name], random_logits(6, 8, torch.float64)
    batch = loss_batch(logits, [2, 4], seed=2)
    ids, advantages = batch.pop("ids"), batch.pop("advantages")
    assert torch.autograd.gradcheck(
        lambda x: grpo_loss(x, ids, advantages, spec, temperature=0.8, **batch).loss, logits.requires_grad_()
    )


@pytest.mark.parametrize("spec", [SPECS["clip"], SPECS["kl and entropy"]])
def test_opcheck(device: str, spec: LossSpec) -> None:
    logits = random_logits(5, 11)
    batch = on(device, loss_batch(logits, [2, 3]))
    arguments = (
        there(logits).requires_grad_(),
        batch["ids"],
        there(torch.ones(())),
        batch["advantages"],
        batch["old_logprobs"],
        batch["ref_logprobs"],
        None,
        batch["mask"],
        batch["cu_seqlens"],
        there(torch.tensor(4.0, dtype=torch.float64)),
        spec.pack(),
    )
    torch.library.opcheck(torch.ops.kernel_coder.grpo_loss.default, arguments)


def test_a_second_derivative_is_refused_in_one_sentence() -> None:
    logits = random_logits(3, 50).requires_grad_()
    loss = grpo_loss(logits, torch.arange(3), torch.ones(3), SPECS["clip"]).loss
    (grad,) = torch.autograd.grad(loss, logits, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiable once"):
        grad.square().sum().backward()


def test_compiles_without_a_graph_break() -> None:
    logits = random_logits(5, 70)
    batch = loss_batch(logits, [5])
    ids, advantages = batch.pop("ids"), batch.pop("advantages")

    def loss(x: Tensor) -> Tensor:
        return 3 * grpo_loss(2 * x, ids, advantages, SPECS["kl and entropy"], denominator=5.0, **batch).loss

    grads = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        leaf = logits.clone().requires_grad_()
        function(leaf).backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"logits": torch.zeros(7)},
            r"logits must have shape \[tokens, vocab\] or \[sequences, .*; got \[7\]",
        ),
        ({"advantages": torch.ones(2)}, "advantages must have one value a token or one a sequence"),
        ({"old_logprobs": torch.ones(2)}, "old_logprobs must have"),
        ({"mask": torch.ones(3)}, "mask must be bool; got float32"),
        ({"cu_seqlens": torch.tensor([[0, 3]])}, r"cu_seqlens must be 1-D and not empty; got shape \[1, 2\]"),
        ({"denominator": -1.0}, "denominator must be at least 0; got -1"),
        ({"spec": LossSpec(beta=0.1)}, "ref_logprobs"),
        ({"denominator": torch.ones(2)}, r"denominator must be a number or 0-D; got shape \[2\]"),
    ],
)
def test_a_wrong_argument_is_named_in_one_sentence(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "logits": torch.zeros(3, 7),
        "ids": torch.tensor([0, 1, 2]),
        "advantages": torch.ones(3),
        "spec": LossSpec.preset("dapo"),
        **changes,
    }
    for inplace in (False, True):
        with pytest.raises(ValueError, match=message):
            grpo_loss(**arguments, inplace=inplace)


@pytest.mark.cpu  # only the CPU checks values
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": torch.tensor([0, 7, 1])}, r"ids\[1\] must be in \[0, 7\); got 7"),
        ({"cu_seqlens": torch.tensor([0, 2])}, "cu_seqlens must end with the number of tokens, 3; got 2"),
        ({"temperature": 0.0}, "temperature must be finite and more than 0; got 0"),
        ({"denominator": torch.tensor(-1.0)}, "denominator must be at least 0; got -1"),
    ],
)
def test_a_wrong_value_is_named_in_one_sentence(changes: dict[str, Any], message: str) -> None:
    test_a_wrong_argument_is_named_in_one_sentence(changes, message)
