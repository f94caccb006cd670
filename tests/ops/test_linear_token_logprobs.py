from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder import reference
from kernel_coder.ops import linear_token_logprobs, token_logprobs
from loss_batches import CHANCE, computed_in
from memory import allocated_bytes
from tolerances import assert_close
from torch import Tensor

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
NAN = float("nan")
HEADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias": True},
    "scale": {"logit_scale": 0.25},
    "softcap": {"softcap": 4.0},
    "all": {"bias": True, "logit_scale": 1.5, "softcap": 6.0},
}


def random_head(
    tokens: int, width: int, vocab: int, dtype: torch.dtype = torch.float32, seed: int = 0, device: str = "cpu"
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """hidden, weight, bias and ids; logits have a deviation of about 2."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    hidden, weight = normal(tokens, width), 2 * normal(vocab, width) / width**0.5
    ids = torch.randint(0, vocab, (tokens,), generator=rng)
    parts = (hidden.to(dtype), weight.to(dtype), normal(vocab).to(dtype), ids)
    return tuple(x.to(device) for x in parts)  # type: ignore[return-value]


def with_bias(options: dict[str, Any], bias: Tensor) -> dict[str, Any]:
    return {**options, "bias": bias if options.get("bias") else None}


def gradients(op: Any, leaves: list[Tensor | None], ids: Tensor, upstream: Tensor, **options: Any) -> list[Any]:
    """Log-probs, entropy, and the gradients of hidden, weight and bias, on the CPU."""
    leaves = [None if leaf is None else leaf.detach().requires_grad_() for leaf in leaves]
    logprobs, entropy = op(leaves[0], leaves[1], ids, bias=leaves[2], entropy=True, **options)
    present = [leaf for leaf in leaves if leaf is not None]
    grads = torch.autograd.grad((logprobs, entropy), present, tuple(upstream.to(logprobs)))
    return [x.detach().cpu() for x in (logprobs, entropy, *grads)]


def check_against_reference(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    chunk_rows: int | None = None,
    slack: float = 1.0,
    **options: Any,
) -> None:
    dtype = hidden.dtype
    upstream = torch.randn(2, hidden.shape[0], generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    upstream = upstream.to(computed_in(dtype))
    results = gradients(linear_token_logprobs, [hidden, weight, bias], ids, upstream, chunk_rows=chunk_rows, **options)
    doubles = [None if x is None else x.double().cpu() for x in (hidden, weight, bias)]
    options = {name: x.cpu() if isinstance(x, Tensor) else x for name, x in options.items()}
    wanted = gradients(reference.linear_token_logprobs, doubles, ids.cpu(), upstream, **options)
    assert results[0].dtype == results[1].dtype == computed_in(dtype)
    for result, reference_result in zip(results, wanted, strict=True):
        # A logit is a float32 sum over the hidden size. Its rounding error carries over to the log-prob.
        assert_close(
            result, reference_result, slack=slack * (2.0 if result.dtype in (torch.float32, torch.float64) else 1.0)
        )
    assert [x.dtype for x in results[2:]] == [dtype] * len(results[2:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_values_and_gradients_equal_the_reference(device: str, head: dict[str, Any], dtype: torch.dtype) -> None:
    hidden, weight, bias, ids = random_head(37, 48, 5000, dtype, device=device)
    mask = torch.arange(37, device=device) % 3 != 1
    options = with_bias(head, bias)
    bias_or_none = options.pop("bias")
    check_against_reference(hidden, weight, bias_or_none, torch.where(mask, ids, -100), mask=mask, **options)


@settings(max_examples=80, deadline=None)
@given(
    tokens=st.sampled_from([0, 1, 7, 16, 17, 40]),
    width=st.integers(1, 40),
    vocab=st.sampled_from([1, 2, 63, 300]),
    chunk_rows=st.sampled_from([None, 1, 5, 16]),
    share=st.sampled_from([-1.0, 0.5, 2.0]),
    seed=st.integers(0, 2**30),
)
def test_any_shape_mask_and_chunk_equals_the_reference(
    device: str, tokens: int, width: int, vocab: int, chunk_rows: int | None, share: float, seed: int
) -> None:
    hidden, weight, bias, ids = random_head(tokens, width, vocab, torch.float64, seed, device=device)
    mask = (torch.rand(tokens, generator=torch.Generator().manual_seed(seed)) < share).to(device)
    check_against_reference(hidden, weight, bias, ids, chunk_rows, CHANCE, mask=mask, temperature=0.7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_a_row_depend_only_on_that_row(device: str, dtype: torch.dtype) -> None:
    hidden, weight, _, ids = random_head(70, 32, 4500, dtype, device=device)
    whole = linear_token_logprobs(hidden.requires_grad_(), weight, ids, entropy=True)
    assert whole.logprobs.requires_grad
    with torch.no_grad():
        assert torch.equal(linear_token_logprobs(hidden, weight, ids).logprobs, whole.logprobs)
        for rows in (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 50, 69):
            assert torch.equal(linear_token_logprobs(hidden[:rows], weight, ids[:rows]).logprobs, whole.logprobs[:rows])
        for chunk_rows in (3, 7, 16, 33, 64, 1000):
            chunked = linear_token_logprobs(hidden, weight, ids, entropy=True, chunk_rows=chunk_rows)
            assert torch.equal(chunked.logprobs, whole.logprobs)
            assert torch.equal(chunked.entropy, whole.entropy)  # type: ignore[arg-type]
        order = torch.randperm(70, device=device)
        assert torch.equal(linear_token_logprobs(hidden[order], weight, ids[order]).logprobs, whole.logprobs[order])
        mask = torch.rand(70, device=device) < 0.5
        masked = linear_token_logprobs(hidden, weight, ids, mask=mask).logprobs
        assert torch.equal(masked, whole.logprobs.masked_fill(~mask, 0.0))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        assert torch.equal(linear_token_logprobs(hidden, weight, ids).logprobs, whole.logprobs)
        torch.set_num_threads(threads)


def test_float32_head_equals_token_logprobs_of_its_logits_bit_for_bit(device: str) -> None:
    hidden, weight, _, ids = random_head(32, 64, 3000, device=device)
    wanted = token_logprobs(hidden @ weight.T, ids, entropy=True)
    out = linear_token_logprobs(hidden, weight, ids, entropy=True)
    assert torch.equal(out.logprobs, wanted.logprobs)
    assert torch.equal(out.entropy, wanted.entropy)  # type: ignore[arg-type]


def test_logits_of_a_16_bit_head_are_not_rounded_to_16_bits(device: str) -> None:
    hidden, weight, _, ids = random_head(16, 64, 3000, torch.bfloat16, device=device)
    wanted = reference.linear_token_logprobs(hidden.cpu(), weight.cpu(), ids.cpu())[0]
    assert_close(linear_token_logprobs(hidden, weight, ids).logprobs.cpu(), wanted)
    rounded = token_logprobs(hidden @ weight.T, ids).logprobs.cpu()
    with pytest.raises(AssertionError, match="relative error"):
        assert_close(rounded, wanted, slack=100)


def test_the_gradient_of_the_weight_is_summed_in_float32(device: str) -> None:
    # 512 tokens in chunks of 16: summed in bfloat16, the small later parts would vanish beside the sum so far.
    hidden, weight, _, ids = random_head(512, 8, 64, torch.bfloat16, device=device)
    check_against_reference(hidden, weight, None, ids, chunk_rows=16)
    ones = torch.ones(2, 512)
    doubles = [hidden.double().cpu(), weight.double().cpu(), None]
    wanted = gradients(reference.linear_token_logprobs, doubles, ids.cpu(), ones)[3]
    rounded = torch.zeros_like(weight, device="cpu")
    for chunk, chunk_ids in zip(hidden.split(16), ids.split(16), strict=True):
        rounded += gradients(linear_token_logprobs, [chunk, weight, None], chunk_ids, ones[:, :16])[3]
    with pytest.raises(AssertionError, match="relative error"):
        assert_close(rounded, wanted)


def test_nan_in_masked_rows_reaches_no_result_and_no_gradient(device: str) -> None:
    hidden, weight, bias, ids = random_head(20, 16, 300, device=device)
    mask = torch.arange(20, device=device) % 2 == 0
    poisoned = hidden.masked_fill(~mask[:, None], NAN)
    upstream = torch.ones(2, 20)
    results = gradients(linear_token_logprobs, [poisoned, weight, bias], ids, upstream, mask=mask)
    assert all(bool(x.isfinite().all()) for x in results)
    assert bool((results[2][~mask.cpu()] == 0).all())


def test_frozen_head_gets_no_gradient_and_changes_no_other_gradient(device: str) -> None:
    hidden, weight, _, ids = random_head(20, 16, 300, device=device)
    both = gradients(linear_token_logprobs, [hidden, weight, None], ids, torch.ones(2, 20))
    leaf = hidden.clone().requires_grad_()
    out = linear_token_logprobs(leaf, weight, ids, entropy=True)
    torch.autograd.backward(out, (torch.ones(20, device=device), torch.ones(20, device=device)))
    assert weight.grad is None
    assert leaf.grad is not None
    assert torch.equal(leaf.grad.cpu(), both[2])


def test_inputs_are_left_alone(device: str) -> None:
    hidden, weight, bias, ids = random_head(20, 16, 300, device=device)
    before = [x.clone() for x in (hidden, weight, bias, ids)]
    gradients(linear_token_logprobs, [hidden, weight, bias], ids, torch.ones(2, 20), softcap=3.0, logit_scale=2.0)
    assert all(torch.equal(a, b) for a, b in zip((hidden, weight, bias, ids), before, strict=True))


def test_strided_inputs_give_the_same_bits(device: str) -> None:
    hidden, weight, _, ids = random_head(20, 16, 300, device=device)
    wanted = linear_token_logprobs(hidden, weight, ids).logprobs
    wide = torch.nn.functional.pad(hidden, (2, 1))[:, 2:-1]
    assert torch.equal(linear_token_logprobs(wide, weight.T.contiguous().T, ids).logprobs, wanted)


def test_memory_is_bounded_by_the_workspace() -> None:
    hidden, weight, _, ids = random_head(600, 8, 20_000)
    row = 20_000 * 4

    def allocated(chunk_rows: int, tokens: int) -> int:
        return allocated_bytes(
            lambda: linear_token_logprobs(hidden[:tokens], weight, ids[:tokens], chunk_rows=chunk_rows)
        )

    assert allocated(32, 600) < 33 * row
    assert allocated(32, 600) < allocated(32, 64) + row


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_gradcheck(device: str, head: dict[str, Any]) -> None:
    hidden, weight, bias, ids = random_head(5, 3, 7, torch.float64, device=device)
    mask = torch.tensor([True, True, False, True, True], device=device)
    options = with_bias(head, bias)
    has_bias = options.pop("bias") is not None

    def outputs(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        out = linear_token_logprobs(
            *(hidden, weight, ids),
            bias=bias if has_bias else None,
            temperature=0.8,
            mask=mask,
            entropy=True,
            chunk_rows=2,
            **options,
        )
        assert out.entropy is not None
        return out.logprobs, out.entropy

    leaves = [x.requires_grad_() for x in (hidden, weight, bias)]
    if not has_bias:
        bias.requires_grad_(False)
    assert torch.autograd.gradcheck(outputs, leaves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(device: str, dtype: torch.dtype) -> None:
    hidden, weight, bias, ids = random_head(5, 4, 11, dtype, device=device)
    leaves = [x.requires_grad_() for x in (hidden, weight, bias)]
    mask = torch.tensor([True, False, True, True, True], device=device)
    options = (0.5, 3.0, 0, False, True)
    op, backward = (
        torch.ops.kernel_coder.linear_token_logprobs.default,
        torch.ops.kernel_coder.linear_token_logprobs_backward.default,
    )
    arguments = (*leaves, ids, torch.ones((), device=device), mask)
    torch.library.opcheck(op, (*arguments, *options))
    detached = tuple(x.detach() for x in arguments)
    saved = op(*detached, *options)
    torch.library.opcheck(
        backward, (torch.ones(5, device=device), None, *detached, *saved, *options, True, False, True)
    )


def test_a_second_derivative_is_refused_in_one_sentence(device: str) -> None:
    hidden, weight, _, ids = random_head(5, 4, 11, device=device)
    hidden.requires_grad_()
    out = linear_token_logprobs(hidden, weight, ids).logprobs.sum()
    (grad,) = torch.autograd.grad(out, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="linear_token_logprobs is differentiable once"):
        grad.square().sum().backward()


def test_compiles_without_a_graph_break(device: str) -> None:
    hidden, weight, bias, ids = random_head(9, 8, 70, device=device)

    def loss(hidden: Tensor, weight: Tensor) -> Tensor:
        out = linear_token_logprobs(hidden, weight, ids, bias=bias, softcap=5.0, entropy=True)
        assert out.entropy is not None
        return (out.logprobs * out.entropy).sum()

    grads = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        leaves = [x.clone().requires_grad_() for x in (hidden, weight)]
        function(*leaves).backward()
        grads.append([leaf.grad for leaf in leaves])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": torch.zeros(4)}, r"hidden must have shape \[tokens, hidden_size\] or \[sequences, .*; got \[4\]"),
        ({"weight": torch.zeros(7, 5)}, r"weight must have shape \[vocab, hidden_size\] = \[vocab, 4\]; got \[7, 5\]"),
        ({"weight": torch.zeros(7, 4, dtype=torch.bfloat16)}, "weight must be float32; got bfloat16"),
        ({"bias": torch.zeros(6)}, "bias must have"),
        ({"ids": torch.tensor([0, 7, 1])}, r"ids\[1\] must be in \[0, 7\); got 7"),
        ({"softcap": 0.0}, "softcap must be more than 0, or None; got 0"),
        ({"softcap": -1.0}, "softcap must be more than 0, or None; got -1"),
        ({"chunk_rows": 0}, "chunk_rows must be at least 1, or None; got 0"),
        ({"temperature": -1.0}, "temperature must be finite and more than 0; got -1"),
    ],
)
def test_a_wrong_argument_is_named_in_one_sentence(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "hidden": torch.zeros(3, 4),
        "weight": torch.zeros(7, 4),
        "ids": torch.tensor([0, 1, 2]),
        **changes,
    }
    with pytest.raises(ValueError, match=message):
        linear_token_logprobs(**arguments)
