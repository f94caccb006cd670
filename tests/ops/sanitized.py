"""Calls every CUDA kernel of the ops once at a few shapes, for NVIDIA's compute-sanitizer.

    make test-sanitizer

The shapes choose each kernel: rows for a warp, a block and a cluster, aligned rows and rows that are not, every dtype.
Results are not compared here, since the tests do that. The only check is that they are finite. Memory comes from the
driver and not from torch's cache, so memcheck sees an access behind the end of each tensor.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

import torch
from kernel_coder import LossSpec, ops
from torch import Tensor

VOCABS = (7, 1000, 32000, 49152, 65537, 151936)
DTYPES = (torch.bfloat16, torch.float32)
LENGTHS = (5, 1, 7)
TOKENS = sum(LENGTHS)


def finite(name: str, *tensors: Tensor | None) -> None:
    """End the program if a result is not finite."""
    for tensor in tensors:
        if tensor is not None and not bool(tensor.float().isfinite().all()):
            sys.exit(f"{name}: a result is not finite")


def per_token(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """The mask, the sequence bounds and the log-probs of the other policies for a loss."""
    mask = torch.ones(TOKENS, dtype=torch.bool, device="cuda")
    mask[3] = False
    bounds = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist()], device="cuda")
    names = ("old_logprobs", "ref_logprobs", "rollout_logprobs")
    return {"mask": mask, "cu_seqlens": bounds, **{name: torch.full_like(mask, -1, dtype=dtype) for name in names}}


def from_logits(vocab: int, dtype: torch.dtype) -> None:
    """Log-probs and the loss from logits, with gradients, into a new tensor and in place."""
    logits = torch.randn(TOKENS, vocab, dtype=dtype, device="cuda").requires_grad_()
    ids = torch.randint(0, vocab, (TOKENS,), device="cuda")
    found = ops.token_logprobs(logits, ids, entropy=True)
    (found.logprobs.sum() + found.entropy.sum()).backward()
    finite("token_logprobs", found.logprobs, found.entropy, logits.grad)
    advantages = torch.randn(TOKENS, device="cuda")
    for preset in ("dapo", "gspo"):
        for inplace in (False, True):
            given = logits.detach().clone().requires_grad_()
            loss = ops.grpo_loss(given, ids, advantages, preset, inplace=inplace, **per_token()).loss
            (gradient,) = torch.autograd.grad(loss, given)
            finite("grpo_loss", loss, gradient)


def from_hidden(vocab: int, dtype: torch.dtype) -> None:
    """Log-probs and the loss from hidden states, with gradients."""
    hidden = torch.randn(TOKENS, 64, dtype=dtype, device="cuda").requires_grad_()
    weight = torch.randn(vocab, 64, dtype=dtype, device="cuda").mul_(0.1).requires_grad_()
    ids = torch.randint(0, vocab, (TOKENS,), device="cuda")
    found = ops.linear_token_logprobs(hidden, weight, ids, entropy=True)
    (found.logprobs.sum() + found.entropy.sum()).backward()
    finite("linear_token_logprobs", hidden.grad, weight.grad)
    advantages = torch.randn(TOKENS, device="cuda")
    for logits_dtype in {dtype, torch.float32}:
        options = {"chunk_rows": 16, "logits_dtype": logits_dtype, **per_token()}
        loss = ops.linear_grpo_loss(hidden, weight, ids, advantages, "dapo", **options).loss
        finite("linear_grpo_loss", loss, *torch.autograd.grad(loss, (hidden, weight)))


def small_ops() -> None:
    """Ops without logits: the loss from log-probs, advantages, comparisons."""
    logprobs = torch.full((TOKENS,), -1.0, device="cuda").requires_grad_()
    for preset in LossSpec.presets():
        loss = ops.policy_loss(logprobs, torch.randn(TOKENS, device="cuda"), preset, **per_token()).loss
        finite("policy_loss", loss, *torch.autograd.grad(loss, logprobs))
    rewards = torch.rand(1000, device="cuda")
    for mode in ("grpo", "dr_grpo", "batch", "rloo", "loo_std", "maxrl"):
        finite("group_advantages", ops.group_advantages(rewards, 8, mode=mode))
    finite("turn_advantages", ops.turn_advantages(rewards.view(250, 4), 10, gamma=0.4))
    for size in (1, 1000, 1_000_003):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            values = torch.randn(size, dtype=dtype, device="cuda")
            ops.compare(values, values + 1, rtol=1e-3).read()


def main() -> None:
    torch.manual_seed(0)
    small_ops()
    for dtype in DTYPES:
        for vocab in VOCABS:
            from_logits(vocab, dtype)
            from_hidden(min(vocab, 65537), dtype)
    torch.cuda.synchronize()
    print("every kernel ran")


if __name__ == "__main__":
    main()
