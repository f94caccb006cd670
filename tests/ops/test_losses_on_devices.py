"""token_logprobs, policy_loss and grpo_loss from one body on every device: shapes that choose other kernels on CUDA,
and what only a GPU can get wrong.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_coder import LossSpec, ops, reference
from kernel_coder.ops import LOSS_METRICS
from loss_batches import SPECS, loss_batch
from tolerances import assert_close
from torch import Tensor

pytestmark = pytest.mark.usefixtures("chosen_kernels")
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
#: Shorter than a warp; short; a row for a small cluster; one more, so that no row is aligned; a row for a large one.
VOCABS = [1, 7, 1000, 65536, 65537, 151936]


def logits_of(kind: str, tokens: int, vocab: int, dtype: torch.dtype) -> Tensor:
    torch.manual_seed(tokens + vocab)
    x = torch.randn(tokens, vocab) * 3
    if kind == "all -200":
        x = torch.full((tokens, vocab), -200.0)
    elif kind == "one +80":
        x[:, vocab // 2] = 80.0
    elif kind == "around 200":
        x += 200.0
    elif kind == "half without probability":
        x[:, ::2] = -torch.inf
    return x.to(dtype)


def on(device: str, batch: dict[str, Any]) -> dict[str, Any]:
    return {name: value.to(device) for name, value in batch.items()}


def check_loss(
    device: str, logits: Tensor, batch: dict[str, Any], spec: LossSpec, inplace: bool, **keywords: Any
) -> None:
    expected = logits.double().clone().requires_grad_()
    loss, metrics = reference.grpo_loss(expected, batch["ids"], batch["advantages"], spec, **keywords, **rest_of(batch))
    (3.0 * loss).backward()

    leaf = logits.to(device, copy=True).requires_grad_()
    # A leaf cannot be overwritten; a copy of it can.
    given = leaf.clone(memory_format=torch.preserve_format) if inplace else leaf
    moved = on(device, batch)
    keywords = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in keywords.items()}
    out = ops.grpo_loss(given, moved["ids"], moved["advantages"], spec, inplace=inplace, **keywords, **rest_of(moved))
    (3.0 * out.loss).backward()
    assert leaf.grad is not None
    assert expected.grad is not None
    mask = batch["mask"]
    assert_close(out.loss.cpu() + 1, loss + 1, slack=4)
    named = dict(zip(LOSS_METRICS, out.metrics.tolist(), strict=True))
    for name in ("tokens", "sequences", "clipped_low", "clipped_high", "rejected", "nonfinite"):
        assert named[name] == metrics.get(name, 0.0), name
    gradient = leaf.grad.cpu()
    assert (gradient[~mask] == 0).all()
    # 3 g is rounded to 16 bits once more.
    slack = 2.0 if inplace or logits.dtype in (torch.float32, torch.float64) else 1.0
    ids = batch["ids"].clamp(min=0)[:, None]
    for target in (True, False):
        chosen = torch.zeros(gradient.shape, dtype=torch.bool).scatter_(1, ids, True) == target
        assert_close(gradient.where(chosen, 0), expected.grad.where(chosen, 0), slack=4 * slack)


def rest_of(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if name not in ("ids", "advantages")}


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_grpo_loss_of_every_width(device: str, dtype: torch.dtype, vocab: int, inplace: bool) -> None:
    logits = logits_of("normal", 6, vocab, dtype)
    check_loss(device, logits, loss_batch(logits, [2, 4]), SPECS["clip"], inplace)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_grpo_loss_of_every_kind(device: str, name: str, inplace: bool) -> None:
    logits = logits_of("normal", 40, 40000, torch.bfloat16)
    batch = loss_batch(logits, [5, 7, 0, 28])
    check_loss(device, logits, batch, SPECS[name], inplace, temperature=torch.rand(40) + 0.5)


@pytest.mark.parametrize("kind", ["all -200", "one +80", "around 200"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grpo_loss_of_hard_rows(device: str, dtype: torch.dtype, kind: str) -> None:
    logits = logits_of(kind, 16, 40000, dtype)
    check_loss(device, logits, loss_batch(logits, [16]), SPECS["kl and entropy"], True, temperature=0.7)


@pytest.mark.parametrize("pad", [1, 8])
def test_rows_any_distance_apart(device: str, pad: int) -> None:
    wide = logits_of("normal", 12, 40000 + pad, torch.bfloat16)
    logits = wide[:, :40000]
    check_loss(device, logits, loss_batch(logits, [12]), SPECS["clip"], True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_margins_keep_their_digits(device: str, dtype: torch.dtype) -> None:
    logits = 0.1 * logits_of("normal", 36, 5000, torch.float32)
    ids = torch.randint(0, 5000, (36,))
    logits[torch.arange(36), ids] = torch.linspace(5, 40, 36)
    logits = logits.to(dtype)
    logprobs, entropy = reference.token_logprobs(logits, ids, entropy=True)
    out = ops.token_logprobs(logits.to(device), ids.to(device), entropy=True)
    assert entropy is not None
    assert out.entropy is not None
    for ours, theirs in ((out.logprobs, logprobs), (out.entropy, entropy)):
        assert ((ours.cpu().double() - theirs).abs() / theirs.abs()).max() < 5e-6


def test_rows_with_logits_that_are_no_numbers(device: str) -> None:
    logits = logits_of("half without probability", 6, 40000, torch.bfloat16)
    logits[1, 7] = torch.nan
    logits[2, 9] = torch.inf
    logits[3, :] = -torch.inf
    ids = torch.full((6,), 1)
    expected, _ = reference.token_logprobs(logits[[0, 4, 5]], ids[:3])
    out = ops.token_logprobs(logits.to(device), ids.to(device)).logprobs.cpu()
    assert out[1:4].isnan().all()
    assert_close(out[[0, 4, 5]], expected)


def test_one_row_and_many(device: str) -> None:
    spec = SPECS["clip"]
    for tokens, vocab in ((1, 40000), (70000, 64)):
        logits = logits_of("normal", tokens, vocab, torch.bfloat16)
        check_loss(device, logits, loss_batch(logits, [tokens]), spec, inplace=True)
    empty = torch.zeros(0, 16, device=device, dtype=torch.bfloat16, requires_grad=True)
    nothing = torch.zeros(0, device=device)
    out = ops.grpo_loss(empty.clone(), nothing.long(), nothing, spec, inplace=True)
    out.loss.backward()
    assert out.loss == 0
    assert out.metrics.abs().sum() == 0


def test_a_gradient_in_place_can_be_taken_once(device: str) -> None:
    leaf = torch.randn(4, 64, device=device, requires_grad=True)
    ids, advantages = torch.arange(4, device=device), torch.ones(4, device=device)
    out = ops.grpo_loss(leaf.clone(), ids, advantages, SPECS["clip"], inplace=True)
    out.loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        out.loss.backward()


def test_every_run_gives_the_same_bits(device: str) -> None:
    logits = logits_of("normal", 64, 40000, torch.bfloat16)
    batch = on(device, loss_batch(logits, [20, 44]))
    results = []
    for _ in range(3):
        given = logits.to(device, copy=True)
        spec = SPECS["kl and entropy"]
        out = ops.grpo_loss(given, batch["ids"], batch["advantages"], spec, inplace=True, **rest_of(batch))
        results.append((out.loss, out.metrics, out.logprobs, given))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_no_wait_for_the_device_and_capture_in_a_graph(device: str) -> None:
    if device == "cpu":
        return
    logits = logits_of("normal", 32, 40000, torch.bfloat16).to(device)
    batch = on(device, loss_batch(logits.cpu(), [12, 20]))

    def call(spec: LossSpec) -> tuple[Tensor, Tensor]:
        given = logits.clone()
        out = ops.grpo_loss(given, batch["ids"], batch["advantages"], spec, inplace=True, **rest_of(batch))
        return out.loss, given

    for spec in (SPECS["clip"], SPECS["gspo"]):
        expected = call(spec)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            call(spec)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = call(spec)
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(expected, captured, strict=True))
