"""The policy loss from hidden states, without the logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernel_coder import _C
from kernel_coder.ops._errors import checked
from kernel_coder.ops.grpo_loss import as_numbers
from kernel_coder.ops.linear_token_logprobs import as_head_options, empty_gradients, rounds
from kernel_coder.ops.loss_spec import LOSS_METRICS, LossSpec
from kernel_coder.ops.policy_loss import LossOutput, as_denominator
from kernel_coder.ops.token_logprobs import as_temperature


@checked
def linear_grpo_loss(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    advantages: Tensor,
    spec: LossSpec,
    *,
    bias: Tensor | None = None,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    temperature: float | Tensor = 1.0,
    old_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    denominator: float | Tensor | None = None,
    chunk_rows: int | None = None,
    logits_dtype: torch.dtype | None = None,
    weight_grad_dtype: torch.dtype | None = None,
    allow_sync: bool = True,
) -> LossOutput:
    """:func:`policy_loss` of :func:`linear_token_logprobs`, in one op, with the gradient formed in the forward.

    The loss is a scalar, so its gradient is known as soon as a token is scored, and the backward only scales it: three
    matrix products (``6 N H V`` operations for N unmasked tokens) where forming the logits again would take four. Rows
    go through the workspace in whole sequences, since a loss may need all log-probs of a sequence before the first
    gradient. A sequence longer than the workspace is cut anywhere if the loss looks at tokens one by one; otherwise
    (sequence ratios, sequence or geometric mismatch, veto, off-policy mask) that sequence alone is scored first and
    multiplied a fourth time. Masked rows cost nothing, and rows whose gradient is exactly 0 (zero advantage, clipped,
    rejected) cost the first product only. Without ``requires_grad`` on the weight (a frozen head) its gradient is not
    formed; without any, or under ``no_grad``, only the first product is.

    Memory beside inputs and gradients is the workspace, ``chunk_rows`` rows of float32 logits, by default 256 MiB. The
    gradient of the weight is summed in float32 and rounded once to the weight's dtype.

    Args:
        hidden, weight, ids, bias, logit_scale, softcap, temperature, chunk_rows: see :func:`linear_token_logprobs`.
        advantages, spec, old_logprobs, ref_logprobs, rollout_logprobs, mask, cu_seqlens, denominator: see
            :func:`policy_loss`. They are converted to float32 (float64 for float64 hidden states).

    Returns:
        :class:`LossOutput`, with log-probs and entropies of the tokens, 0 where masked. Differentiable once, in hidden,
        weight and bias.

    Raises:
        ValueError: wrong shape, dtype, device, id, temperature, softcap or chunk_rows, or a tensor missing that the
            spec needs.

    >>> hidden, weight = torch.eye(2, requires_grad=True), torch.zeros(4, 2, requires_grad=True)
    >>> out = linear_grpo_loss(hidden, weight, torch.tensor([0, 1]), torch.ones(2), LossSpec.preset("dapo"))
    >>> out.loss.backward()
    >>> weight.grad
    tensor([[-0.3750,  0.1250],
            [ 0.1250, -0.3750],
            [ 0.1250,  0.1250],
            [ 0.1250,  0.1250]])
    """
    like = as_temperature(temperature, hidden)
    differentiates = torch.is_grad_enabled()
    loss, metrics, logprobs, entropy, *_ = _C.linear_grpo_loss(
        hidden,
        weight,
        bias,
        ids,
        like,
        advantages.detach().to(like.dtype),
        *as_numbers((old_logprobs, ref_logprobs, rollout_logprobs), like.dtype),
        mask,
        cu_seqlens,
        as_denominator(denominator, hidden.device),
        spec.pack(),
        logit_scale,
        *as_head_options(softcap, chunk_rows),
        rounds("logits_dtype", logits_dtype, hidden),
        rounds("weight_grad_dtype", weight_grad_dtype, hidden),
        allow_sync,
        differentiates and hidden.requires_grad,
        differentiates and weight.requires_grad,
        differentiates and bias is not None and bias.requires_grad,
    )
    return LossOutput(loss, metrics, logprobs, entropy)


@torch.library.register_fake("kernel_coder::linear_grpo_loss")
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, temperature: Tensor, *rest: Any) -> Any:
    metrics = temperature.new_empty(len(LOSS_METRICS), dtype=torch.float64)
    tokens = [temperature.new_empty(hidden.shape[0]) for _ in range(2)]
    by_hidden, by_weight, by_bias = empty_gradients(hidden, weight, *rest[-3:])
    rounds_weight_grad = rest[-5]
    by_weight = by_weight if rounds_weight_grad else temperature.new_empty(by_weight.shape)
    return temperature.new_empty(()), metrics, *tokens, by_hidden, by_weight, by_bias


_INPUTS = 22


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, *rest = output
    ctx.mark_non_differentiable(*rest)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:3], *rest[3:])


def _backward(ctx: Any, grad_loss: Tensor | None, *unused: Any) -> tuple[Any, ...]:
    sources, gradients = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
    if grad_loss is None:
        return (None,) * _INPUTS
    scaled = [
        _Scaled.apply(grad_loss, gradient, source) if need else None
        for source, gradient, need in zip(sources, gradients, ctx.needs_input_grad[:3], strict=True)
    ]
    return (*scaled, *(None,) * (_INPUTS - 3))


class _Scaled(torch.autograd.Function):
    """``grad_output * gradient`` in the dtype of ``source``, rounded once. Its own gradient raises."""

    @staticmethod
    def forward(ctx: Any, grad_output: Tensor, gradient: Tensor, source: Tensor) -> Tensor:
        return torch.mul(gradient, grad_output, out=torch.empty_like(gradient, dtype=source.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError("the policy loss is differentiable once: its second derivative is not defined here")


torch.library.register_autograd("kernel_coder::linear_grpo_loss", _backward, setup_context=_save)
