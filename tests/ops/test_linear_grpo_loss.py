from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder import LossSpec, reference
from kernel_coder.ops import LOSS_METRICS, LossOutput, linear_grpo_loss, linear_token_logprobs, policy_loss
from kernel_coder.reference.linear_token_logprobs import linear_logits
from loss_batches import CHANCE, SPECS, assert_loss_equals_reference, loss_batch
from memory import allocated_bytes
from tolerances import assert_close
from torch import Tensor

pytestmark = pytest.mark.usefixtures("chosen_kernels")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
NAN = float("nan")


class Case:
    """A head and the other inputs of a loss. Tensors are on the CPU; the op gets copies on ``device``."""

    def __init__(
        self,
        lengths: list[int],
        width: int = 24,
        vocab: int = 300,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        device: str = "cpu",
        **head: Any,
    ) -> None:
        rng = torch.Generator().manual_seed(seed)
        tokens = sum(lengths)
        self.hidden = torch.randn(tokens, width, generator=rng, dtype=torch.float64).to(dtype)
        self.weight = (2 * torch.randn(vocab, width, generator=rng, dtype=torch.float64) / width**0.5).to(dtype)
        self.bias = torch.randn(vocab, generator=rng, dtype=torch.float64).to(dtype)
        self.head = head
        self.device = device
        logits = linear_logits(self.hidden, self.weight, bias=self.bias, **head)
        self.batch = loss_batch(logits.to(torch.float64 if dtype == torch.float64 else torch.float32), lengths, seed)

    def leaves(self) -> list[Tensor]:
        return [x.detach().to(self.device, copy=True).requires_grad_() for x in (self.hidden, self.weight, self.bias)]

    def loss(self, leaves: list[Tensor], spec: LossSpec, **changes: Any) -> LossOutput:
        inputs = on(self.device, {**self.head, **self.batch, **changes})
        ids, advantages = inputs.pop("ids"), inputs.pop("advantages")
        out = linear_grpo_loss(leaves[0], leaves[1], ids, advantages, spec, bias=leaves[2], **inputs)
        return LossOutput(*(x if x is None else x.cpu() for x in out))

    def run(self, spec: LossSpec, **changes: Any) -> tuple[LossOutput, list[Tensor]]:
        leaves = self.leaves()
        out = self.loss(leaves, spec, **changes)
        return out, [grad.cpu() for grad in torch.autograd.grad(out.loss, leaves)]

    def check_against_reference(
        self, spec: LossSpec, chunk_rows: int | None = None, slack: float = 1.0, **changes: Any
    ) -> None:
        out, grads = self.run(spec, chunk_rows=chunk_rows, **changes)
        leaves = [x.detach().double().requires_grad_() for x in (self.hidden, self.weight, self.bias)]
        inputs = {**self.head, **self.batch, **changes}
        ids, advantages = inputs.pop("ids"), inputs.pop("advantages")
        loss, metrics = reference.linear_grpo_loss(*leaves[:2], ids, advantages, spec, bias=leaves[2], **inputs)
        # Logits are float32 sums. The absolute error of a log-prob becomes the relative error of a ratio.
        assert_loss_equals_reference(out, loss, metrics, slack=5 * slack)
        for grad, wanted in zip(grads, torch.autograd.grad(loss, leaves), strict=True):
            assert grad.dtype == self.hidden.dtype
            assert_close(grad, wanted, slack=slack * (5 if grad.dtype in (torch.float32, torch.float64) else 1.5))


def on(device: str, values: dict[str, Any]) -> dict[str, Any]:
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in values.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_loss_metrics_and_gradients_equal_the_reference(device: str, spec: LossSpec, dtype: torch.dtype) -> None:
    case = Case([5, 1, 0, 7, 20], dtype=dtype, device=device)
    case.check_against_reference(spec, temperature=0.8)


@pytest.mark.parametrize("preset", LossSpec.presets())
def test_every_preset_equals_the_reference(device: str, preset: str) -> None:
    case = Case([3, 30, 2], seed=4, device=device)
    spec = LossSpec.preset(preset)
    # The exponent of this ratio sums the rounding errors of 30 tokens, and the square of the ratio doubles them.
    slack = 3.0 if spec.importance_sampling_level == "sequence_sum" else 1.0
    case.check_against_reference(spec, chunk_rows=16, slack=slack)
    case.check_against_reference(spec, advantages=case.batch["advantages"][:3], slack=slack)


@pytest.mark.parametrize("head", [{"logit_scale": 0.3}, {"softcap": 5.0}, {"logit_scale": 2.0, "softcap": 4.0}])
def test_scaled_and_capped_heads_equal_the_reference(device: str, head: dict[str, Any]) -> None:
    for dtype in (torch.float64, torch.bfloat16):
        case = Case([9, 12], dtype=dtype, device=device, **head)
        case.check_against_reference(SPECS["kl and entropy"], chunk_rows=10)


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=6),
    vocab=st.sampled_from([1, 2, 65, 300]),
    seed=st.integers(0, 2**30),
    spec=st.sampled_from(list(SPECS.values())),
    chunk_rows=st.sampled_from([None, 1, 4, 16]),
    denominator=st.sampled_from([None, 3.0]),
)
def test_any_batch_and_chunk_equals_the_reference(
    device: str,
    lengths: list[int],
    vocab: int,
    seed: int,
    spec: LossSpec,
    chunk_rows: int | None,
    denominator: float | None,
) -> None:
    case = Case(lengths, width=7, vocab=vocab, dtype=torch.float64, seed=seed, device=device)
    case.check_against_reference(spec, chunk_rows, CHANCE, denominator=denominator)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_chunks_change_neither_log_probs_nor_loss(device: str, spec: LossSpec) -> None:
    case = Case([40, 3, 25], vocab=4500, device=device)
    whole, whole_grads = case.run(spec)
    for chunk_rows in (3, 16, 33, 1000):
        out, grads = case.run(spec, chunk_rows=chunk_rows)
        assert torch.equal(out.logprobs, whole.logprobs)
        assert torch.equal(out.entropy, whole.entropy)  # type: ignore[arg-type]
        assert_close(out.loss, whole.loss)
        for grad, wanted in zip(grads, whole_grads, strict=True):  # another order of summation, so other bits
            assert_close(grad, wanted, slack=5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk_rows", [None, 10])
def test_scores_equal_the_log_probs_of_the_loss_so_the_ratio_is_one(
    device: str, dtype: torch.dtype, chunk_rows: int | None
) -> None:
    # One call scores all tokens, with another chunk size and without a mask. The loss gets micro-batches.
    case = Case([13, 9, 28], vocab=4500, dtype=dtype)
    hidden, weight, bias = (x.to(device) for x in (case.hidden, case.weight, case.bias))
    ids = case.batch["ids"].clamp(min=0).to(device)
    mask = case.batch["mask"].to(device)
    with torch.no_grad():
        scored = linear_token_logprobs(hidden, weight, ids, bias=bias, temperature=0.9).logprobs
    spec = LossSpec.preset("dapo")
    for start, stop in ((0, 13), (13, 22), (22, 50)):
        out = linear_grpo_loss(
            hidden[start:stop].detach().requires_grad_(),
            weight,
            ids[start:stop],
            torch.ones(stop - start, device=device),
            spec,
            bias=bias,
            temperature=0.9,
            old_logprobs=scored[start:stop],
            mask=mask[start:stop],
            chunk_rows=chunk_rows,
        )
        assert torch.equal(out.logprobs, scored[start:stop] * mask[start:stop])
        metrics = dict(zip(LOSS_METRICS, out.metrics.tolist(), strict=True))
        assert metrics["logratio_sq"] == 0
        assert metrics["ratio"] == metrics["tokens"] == int(mask[start:stop].sum())


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_equals_policy_loss_of_linear_token_logprobs(device: str, spec: LossSpec) -> None:
    case = Case([9, 11], device=device)
    out, grads = case.run(spec)
    leaves = case.leaves()
    batch = on(device, case.batch)
    ids, advantages, mask = batch.pop("ids"), batch.pop("advantages"), batch["mask"]
    parts = linear_token_logprobs(leaves[0], leaves[1], ids, bias=leaves[2], mask=mask, entropy=True)
    composed = policy_loss(parts.logprobs, advantages, spec, entropy=parts.entropy, **batch)
    assert torch.equal(out.loss, composed.loss.cpu())
    assert torch.equal(out.metrics, composed.metrics.cpu())
    for grad, wanted in zip(grads, torch.autograd.grad(composed.loss, leaves), strict=True):
        assert_close(grad, wanted.cpu())


def test_gradient_is_right_for_a_scaled_loss_and_for_a_sum_with_other_terms(device: str) -> None:
    case = Case([9], device=device)
    leaves = case.leaves()
    out = case.loss(leaves, SPECS["kl and entropy"])
    once = torch.autograd.grad(out.loss, leaves, retain_graph=True)
    for grad, wanted in zip(torch.autograd.grad(-4 * out.loss, leaves, retain_graph=True), once, strict=True):
        assert torch.equal(grad, -4 * wanted)
    beside = torch.autograd.grad(out.loss.to(device) + leaves[0].sum() + 2 * leaves[1].sum(), leaves)
    for grad, wanted, more in zip(beside, once, (1.0, 2.0, 0.0), strict=True):
        assert_close(grad, wanted.double() + more)


def test_gradients_of_four_parts_add_up_to_those_of_the_whole(device: str) -> None:
    case = Case([5] * 4, dtype=torch.float64, device=device)
    out, (by_hidden, by_weight, by_bias) = case.run(SPECS["kl and entropy"], denominator=4.0)
    loss, weight_sum, bias_sum = torch.zeros_like(out.loss), torch.zeros_like(by_weight), torch.zeros_like(by_bias)
    parts = []
    for start in range(0, 20, 5):
        part = Case([5], dtype=torch.float64, device=device)
        part.hidden, part.weight, part.bias = case.hidden[start : start + 5], case.weight, case.bias
        part.batch = {name: x[start : start + 5] for name, x in case.batch.items()}
        part.batch["cu_seqlens"] = torch.tensor([0, 5])
        part_out, grads = part.run(SPECS["kl and entropy"], denominator=4.0)
        loss, weight_sum, bias_sum = loss + part_out.loss, weight_sum + grads[1], bias_sum + grads[2]
        parts.append(grads[0])
    for x, wanted in ((loss, out.loss), (weight_sum, by_weight), (bias_sum, by_bias), (torch.cat(parts), by_hidden)):
        assert_close(x, wanted)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_fully_masked_batch_gives_zero(device: str, spec: LossSpec) -> None:
    case = Case([6], device=device)
    case.hidden.fill_(NAN)
    out, grads = case.run(spec, mask=torch.zeros(6, dtype=torch.bool))
    assert out.loss == 0
    assert all(bool((grad == 0).all()) for grad in grads)


def test_nan_in_masked_rows_changes_neither_loss_nor_gradients(device: str) -> None:
    case = Case([20], vocab=50, device=device)
    mask = case.batch["mask"]
    clean, clean_grads = case.run(SPECS["kl and entropy"])
    case.hidden[~mask] = NAN
    out, grads = case.run(SPECS["kl and entropy"])
    assert torch.equal(out.loss, clean.loss)
    assert all(torch.equal(a, b) for a, b in zip(grads, clean_grads, strict=True))
    assert bool((grads[0][~mask] == 0).all())


def test_tokens_with_zero_advantage_get_a_gradient_of_exactly_zero(device: str) -> None:
    case = Case([40], vocab=50, device=device)
    case.batch["advantages"][5:] = 0.0
    out, grads = case.run(SPECS["clip"])
    assert bool((grads[0][5:] == 0).all())
    case.check_against_reference(SPECS["clip"])
    none, none_grads = case.run(SPECS["clip"], advantages=torch.zeros(40))
    assert torch.equal(none.logprobs, out.logprobs)
    assert all(bool((grad == 0).all()) for grad in none_grads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head", [{}, {"logit_scale": 0.7, "softcap": 6.0}], ids=["plain", "capped"])
def test_long_batch_with_mostly_zero_advantages_equals_the_reference(
    device: str, dtype: torch.dtype, head: dict[str, Any]
) -> None:
    case = Case([700, 0, 200, 400], width=16, vocab=200, dtype=dtype, device=device, **head)
    rng = torch.Generator().manual_seed(1)
    case.batch["advantages"][torch.rand(1300, generator=rng) < 0.7] = 0.0
    for chunk_rows in (None, 600):
        case.check_against_reference(SPECS["clip"], chunk_rows)
        case.check_against_reference(SPECS["cispo"], chunk_rows)
    case.batch["advantages"][: 3 * 1300 // 4] = 0.0
    case.check_against_reference(SPECS["clip"], 600)
    case.check_against_reference(SPECS["gspo"], 600)


def test_a_frozen_head_gets_no_gradient(device: str) -> None:
    case = Case([9, 30], device=device)
    _, (wanted, _, _) = case.run(SPECS["clip"])
    hidden, weight, bias = case.leaves()
    out = case.loss([hidden, weight.detach(), bias.detach()], SPECS["clip"])
    (grad,) = torch.autograd.grad(out.loss, hidden)
    assert torch.equal(grad.cpu(), wanted)


def test_loss_under_no_grad_is_the_same_and_requires_no_gradient(device: str) -> None:
    case = Case([9, 30], device=device)
    for spec in SPECS.values():
        wanted, _ = case.run(spec)
        with torch.no_grad():
            out = case.loss(case.leaves(), spec)
        assert not out.loss.requires_grad
        assert torch.equal(out.loss, wanted.loss)
        assert torch.equal(out.metrics, wanted.metrics)


def test_memory_does_not_grow_with_tokens_times_vocabulary() -> None:
    vocab, row = 20_000, 20_000 * 4
    case = Case([40] * 16, width=4, vocab=vocab)

    def peak(tokens: int) -> int:
        batch = {name: x[:tokens] for name, x in case.batch.items() if name != "cu_seqlens"}
        batch["cu_seqlens"] = torch.arange(0, tokens + 1, 40)
        leaves = case.leaves()
        leaves[0] = leaves[0][:tokens]
        return allocated_bytes(lambda: case.loss(leaves, SPECS["kl and entropy"], chunk_rows=40, **batch))

    small, large = peak(80), peak(640)
    assert small < 48 * row + 8 * case.weight.numel() * 4
    assert large < small + 2 * row


def test_inputs_are_left_alone(device: str) -> None:
    case = Case([9, 30], softcap=5.0)
    given = on(device, {"hidden": case.hidden, "weight": case.weight, "bias": case.bias, **case.batch})
    before = {name: x.clone() for name, x in given.items()}
    leaves = [given[name].detach().requires_grad_() for name in ("hidden", "weight", "bias")]
    inputs = {name: given[name] for name in case.batch}
    ids, advantages = inputs.pop("ids"), inputs.pop("advantages")
    spec = SPECS["kl and entropy"]
    out = linear_grpo_loss(
        *(leaves[0], leaves[1], ids, advantages, spec), bias=leaves[2], softcap=5.0, chunk_rows=5, **inputs
    )
    out.loss.backward()
    assert all(torch.equal(given[name], x) for name, x in before.items())


# CISPO treats a weight that depends on the log-probs as a constant, so finite differences disagree with its gradient.
@pytest.mark.parametrize("name", [name for name in SPECS if name != "cispo"])
@pytest.mark.parametrize("chunk_rows", [None, 2])
def test_gradcheck(device: str, name: str, chunk_rows: int | None) -> None:
    case = Case([2, 4], width=3, vocab=6, dtype=torch.float64, softcap=6.0, logit_scale=0.8, seed=2, device=device)
    assert torch.autograd.gradcheck(
        lambda *leaves: case.loss(list(leaves), SPECS[name], chunk_rows=chunk_rows, temperature=0.8).loss, case.leaves()
    )


@pytest.mark.parametrize("rounded_weight_grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(device: str, dtype: torch.dtype, rounded_weight_grad: bool) -> None:
    case = Case([2, 3], width=4, vocab=11, dtype=dtype, device=device)
    batch = on(device, case.batch)
    arguments = (
        *case.leaves(),
        batch["ids"],
        torch.ones((), device=device),
        batch["advantages"],
        batch["old_logprobs"],
        batch["ref_logprobs"],
        None,
        batch["mask"],
        batch["cu_seqlens"],
        torch.tensor(4.0, dtype=torch.float64, device=device),
        SPECS["kl and entropy"].pack(),
        *(1.0, 0.0, 0),
        *(False, rounded_weight_grad, True),
        *(True, True, True),
    )
    torch.library.opcheck(torch.ops.kernel_coder.linear_grpo_loss.default, arguments)


def test_a_second_derivative_is_refused_in_one_sentence(device: str) -> None:
    case = Case([5], device=device)
    leaves = case.leaves()
    (grad,) = torch.autograd.grad(case.loss(leaves, SPECS["clip"]).loss, leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiable once"):
        grad.square().sum().backward()


def test_compiles_without_a_graph_break(device: str) -> None:
    case = Case([4, 5], device=device)
    batch = on(device, case.batch)
    ids, advantages, spec = batch.pop("ids"), batch.pop("advantages"), SPECS["kl and entropy"]

    def loss(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out = linear_grpo_loss(2 * hidden, weight, ids, advantages, spec, bias=bias, denominator=5.0, **batch)
        return 3 * out.loss

    grads = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        leaves = case.leaves()
        function(*leaves).backward()
        grads.append([leaf.grad for leaf in leaves])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": torch.zeros(4)}, r"hidden must have shape \[tokens, hidden_size\] or \[sequences, .*; got \[4\]"),
        ({"weight": torch.zeros(7, 5)}, r"weight must have shape \[vocab, hidden_size\] = \[vocab, 4\]; got \[7, 5\]"),
        ({"ids": torch.tensor([0, 7, 1])}, r"ids\[1\] must be in \[0, 7\); got 7"),
        ({"advantages": torch.ones(2)}, "advantages must have one value a token or one a sequence"),
        ({"old_logprobs": torch.ones(2)}, "old_logprobs must have"),
        ({"spec": LossSpec(beta=0.1)}, "ref_logprobs"),
        ({"softcap": 0.0}, "softcap must be more than 0, or None; got 0"),
        ({"chunk_rows": -3}, "chunk_rows must be at least 1, or None; got -3"),
        (
            {"logits_dtype": torch.float16},
            r"logits_dtype must be torch.float32, the dtype of hidden .* got torch.float16",
        ),
        ({"weight_grad_dtype": torch.float64}, "weight_grad_dtype must be torch.float32, .* got torch.float64"),
    ],
)
def test_a_wrong_argument_is_named_in_one_sentence(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "hidden": torch.zeros(3, 4),
        "weight": torch.zeros(7, 4),
        "ids": torch.tensor([0, 1, 2]),
        "advantages": torch.ones(3),
        "spec": LossSpec.preset("dapo"),
        **changes,
    }
    with pytest.raises(ValueError, match=message):
        linear_grpo_loss(**arguments)


class OnDevice:
    """A bfloat16 head large enough for several chunks, every tensor on the device."""

    def __init__(
        self, device: str, lengths: list[int], dtype: torch.dtype = torch.bfloat16, vocab: int = 40_000
    ) -> None:
        self.case = Case(lengths, width=64, vocab=vocab, dtype=dtype, seed=7)
        self.hidden, self.weight = self.case.hidden.to(device), self.case.weight.to(device)
        self.batch = on(device, self.case.batch)
        self.device = device

    def run(self, spec: LossSpec, **changes: Any) -> tuple[LossOutput, Tensor, Tensor]:
        inputs = {**self.batch, **changes}
        hidden, weight = self.hidden.detach().requires_grad_(), self.weight.detach().requires_grad_()
        out = linear_grpo_loss(hidden, weight, inputs.pop("ids"), inputs.pop("advantages"), spec, **inputs)
        out.loss.backward()
        assert hidden.grad is not None
        assert weight.grad is not None
        return out, hidden.grad, weight.grad


def assert_same(x: tuple[LossOutput, Tensor, Tensor], y: tuple[LossOutput, Tensor, Tensor], slack: float = 0) -> None:
    """Loss, metrics and log-probs must have equal bits. So must gradients, unless ``slack`` allows a tolerance."""
    for a, b in zip(x[0], y[0], strict=True):
        assert torch.equal(a, b)
    for a, b in zip(x[1:], y[1:], strict=True):
        if slack:
            assert_close(a.cpu(), b.cpu().double(), slack=slack)
        else:
            assert torch.equal(a, b)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("chunk_rows", [None, 32])
def test_inputs_on_the_host_give_the_same_result(device: str, spec: LossSpec, chunk_rows: int | None) -> None:
    batch = OnDevice(device, [20, 1, 43, 16])
    batch.batch["advantages"][30:50] = 0.0
    wanted = batch.run(spec, chunk_rows=chunk_rows)
    on_host = {name: batch.batch[name].cpu() for name in ("mask", "advantages", "cu_seqlens")}
    some = [["mask"], ["advantages"], ["cu_seqlens"]] if device != "cpu" else []  # on the CPU all lie on the host
    for names in (*some, list(on_host)):
        chosen = {name: on_host[name] for name in names}
        assert_same(batch.run(spec, chunk_rows=chunk_rows, **chosen), wanted, slack=1)
        assert_same(batch.run(spec, chunk_rows=chunk_rows, allow_sync=False, **chosen), wanted, slack=1)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_allow_sync_false_gives_the_same_result(device: str, spec: LossSpec) -> None:
    batch = OnDevice(device, [20, 1, 43, 16])
    batch.hidden[~batch.batch["mask"]] = NAN  # without sync, the op multiplies masked rows, but as zeros
    for chunk_rows in (None, 32):
        waited = batch.run(spec, chunk_rows=chunk_rows)
        assert_same(batch.run(spec, chunk_rows=chunk_rows, allow_sync=False), waited, slack=1)


def test_every_run_gives_the_same_bits(device: str) -> None:
    batch = OnDevice(device, [20, 1, 43, 16])
    for spec in (SPECS["clip"], SPECS["kl and entropy"], SPECS["gspo"]):
        wanted = batch.run(spec, chunk_rows=32)
        for _ in range(2):
            assert_same(batch.run(spec, chunk_rows=32), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["kl and entropy", "cispo", "entropy alone"])  # no gate that rounding could flip
def test_logits_and_weight_gradient_in_the_dtype_of_the_head_are_close_to_float32(
    device: str, name: str, dtype: torch.dtype
) -> None:
    spec = SPECS[name]
    batch = OnDevice(device, [40, 60], dtype)
    exact = batch.run(spec, chunk_rows=32, logits_dtype=torch.float32)
    rounded = batch.run(spec, chunk_rows=32, logits_dtype=dtype, weight_grad_dtype=dtype)
    assert (rounded[0].logprobs - exact[0].logprobs).abs().max() < 2.0**-8 * 16
    for a, b in zip(rounded[1:], exact[1:], strict=True):
        assert ((a - b).norm() / b.norm()) < 0.1


def test_gradients_too_small_for_float16_survive(device: str) -> None:
    batch = OnDevice(device, [40], torch.float16)
    # A mean over a million tokens: the gradient of a logit is about 1e-9, and the smallest float16 is 6e-8.
    spec = LossSpec(surrogate="reinforce", reduction="token_mean")
    _, by_hidden, by_weight = batch.run(spec, denominator=1e6)
    scaled = batch.run(spec, denominator=1e2)
    assert_close(1e4 * by_hidden.double().cpu(), scaled[1].double().cpu(), dtype=torch.float16, slack=200)
    assert by_weight.isfinite().all()


@pytest.mark.parametrize("vocab", [40_001, 151_936])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_vocabularies_equal_the_reference(device: str, vocab: int, dtype: torch.dtype) -> None:
    case = Case([3, 5], width=16, vocab=vocab, dtype=dtype, device=device)
    for spec in (SPECS["clip"], SPECS["kl and entropy"]):
        case.check_against_reference(spec, temperature=0.8)


@pytest.mark.parametrize("per_sequence", [False, True])
@pytest.mark.parametrize("preset", LossSpec.presets())
def test_skip_zero_advantage_keeps_loss_and_gradients_and_skips_tokens_only_if_allowed(
    device: str, preset: str, per_sequence: bool
) -> None:
    batch = OnDevice(device, [20, 1, 30, 0, 16], torch.float32, vocab=500)
    advantages = batch.batch["advantages"][:5].clone() if per_sequence else batch.batch["advantages"]
    if per_sequence:
        advantages[2] = 0.0
    else:
        advantages[15:51] = 0.0
    spec = LossSpec.preset(preset)
    wanted, *wanted_grads = batch.run(spec, advantages=advantages)
    for place in {device, "cpu"}:
        host = {name: batch.batch[name].to(place) for name in ("mask", "cu_seqlens")}
        out, *grads = batch.run(spec, advantages=advantages.to(place), skip_zero_advantage=True, **host)
        assert_close(1 + out.loss.detach().cpu(), 1 + wanted.loss.detach().double().cpu())
        for grad, wanted_grad in zip(grads, wanted_grads, strict=True):
            assert_close(grad.cpu(), wanted_grad.double().cpu(), slack=5)
        tokens = LOSS_METRICS.index("tokens")
        may_skip = spec.beta == 0 and spec.ratio_penalty == 0
        left_out = out.logprobs[21:51]  # the third sequence: all its advantages are 0
        assert bool((left_out == 0).all()) == may_skip
        assert (out.metrics[tokens] < wanted.metrics[tokens]) == may_skip
        kept = out.logprobs[:15]
        assert torch.equal(kept, wanted.logprobs[:15])


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_allow_sync_false_does_not_wait_for_the_device_and_can_be_captured_in_a_graph(device: str) -> None:
    if device == "cpu":
        return
    batch = OnDevice(device, [20, 1, 43, 16])
    weight = batch.weight.detach().requires_grad_()
    hidden = batch.hidden.detach().requires_grad_()
    batch.batch["advantages"][30:50] = 0.0
    on_host = {name: batch.batch[name].cpu() for name in ("mask", "advantages", "cu_seqlens")}

    def call(spec: LossSpec, **changes: Any) -> tuple[Tensor, ...]:
        inputs = {**batch.batch, **changes}
        out = linear_grpo_loss(
            hidden, weight, inputs.pop("ids"), inputs.pop("advantages"), spec, chunk_rows=32, allow_sync=False, **inputs
        )
        return out.loss.detach(), *torch.autograd.grad(3 * out.loss, (hidden, weight))

    for spec in (SPECS["clip"], SPECS["gspo"], SPECS["kl and entropy"]):
        expected = call(spec)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            call(spec)
            call(spec, **on_host)
            call(spec, **on_host, skip_zero_advantage=True)
            call(spec, skip_zero_advantage=True)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call(spec)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = call(spec)
        for x in captured:
            x.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(expected, captured, strict=True))


def test_peak_memory_is_bounded_by_the_workspace_and_the_weight_gradient(device: str) -> None:
    if device == "cpu":
        return
    vocab, tokens, rows = 50_000, 2048, 256
    hidden = torch.randn(tokens, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(vocab, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
    ids = torch.randint(0, vocab, (tokens,), device=device)
    advantages = torch.randn(tokens, device=device)

    def call() -> LossOutput:
        return linear_grpo_loss(hidden, weight, ids, advantages, SPECS["clip"], chunk_rows=rows)

    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    workspace, sums = rows * vocab * 4, weight.numel() * 4
    assert peak < workspace + sums + (4 << 20)
    del out


def test_repeated_backward_passes_give_right_gradients_and_change_no_earlier_ones(device: str) -> None:
    batch = OnDevice(device, [20, 44])
    hidden, weight = batch.hidden.detach().requires_grad_(), batch.weight.detach().requires_grad_()
    inputs = dict(batch.batch)
    ids, advantages = inputs.pop("ids"), inputs.pop("advantages")
    out = linear_grpo_loss(
        *(hidden, weight, ids, advantages, SPECS["clip"]), weight_grad_dtype=torch.bfloat16, chunk_rows=32, **inputs
    )
    first = torch.autograd.grad(2 * out.loss, (hidden, weight), retain_graph=True)
    kept = [x.clone() for x in first]
    second = torch.autograd.grad(2 * out.loss, (hidden, weight), retain_graph=True)
    (4 * out.loss).backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    for a, b, c, grad in zip(first, second, kept, (hidden.grad, weight.grad), strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, c)
        assert torch.equal(grad, 2 * c)
