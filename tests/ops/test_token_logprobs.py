from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from anywhere import anywhere, placed, there
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder import _C, ops, reference
from memory import allocated_bytes
from tolerances import TOLERANCE, assert_close, relative_error
from torch import Tensor

pytestmark = pytest.mark.usefixtures("ops_run_there")
token_logprobs = anywhere(ops.token_logprobs)
NAN, INF = float("nan"), float("inf")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
ISAS = ["generic", "avx2", "avx512"]


def random_rows(tokens: int, vocab: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    logits = (3.0 * torch.randn(tokens, vocab, generator=rng, dtype=torch.float64)).to(dtype)
    return logits, torch.randint(0, vocab, (tokens,), generator=rng)


def computed_in(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def run(logits: Tensor, ids: Tensor, by_logprobs: Tensor, by_entropy: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """Log-probs, entropy and the gradient of the logits."""
    leaf = logits.detach().requires_grad_()
    out = token_logprobs(leaf, ids, entropy=True, **options)
    assert out.entropy is not None
    assert out.logprobs.dtype == out.entropy.dtype == computed_in(logits.dtype)
    (grad,) = torch.autograd.grad((out.logprobs, out.entropy), leaf, (by_logprobs, by_entropy))
    return out.logprobs.detach(), out.entropy.detach(), grad


def run_reference(logits: Tensor, ids: Tensor, by_logprobs: Tensor, by_entropy: Tensor, **options: Any) -> Any:
    leaf = logits.detach().double().requires_grad_()
    logprobs, entropy = reference.token_logprobs(leaf, ids, entropy=True, **options)
    (grad,) = torch.autograd.grad((logprobs, entropy), leaf, (by_logprobs.double(), by_entropy.double()))
    return logprobs.detach(), entropy.detach(), grad


def split_gradient(grad: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient at the sampled ids and at all other ids. Large values of one would hide errors of the other."""
    chosen = torch.zeros_like(grad, dtype=torch.bool).scatter_(1, ids[:, None], True)
    return grad[chosen], grad.masked_fill(chosen, 0.0)


def check_against_reference(logits: Tensor, ids: Tensor, *, seed: int = 1, **options: Any) -> None:
    tokens, dtype = logits.shape[0], computed_in(logits.dtype)
    rng = torch.Generator().manual_seed(seed)
    upstream = torch.randn(2, tokens, generator=rng, dtype=dtype)
    logprobs, entropy, grad = run(logits, ids, *upstream, **options)
    wanted_logprobs, wanted_entropy, wanted_grad = run_reference(logits, ids, *upstream, **options)
    assert_close(logprobs, wanted_logprobs)
    assert_close(entropy, wanted_entropy)
    assert grad.dtype == logits.dtype
    safe = ids.clamp(0, logits.shape[1] - 1)
    for part, wanted in zip(split_gradient(grad, safe), split_gradient(wanted_grad, safe), strict=True):
        assert_close(part, wanted)


def check_a_few_rows(logits: Tensor, ids: Tensor, *, seed: int, least: float = 0.1, **options: Any) -> None:
    """The same for random rows. Errors are measured against the terms of a sum, since it may be near 0 by chance."""
    dtype = computed_in(logits.dtype)
    by_logprobs, by_entropy = torch.randn(2, ids.shape[0], generator=torch.Generator().manual_seed(seed), dtype=dtype)
    logprobs, entropy, grad = run(logits, ids, by_logprobs, by_entropy, **options)
    wanted_logprobs, wanted_entropy, wanted_grad = run_reference(logits, ids, by_logprobs, by_entropy, **options)
    assert_close(logprobs, wanted_logprobs)
    assert bool(((entropy - wanted_entropy).abs() <= TOLERANCE[dtype] * wanted_entropy.clamp(min=least)).all())

    ids = ids.clamp(min=0)
    temperature = torch.as_tensor(options.get("temperature", 1.0), dtype=torch.float64).view(-1, 1)
    log_p = (logits.double() / temperature).log_softmax(1)
    p = log_p.exp()
    one_hot = torch.zeros_like(p).scatter_(1, ids[:, None], 1.0)
    terms = by_logprobs[:, None].abs() * (one_hot - p).abs()
    terms += by_entropy[:, None].abs() * p * (log_p.abs() + wanted_entropy[:, None])
    terms /= temperature
    for part, wanted, scale in zip(*(split_gradient(x, ids) for x in (grad, wanted_grad, terms)), strict=True):
        assert float((part.double() - wanted).norm()) <= TOLERANCE[logits.dtype] * float(scale.norm())


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Limits the op to each instruction set. A machine that lacks one uses its own widest set instead."""
    _C.row_isa_limit(request.param)
    yield request.param
    _C.row_isa_limit("avx512")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 2, 7, 15, 17, 1000, 1024, 1025, 49153, 151936])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_equal_the_reference(vocab: int, dtype: torch.dtype, temperature: float) -> None:
    logits, ids = random_rows(3, vocab, dtype)
    check_against_reference(logits, ids, temperature=temperature)


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_instruction_set_equals_the_reference(isa: str, dtype: torch.dtype) -> None:
    for vocab in (1, 5, 31, 33, 1023, 5000):
        logits, ids = random_rows(4, vocab, dtype, seed=vocab)
        check_against_reference(logits, ids, temperature=1.3)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_shape_mask_layout_and_temperature_equals_the_reference(device: str, data: st.DataObject) -> None:
    tokens, vocab = data.draw(st.sampled_from([0, 1, 2, 7, 33])), data.draw(st.integers(1, 300))
    dtype, seed = data.draw(st.sampled_from(DTYPES)), data.draw(st.integers(0, 2**30))
    rng = torch.Generator().manual_seed(seed)
    logits, ids = random_rows(tokens, vocab + 3, dtype, seed)
    match data.draw(st.sampled_from(["dense", "columns sliced", "rows skipped", "transposed"])):
        case "dense":
            logits = logits[:, :vocab].contiguous()
        case "columns sliced":
            logits = logits[:, 1 : vocab + 1]
        case "rows skipped":
            logits = logits.repeat_interleave(2, 0)[::2, 2 : vocab + 2]
        case "transposed":
            logits = logits[:, :vocab].T.contiguous().T
    ids = ids % vocab
    mask = data.draw(st.sampled_from([None, "all", "none", "some"]))
    options: dict[str, Any] = {}
    if mask is not None:
        options["mask"] = torch.rand(tokens, generator=rng) < {"all": 2.0, "none": -1.0, "some": 0.6}[mask]
        ids = torch.where(options["mask"], ids, -100)
    if data.draw(st.booleans()):
        options["temperature"] = 0.3 + 2 * torch.rand(tokens, generator=rng)
    # CUDA sums the other tokens in float32. A small entropy depends on the last digits of that sum, so CUDA gets slack.
    check_a_few_rows(logits, ids, seed=seed, least=0.1 if device == "cpu" else 0.4, **options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_far_from_zero_equal_the_reference(dtype: torch.dtype) -> None:
    logits, ids = random_rows(3, 1000, dtype)
    check_against_reference(torch.full_like(logits, -200.0), ids)
    check_against_reference((logits.float() - 200).to(dtype), ids)
    check_against_reference((logits.float() + 200).to(dtype), ids)


def test_equal_logits_give_minus_log_vocab() -> None:
    # A kernel that counts columns past the end fails: 640 more than 151,936 columns change the result by 4e-3 nats.
    for vocab in (1000, 49153, 151936, 152064):
        out = token_logprobs(torch.full((2, vocab), 3.25), torch.tensor([0, vocab - 1]), entropy=True)
        assert out.entropy is not None
        wanted = torch.full((2,), math.log(vocab), dtype=torch.float64)
        assert_close(-out.logprobs, wanted)
        assert_close(out.entropy, wanted)


@pytest.mark.parametrize("target", [0, 500, 999])
def test_row_with_one_logit_of_80_equals_the_reference(target: int) -> None:
    logits = torch.zeros(1, 1000)
    logits[0, target] = 80.0
    check_against_reference(logits, torch.tensor([target]))
    # Another sampled token of the same row. The entropy is about 1e-30, which a float64 log-sum-exp cannot give.
    ids, ones, none = torch.tensor([(target + 1) % 1000]), torch.ones(1), torch.zeros(1)
    logprobs, entropy, grad = run(logits, ids, ones, none)
    wanted_logprobs, _, wanted_grad = run_reference(logits, ids, ones, none)
    assert_close(logprobs, wanted_logprobs)
    assert_close(grad, wanted_grad)
    assert 0 <= float(entropy) < 2e-30


def worst_relative_error(x: Tensor, wanted: Tensor) -> float:
    return float(((x.double() - wanted).abs() / wanted.abs()).max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_confident_tokens_keep_every_digit(dtype: torch.dtype) -> None:
    # Compare each row by itself: from the first row to the last, the values fall by fifteen orders of magnitude.
    margins = torch.arange(5, 41, dtype=dtype)
    rows = margins.numel()
    logits = torch.full((rows, 300), -2.5, dtype=dtype)
    logits[:, 7] = margins - 2.5
    ids, ones, none = torch.full((rows,), 7), torch.ones(rows, dtype=dtype), torch.zeros(rows, dtype=dtype)
    logprobs, entropy, grad = run(logits, ids, ones, none)
    wanted_logprobs, wanted_entropy, wanted_grad = run_reference(logits, ids, ones, none)
    assert worst_relative_error(logprobs, wanted_logprobs) < TOLERANCE[dtype]
    assert worst_relative_error(entropy, wanted_entropy) < TOLERANCE[dtype]
    # The closed form gives the gradient 1 - p of the token. Autograd subtracts p from 1 and loses digits.
    rest = 299 * torch.exp(-margins.double())
    assert worst_relative_error(grad[:, 7], rest / (1 + rest)) < TOLERANCE[dtype]
    assert worst_relative_error(grad[:, 8], wanted_grad[:, 8]) < TOLERANCE[dtype]

    by_entropy = run(logits, ids, none, ones)[2]
    wanted = -(wanted_logprobs.exp() * (wanted_logprobs + wanted_entropy))
    assert worst_relative_error(by_entropy[:, 7], wanted) < TOLERANCE[dtype]


def test_log_softmax_would_fail_these_tests() -> None:
    logits = torch.zeros(1, 300)
    logits[0, 7] = 25.0
    ids = torch.tensor([7])
    wanted = reference.token_logprobs(logits, ids)[0]
    assert relative_error(token_logprobs(logits, ids).logprobs, wanted) < TOLERANCE[torch.float32]
    assert relative_error(logits.log_softmax(1)[:, 7], wanted) > 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_error_of_twice_the_tolerance_is_noticed(dtype: torch.dtype) -> None:
    logits, ids = random_rows(4, 151936, dtype)
    ones = torch.ones(4)
    _, _, grad = run(logits, ids, ones, ones)
    own, others = split_gradient(run_reference(logits, ids, ones, ones)[2], ids)
    for wrong, wanted in (
        (split_gradient(grad, ids)[0] * (1 + 2 * TOLERANCE[dtype]), own),
        (split_gradient(grad, ids)[1] * (1 + 2 * TOLERANCE[dtype]), others),
        (torch.zeros_like(others), others),
    ):
        with pytest.raises(AssertionError, match="relative error"):
            assert_close(wrong, wanted, dtype=dtype)


def test_banned_tokens_equal_the_reference_and_get_no_gradient() -> None:
    logits, ids = random_rows(5, 1100)
    logits[0, 1:] = -INF  # one token left, and it is the sampled one
    ids[0] = 0
    logits[1, ::2] = -INF  # a banned half
    ids[1] = 3
    logits[2, 50:] = -INF  # whole blocks of a row banned
    ids[2] = 7
    logits[3, :1050] = -INF
    ids[3] = 1060
    ids[4] = 4
    logits[4, 4] = -INF  # the sampled token itself banned
    ones = torch.ones(5)
    logprobs, entropy, grad = run(logits, ids, ones, ones)
    assert logprobs[0] == entropy[0] == 0
    assert logprobs[4] == -INF
    kept = slice(0, 4)
    filled = logits.masked_fill(logits == -INF, -1e4)  # the reference's own gradient has 0 * inf
    wanted = run_reference(filled[kept], ids[kept], ones[kept], ones[kept])
    for x, reference_x in zip((logprobs[kept], entropy[kept], grad[kept]), wanted, strict=True):
        assert_close(x, reference_x)
    assert bool(grad.isfinite().all())
    assert bool((grad[:4][logits[:4] == -INF] == 0).all())
    p = logits[4].double().softmax(0)
    assert_close(entropy[4:], -torch.xlogy(p, p).sum()[None])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("column", [0, 5, 1070])
@pytest.mark.parametrize("poison", [NAN, INF])
def test_a_poisoned_row_is_nan_and_its_neighbours_are_not(dtype: torch.dtype, column: int, poison: float) -> None:
    logits, ids = random_rows(3, 1100, dtype)
    ids[1] = 5
    clean = run(logits, ids, *torch.ones(2, 3, dtype=computed_in(dtype)))
    logits[1, column] = poison
    poisoned = run(logits, ids, *torch.ones(2, 3, dtype=computed_in(dtype)))
    for before, after in zip(clean, poisoned, strict=True):
        assert bool(after[1].isnan().all())
        assert torch.equal(before[[0, 2]], after[[0, 2]])


def test_a_row_of_minus_infinity_is_nan() -> None:
    for vocab in (1, 3, 1100):
        assert token_logprobs(torch.full((1, vocab), -INF), torch.tensor([0])).logprobs.isnan().all()


def test_masked_rows_are_not_read_and_give_zero() -> None:
    logits, ids = random_rows(6, 500)
    mask = torch.tensor([True, False, True, False, False, True])
    ids[~mask] = torch.tensor([-100, 500, 10**12])
    logits[~mask] = NAN
    logprobs, entropy, grad = run(logits, ids, *torch.ones(2, 6), mask=mask)
    for x in (logprobs, entropy, grad):
        assert bool((x[~mask] == 0).all())
    alone = run(logits[mask], ids[mask], *torch.ones(2, 3))
    for x, wanted in zip((logprobs, entropy, grad), alone, strict=True):
        assert torch.equal(x[mask], wanted)


def test_backward_does_not_read_rows_without_gradient(device: str) -> None:
    logits, ids = random_rows(3, 500)
    leaf = placed(logits, device).requires_grad_()
    out = ops.token_logprobs(leaf, ids.to(device))
    with torch.no_grad():
        leaf.data[1] = NAN  # shows in the gradient if the backward pass reads the row
    out.logprobs.backward(torch.tensor([1.0, 0.0, 2.0], device=device))
    assert leaf.grad is not None
    assert bool((leaf.grad[1] == 0).all())
    assert bool(leaf.grad.isfinite().all())


def check_rows_alone(logits: Tensor, ids: Tensor, before: int, after: int) -> None:
    whole = token_logprobs(logits.requires_grad_(), ids, entropy=True)
    rows = range(len(ids))
    with torch.no_grad():
        scored = token_logprobs(logits, ids, entropy=True)
        order = torch.randperm(len(ids))
        shuffled = token_logprobs(logits[order], ids[order], entropy=True)
        wide = torch.nn.functional.pad(logits, (before, after))
        sliced = token_logprobs(wide[:, before:-after], ids, entropy=True)
        alone = [token_logprobs(logits[i : i + 1], ids[i : i + 1], entropy=True) for i in rows]
    for field in range(2):
        wanted = whole[field]
        assert torch.equal(wanted, scored[field])
        assert torch.equal(wanted[order], shuffled[field])
        assert torch.equal(wanted, sliced[field])
        assert torch.equal(wanted, torch.cat([out[field] for out in alone]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bits_of_a_row_depend_only_on_that_row(device: str, dtype: torch.dtype) -> None:
    if device == "cpu":
        check_rows_alone(*random_rows(40, 3001, dtype), before=1, after=2)
    else:  # On CUDA the bits also depend on the alignment: here each row begins at a multiple of 16 bytes.
        for vocab in (3000, 40000):
            check_rows_alone(*random_rows(40, vocab, dtype), before=8, after=16)


@pytest.mark.cpu
def test_bits_of_a_row_depend_only_on_that_row_for_every_instruction_set_and_thread_count(isa: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        logits, ids = random_rows(40, 3001, dtype)
        check_rows_alone(logits, ids, before=1, after=2)
        with torch.no_grad():
            several = token_logprobs(logits, ids, entropy=True)
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            single = token_logprobs(logits, ids, entropy=True)
            torch.set_num_threads(threads)
        assert torch.equal(several.logprobs, single.logprobs)
        assert torch.equal(several.entropy, single.entropy)


def test_two_runs_give_the_same_gradient_bits_and_inputs_are_left_alone() -> None:
    logits, ids = random_rows(5, 2000)
    temperature, mask = torch.rand(5) + 0.5, torch.tensor([True, True, False, True, True])
    inputs = [logits, ids, temperature, mask]
    before = [x.clone() for x in inputs]
    upstream = torch.randn(2, 5)
    first = run(logits, ids, *upstream, temperature=temperature, mask=mask)
    second = run(logits, ids, *upstream, temperature=temperature, mask=mask)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


def test_memory_does_not_grow_with_the_vocabulary(device: str) -> None:
    logits, ids = (x.to(device) for x in random_rows(16, 60_000))
    ops.token_logprobs(logits, ids)
    assert allocated_bytes(lambda: ops.token_logprobs(logits, ids, entropy=True), device) < 4096


@pytest.mark.parametrize("temperature", [0.7, torch.tensor([0.5, 1.0, 2.0, 1.5])], ids=["number", "per token"])
def test_gradcheck(temperature: float | Tensor) -> None:
    logits, ids = random_rows(4, 9, torch.float64)
    mask = torch.tensor([True, True, False, True])

    def outputs(x: Tensor) -> tuple[Tensor, Tensor]:
        out = token_logprobs(x, ids, temperature=temperature, mask=mask, entropy=True)
        assert out.entropy is not None
        return out.logprobs, out.entropy

    assert torch.autograd.gradcheck(outputs, logits.requires_grad_())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("masked", [False, True])
def test_opcheck(dtype: torch.dtype, masked: bool) -> None:
    logits, ids = random_rows(4, 11, dtype)
    logits, ids, temperature = there(logits), there(ids), there(torch.ones((), dtype=computed_in(dtype)))
    mask = there(torch.tensor([True, False, True, True])) if masked else None
    torch.library.opcheck(
        torch.ops.kernel_coder.token_logprobs.default, (logits.requires_grad_(), ids, temperature, mask)
    )
    logits = logits.detach()
    saved = torch.ops.kernel_coder.token_logprobs(logits, ids, temperature, mask)
    arguments = (torch.ones_like(saved[0]), None, logits, ids, temperature, mask, *saved)
    torch.library.opcheck(torch.ops.kernel_coder.token_logprobs_backward.default, arguments)


def test_gradients_of_several_uses_add_up() -> None:
    logits, ids = random_rows(3, 50)
    leaf = logits.clone().requires_grad_()
    out = token_logprobs(leaf, ids, entropy=True)
    assert out.entropy is not None
    (out.logprobs.sum() + 2 * out.logprobs.sum() + 0.5 * out.entropy.sum() + leaf.sum()).backward()
    assert leaf.grad is not None
    _, _, wanted = run_reference(logits, ids, torch.full((3,), 3.0), torch.full((3,), 0.5))
    assert_close(leaf.grad, wanted + 1)


def test_a_second_derivative_is_refused_in_one_sentence() -> None:
    logits, ids = random_rows(3, 50)
    leaf = logits.requires_grad_()
    (grad,) = torch.autograd.grad(token_logprobs(leaf, ids).logprobs.sum(), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="token_logprobs is differentiable once"):
        grad.square().sum().backward()


def test_compiles_without_a_graph_break() -> None:
    logits, ids = random_rows(5, 70)

    def loss(x: Tensor) -> Tensor:
        out = token_logprobs(2 * x, ids, temperature=0.8, entropy=True)
        assert out.entropy is not None
        return (out.logprobs * out.entropy).sum()

    grads = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        leaf = logits.clone().requires_grad_()
        function(leaf).backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads)


def test_entropy_is_given_when_asked_for() -> None:
    logits, ids = random_rows(2, 5)
    assert token_logprobs(logits, ids).entropy is None
    assert token_logprobs(logits, ids, entropy=True).entropy is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": torch.tensor([0, 1])}, r"ids must have .*tokens.*3.*; got"),
        ({"ids": torch.tensor([0, 1, 2], dtype=torch.int32)}, "ids must be int64; got int32"),
        (
            {"logits": torch.zeros(7)},
            r"logits must have shape \[tokens, vocab\] or \[sequences, length, vocab\]; got \[7\]",
        ),
        ({"logits": torch.zeros(3, 7, dtype=torch.int64)}, "logits must be float32, float64, bfloat16 or float16"),
        ({"temperature": torch.ones(2)}, r"temperature must be a number or have shape \[tokens\] = \[3\]; got \[2\]"),
        ({"mask": torch.ones(3)}, "mask must be bool; got float32"),
        ({"mask": torch.ones(2, dtype=torch.bool)}, r"mask must have .*tokens.*3.*; got"),
    ],
)
def test_a_wrong_argument_is_named_in_one_sentence(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"logits": torch.zeros(3, 7), "ids": torch.tensor([0, 1, 2]), **changes}
    with pytest.raises(ValueError, match=message):
        token_logprobs(arguments.pop("logits"), arguments.pop("ids"), **arguments)


@pytest.mark.cpu  # only the CPU checks values
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": torch.tensor([0, 7, 1])}, r"ids\[1\] must be in \[0, 7\); got 7"),
        ({"ids": torch.tensor([0, 1, -100])}, r"ids\[2\] must be in \[0, 7\); got -100"),
        ({"temperature": 0.0}, "temperature must be finite and more than 0; got 0"),
        ({"temperature": NAN}, "temperature must be finite and more than 0; got nan"),
        ({"temperature": float("inf")}, "temperature must be finite and more than 0; got inf"),
        ({"temperature": torch.tensor([1.0, -1.0, 1.0])}, "temperature must be finite and more than 0; got -1"),
    ],
)
def test_a_wrong_value_is_named_in_one_sentence(changes: dict[str, Any], message: str) -> None:
    test_a_wrong_argument_is_named_in_one_sentence(changes, message)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1000, 1001, 40000])
def test_out_of_range_id_gives_nan_on_cuda_for_its_own_row_only(device: str, dtype: torch.dtype, vocab: int) -> None:
    if device == "cpu":  # the CPU refuses such ids
        return
    logits, ids = (x.to(device) for x in random_rows(12, vocab, dtype))
    wrong = torch.tensor([0, 2, 4, 6, 8, 10], device=device)
    strange = torch.tensor([vocab, -1, -3, -100, vocab + 7, 10**12], device=device)
    ones = torch.ones(2, 12, dtype=computed_in(dtype), device=device)
    found = []
    for sampled in (ids, ids.index_copy(0, wrong, strange)):
        leaf = logits.clone().requires_grad_()
        out = ops.token_logprobs(leaf, sampled, entropy=True)
        assert out.entropy is not None
        grad = torch.autograd.grad((out.logprobs, out.entropy), leaf, tuple(ones))[0]
        found.append((out.logprobs.detach(), out.entropy.detach(), grad))
    for clean, x in zip(*found, strict=True):
        assert x[wrong].isnan().all()
        assert torch.equal(x[1::2], clean[1::2])


def test_no_rows_give_no_log_probs() -> None:
    out = token_logprobs(torch.zeros(0, 7), torch.zeros(0, dtype=torch.int64), entropy=True)
    assert out.logprobs.shape == (0,)


@pytest.mark.cpu
def test_empty_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ids\[0\] must be in \[0, 0\)"):
        token_logprobs(torch.zeros(1, 0), torch.tensor([0]))
