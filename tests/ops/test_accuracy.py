"""The errors of the ops are no larger than those of torch in the same dtype.

The cases cover the vocabulary sizes of real models, each of them plus one, and rows with extreme values. The last test
checks that one compilation serves every batch length.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from anywhere import placed
from kernel_coder import ops, reference
from loss_batches import SPECS, loss_batch
from tolerances import TOLERANCE, assert_close, relative_error
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

pytestmark = pytest.mark.usefixtures("chosen_kernels")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
VOCABS = [1000, 32000, 128256, 129920, 151936, 152064, 262144]
#: Torch may be exact by chance. An error below this share of the dtype's tolerance therefore always passes: 2e-7 for
#: float32, whose machine epsilon is 1.2e-7.
FLOOR = 0.2


def rows_for(device: str) -> int:
    return 3 if device == "cpu" else 48


def logits_of(tokens: int, vocab: int, dtype: torch.dtype, kind: str = "normal") -> tuple[Tensor, Tensor]:
    """Logits and sampled ids. For "one +80", every second row samples the column with +80."""
    rng = torch.Generator().manual_seed(vocab)
    logits, ids = 3 * torch.randn(tokens, vocab, generator=rng), torch.randint(0, vocab, (tokens,), generator=rng)
    match kind:
        case "all -200":
            logits[:] = -200.0
        case "uniform":
            logits[:] = 3.25
        case "around -200":
            logits -= 200.0
        case "around 200":
            logits += 200.0
        case "one +80":
            logits[torch.arange(tokens), (ids + torch.arange(tokens) % 2) % vocab] = 80.0
        case "margins":
            logits *= 0.1
            logits[torch.arange(tokens), ids] = torch.linspace(5, 40, tokens)
    return logits.to(dtype), ids


def parts(gradient: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    chosen = torch.zeros_like(gradient, dtype=torch.bool).scatter_(1, ids[:, None], True)
    return gradient[chosen], gradient.masked_fill(chosen, 0.0)


def no_worse(ours: Tensor, torchs: Tensor, exact: Tensor) -> None:
    assert_close(ours, exact)
    error, bound = relative_error(ours, exact), 1.5 * relative_error(torchs, exact)
    floor = FLOOR * TOLERANCE[ours.dtype]
    assert error <= max(bound, floor), f"error {error:.3g}, torch's {bound / 1.5:.3g}"


def differentiated(logits: Tensor, logprobs: Tensor, entropy: Tensor, upstream: Tensor) -> list[Tensor]:
    (gradient,) = torch.autograd.grad((logprobs, entropy), logits, tuple(upstream.to(logprobs)))
    return [x.detach().cpu() for x in (logprobs, entropy, gradient)]


def compare(device: str, logits: Tensor, ids: Tensor, with_entropy: bool = True) -> None:
    """Checks that log-probs, entropy and gradient are as close to the float64 reference as those of torch."""
    upstream = torch.randn(2, len(ids), generator=torch.Generator().manual_seed(1))
    upstream[1] *= with_entropy
    if logits.dtype == torch.float16:
        upstream *= 1024  # acts as a loss scale: most probabilities are too small for float16

    leaf = placed(logits, device).requires_grad_()
    out = ops.token_logprobs(leaf, ids.to(device), entropy=True)
    assert out.entropy is not None
    ours = differentiated(leaf, out.logprobs, out.entropy, upstream.to(device))

    leaf = placed(logits, device).requires_grad_()
    log_p = leaf.float().log_softmax(-1)
    chosen = log_p.gather(1, ids.to(device)[:, None])[:, 0]
    torchs = differentiated(leaf, chosen, -(log_p.exp() * log_p).sum(-1), upstream.to(device))

    leaf = logits.double().requires_grad_()
    logprobs, entropy = reference.token_logprobs(leaf, ids, entropy=True)
    assert entropy is not None
    exact = differentiated(leaf, logprobs, entropy, upstream.double())
    for values in list(zip(ours, torchs, exact, strict=True))[: 1 + with_entropy]:
        no_worse(*values)
    for values in zip(*(parts(x[2], ids) for x in (ours, torchs, exact)), strict=True):
        no_worse(*values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [*VOCABS, *(vocab + 1 for vocab in VOCABS)])
def test_log_probs_entropy_and_gradient_are_as_accurate_as_torch(device: str, vocab: int, dtype: torch.dtype) -> None:
    compare(device, *logits_of(rows_for(device), vocab, dtype))


@pytest.mark.parametrize("tokens", [1, 7, 70000])
def test_one_seven_and_70000_rows_are_as_accurate_as_torch(device: str, tokens: int) -> None:
    compare(device, *logits_of(tokens, 5000 if tokens < 70000 else 33, torch.bfloat16))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("first", "pad"), [(0, 1), (0, 3), (1, 0), (3, 4), (8, 8)])
def test_rows_inside_a_wider_tensor_are_as_accurate_as_torch(
    device: str, first: int, pad: int, dtype: torch.dtype
) -> None:
    for vocab in (5000, 5001):
        logits, ids = logits_of(7, first + vocab + pad, dtype)
        compare(device, logits[:, first : first + vocab], ids.clamp(max=vocab - 1))


# No margins in float16: at margins of up to 40 nats the gradients round to 0.
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *itertools.product(["all -200", "around -200", "around 200", "uniform", "one +80"], DTYPES),
        *itertools.product(["margins"], DTYPES[:2]),
    ],
)
def test_rows_with_extreme_logits_are_as_accurate_as_torch(device: str, kind: str, dtype: torch.dtype) -> None:
    # "one +80" has entropies of 1e-30, which a float64 log-sum-exp cannot tell from 0.
    for vocab in (1000, 40000, 40001):
        compare(device, *logits_of(8, vocab, dtype, kind), with_entropy=kind != "one +80")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [*VOCABS, *(vocab + 1 for vocab in VOCABS)])
def test_equal_logits_give_minus_log_vocab(device: str, vocab: int, dtype: torch.dtype) -> None:
    # A kernel that counts columns past the end fails: 640 more than 151,936 columns change the result by 4e-3 nats.
    scale = 1024.0 if dtype == torch.float16 else 1.0
    leaf = torch.full((2, vocab), 3.25, dtype=dtype, device=device, requires_grad=True)
    ids = torch.tensor([0, vocab - 1], device=device)
    out = ops.token_logprobs(leaf, ids, entropy=True)
    assert out.entropy is not None
    wanted = torch.full((2,), math.log(vocab), dtype=torch.float64)
    assert_close(-out.logprobs.cpu(), wanted)
    assert_close(out.entropy.cpu(), wanted)
    (gradient,) = torch.autograd.grad(scale * out.logprobs.sum(), leaf)
    exact = torch.full((2, vocab), -scale / vocab, dtype=torch.float64)
    exact[[0, 1], [0, vocab - 1]] += scale
    for x, wanted in zip(parts(gradient.cpu(), ids.cpu()), parts(exact, ids.cpu()), strict=True):
        assert_close(x, wanted)


@pytest.mark.parametrize("vocab", [1000, 128257, 151936])
@pytest.mark.parametrize("name", ["clip", "kl and entropy", "gspo"])
def test_gradient_of_the_loss_is_as_accurate_as_torch(device: str, name: str, vocab: int) -> None:
    tokens = rows_for(device)
    logits, _ = logits_of(tokens, vocab, torch.bfloat16)
    batch = loss_batch(logits.float(), [1, tokens - 1])
    ids, spec = batch["ids"], SPECS[name]
    there = {key: value.to(device) for key, value in batch.items() if key not in ("ids", "advantages")}

    leaf = logits.to(device).requires_grad_()
    out = ops.grpo_loss(leaf.clone(), ids.to(device), batch["advantages"].to(device), spec, inplace=True, **there)
    (ours,) = torch.autograd.grad(out.loss, leaf)

    def composed(leaf: Tensor, wide: torch.dtype) -> Tensor:
        place, inputs = leaf.device, {key: value.cpu() for key, value in there.items()}
        log_p = leaf.to(wide).log_softmax(-1)
        chosen = log_p.gather(1, ids.clamp(min=0).to(place)[:, None])[:, 0].masked_fill(~batch["mask"].to(place), 0.0)
        entropy = -(log_p.exp() * log_p).sum(-1)
        loss, _ = reference.policy_loss(chosen.cpu(), batch["advantages"], spec, entropy=entropy.cpu(), **inputs)
        return torch.autograd.grad(loss, leaf)[0].cpu()

    torchs = composed(logits.to(device).requires_grad_(), torch.float32)
    exact = composed(logits.double().requires_grad_(), torch.float64)
    safe = ids.clamp(min=0)
    for values in zip(*(parts(x.cpu(), safe) for x in (ours, torchs, exact)), strict=True):
        no_worse(*values)


def test_other_batch_lengths_need_no_recompilation(device: str) -> None:
    spec, counter = SPECS["clip"], CompileCounterWithBackend("aot_eager")

    def loss(logits: Tensor, hidden: Tensor, weight: Tensor, ids: Tensor, advantages: Tensor) -> Tensor:
        scores = ops.token_logprobs(logits, ids, entropy=True)
        old = scores.logprobs.detach() - 0.1
        total = ops.policy_loss(scores.logprobs, advantages, spec, old_logprobs=old).loss
        total = total + 2 * ops.grpo_loss(logits, ids, advantages, spec, old_logprobs=old).loss
        return total + ops.linear_grpo_loss(hidden, weight, ids, advantages, spec, allow_sync=False).loss

    function = torch.compile(loss, backend=counter, fullgraph=True, dynamic=True)
    compiled = []
    for tokens in (5, 9, 33):
        logits = torch.randn(tokens, 50, device=device, requires_grad=True)
        hidden, weight = torch.randn(tokens, 8, device=device), torch.randn(50, 8, device=device)
        ids, advantages = torch.arange(tokens, device=device), torch.ones(tokens, device=device)
        arguments = (logits, hidden.requires_grad_(), weight.requires_grad_(), ids, advantages)
        found = []
        for each in (function, loss):
            total = each(*arguments)
            found.append([total.detach(), *torch.autograd.grad(total, arguments[:3])])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
        compiled.append(counter.frame_count)
    assert compiled[0] == compiled[-1] > 0
