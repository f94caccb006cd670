"""Against torch in the same dtype, over the vocabularies that models have and one more, and what compilation and graphs
must not change.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_coder import LossSpec, ops, reference
from loss_batches import SPECS, loss_batch
from tolerances import TOLERANCE, assert_close, relative_error
from torch import Tensor

pytestmark = pytest.mark.usefixtures("chosen_kernels")
VOCABS = [1000, 32000, 128256, 129920, 151936, 152064, 262144]
#: Where torch happens to be exact, an error of this share of a dtype's tolerance is good enough.
FLOOR = 0.1


def rows_for(device: str) -> int:
    return 2 if device == "cpu" else 48


def logits_of(tokens: int, vocab: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(vocab)
    logits = (3 * torch.randn(tokens, vocab, generator=rng)).to(dtype)
    return logits, torch.randint(0, vocab, (tokens,), generator=rng)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [*VOCABS, *(vocab + 1 for vocab in VOCABS)])
def test_log_probs_entropy_and_gradient_are_as_good_as_torchs(device: str, vocab: int, dtype: torch.dtype) -> None:
    tokens = rows_for(device)
    logits, ids = logits_of(tokens, vocab, dtype)
    upstream = torch.randn(2, tokens, generator=torch.Generator().manual_seed(1))

    leaf = logits.to(device).requires_grad_()
    out = ops.token_logprobs(leaf, ids.to(device), entropy=True)
    assert out.entropy is not None
    ours = differentiated(leaf, out.logprobs, out.entropy, upstream.to(device))

    leaf = logits.to(device).requires_grad_()
    log_p = leaf.float().log_softmax(-1)
    chosen = log_p.gather(1, ids.to(device)[:, None])[:, 0]
    torchs = differentiated(leaf, chosen, -(log_p.exp() * log_p).sum(-1), upstream.to(device))

    leaf = logits.double().requires_grad_()
    logprobs, entropy = reference.token_logprobs(leaf, ids, entropy=True)
    assert entropy is not None
    exact = differentiated(leaf, logprobs, entropy, upstream.double())
    for values in zip(ours[:2], torchs[:2], exact[:2], strict=True):
        no_worse(*values)
    for values in zip(*(parts(x[2], ids) for x in (ours, torchs, exact)), strict=True):
        no_worse(*values)


@pytest.mark.parametrize("vocab", [1000, 128257, 151936])
@pytest.mark.parametrize("name", ["clip", "kl and entropy", "gspo"])
def test_the_gradient_of_a_loss_is_as_good_as_torchs(device: str, name: str, vocab: int) -> None:
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


def test_another_length_compiles_nothing_again(device: str) -> None:
    compiled, spec = 0, LossSpec.preset("dapo")

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return graph.forward

    def loss(logits: Tensor, hidden: Tensor, weight: Tensor, ids: Tensor, advantages: Tensor) -> Tensor:
        scores = ops.token_logprobs(logits, ids).logprobs
        by_logits = ops.grpo_loss(logits, ids, advantages, spec, old_logprobs=scores.detach()).loss
        return by_logits + ops.linear_grpo_loss(hidden, weight, ids, advantages, spec, allow_sync=False).loss

    function = torch.compile(loss, backend=backend, fullgraph=True, dynamic=True)
    for tokens in (5, 9, 33):
        logits = torch.randn(tokens, 50, device=device, requires_grad=True)
        hidden, weight = torch.randn(tokens, 8, device=device), torch.randn(50, 8, device=device)
        ids, advantages = torch.arange(tokens, device=device), torch.ones(tokens, device=device)
        arguments = (logits, hidden, weight, ids, advantages)
        assert torch.equal(function(*arguments), loss(*arguments))
    assert compiled == 1


@pytest.mark.parametrize("vocab", [1000, 40000])
def test_a_captured_graph_follows_its_inputs(device: str, vocab: int) -> None:
    if device == "cpu":
        return
    first, ids = logits_of(24, vocab, torch.bfloat16)
    second, _ = logits_of(24, vocab, torch.bfloat16)
    second = second.flip(0)
    given, ids = first.to(device), ids.to(device)
    advantages = torch.linspace(-1, 1, 24, device=device)

    def call(logits: Tensor) -> tuple[Tensor, ...]:
        leaf = logits.detach().requires_grad_()
        scored = ops.token_logprobs(leaf, ids, entropy=True)
        loss = ops.grpo_loss(leaf, ids, advantages, SPECS["clip"], old_logprobs=scored.logprobs.detach() - 0.1).loss
        (gradient,) = torch.autograd.grad(2 * loss + scored.logprobs.sum(), leaf)
        return scored.logprobs.detach(), loss.detach(), gradient

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call(given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call(given)
    for logits in (first, second):
        given.copy_(logits)
        graph.replay()
        wanted = call(logits.to(device))
        assert all(torch.equal(a, b) for a, b in zip(captured, wanted, strict=True))
