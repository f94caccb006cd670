"""The policy loss from logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernel_coder import _C
from kernel_coder.ops._errors import checked
from kernel_coder.ops._inputs import (
    Numbers,
    as_advantages,
    as_bounds,
    as_denominator,
    as_mask,
    as_spec,
    as_temperature,
    carries_gradient,
    plain_tensor,
    token_numbers,
    without_autograd,
)
from kernel_coder.ops.loss_spec import LOSS_METRICS, LossSpec
from kernel_coder.ops.policy_loss import LossOutput


@checked
def grpo_loss(
    logits: Tensor,
    ids: Tensor,
    advantages: Numbers,
    spec: LossSpec | str,
    *,
    temperature: float | Tensor = 1.0,
    old_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Numbers | None = None,
    denominator: float | Tensor | None = None,
    inplace: bool = False,
) -> LossOutput:
    """Compute the policy loss of tokens from their logits: :func:`policy_loss` of :func:`token_logprobs`, in one op.

    With ``g_t = d loss / d logprob_t``, ``h_t = d loss / d entropy_t`` and ``p = softmax(logits / temperature)``::

        d loss / d logits_tj = (g_t ([j = ids_t] - p_tj) - h_t p_tj (log p_tj + entropy_t)) / temperature_t

    The forward reads the logits once and keeps a reference to them and five numbers for each token; the backward reads
    them once more and writes their gradient. It does not read tokens that are masked or whose gradient is exactly 0
    (zero advantage, clipped, rejected).

    Args:
        logits: ``[tokens, vocab]`` or ``[sequences, length, vocab]``, float32, float64, bfloat16 or float16; rows may
            have any stride, as in ``logits[:, :-1]``.
        ids: int64, ``[tokens]`` or ``[sequences, length]``, in ``[0, vocab)`` where unmasked.
        advantages, spec, old_logprobs, ref_logprobs, rollout_logprobs, mask, cu_seqlens, denominator: see
            :func:`policy_loss`. They are converted to float32 (float64 for float64 logits).
        temperature: more than 0; a number, or one for each token.
        inplace: write the gradient over ``logits``.

    Returns:
        :class:`LossOutput`, with log-probs and entropies of the tokens, 0 where masked.

    Raises:
        ValueError: wrong shape, dtype, device, id or temperature, or a tensor missing that the spec needs. On CUDA the
            values of ids, temperatures, ``cu_seqlens`` and ``denominator`` are not checked, because that would mean
            waiting for the device; an id out of range gives NaN.

    >>> logits = torch.zeros(2, 4, requires_grad=True)
    >>> out = grpo_loss(logits, torch.tensor([0, 1]), torch.tensor([1.0, 1.0]), LossSpec.preset("dapo"))
    >>> out.loss.backward()
    >>> logits.grad[0]
    tensor([-0.3750,  0.1250,  0.1250,  0.1250])
    """
    spec = as_spec(spec)
    temperature = as_temperature(temperature, plain_tensor("logits", logits))
    dtype, device = temperature.dtype, logits.device
    rest = (
        plain_tensor("ids", ids),
        temperature,
        as_advantages(advantages, dtype, device),
        *token_numbers(dtype, old_logprobs=old_logprobs, ref_logprobs=ref_logprobs, rollout_logprobs=rollout_logprobs),
        as_mask(mask),
        as_bounds("cu_seqlens", cu_seqlens, device),
        as_denominator(denominator, device),
        spec.pack(),
    )
    has_gradient = carries_gradient(logits)
    if inplace:
        if has_gradient:
            return LossOutput(*_LossInPlace.apply(logits, *rest))
        return LossOutput(*without_autograd(_OP_INPLACE, logits, *rest))
    out = _OP(logits, *rest) if has_gradient else without_autograd(_OP, logits, *rest)
    return LossOutput(*out[:4])


_OP = torch.ops.kernel_coder.grpo_loss.default
_OP_INPLACE = torch.ops.kernel_coder.grpo_loss_inplace.default
_SCALE = torch.ops.kernel_coder.scale_gradient.default


class _LossInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        gradient = logits.detach()
        loss, *others = _OP_INPLACE(gradient, *rest)
        ctx.mark_non_differentiable(*others)
        ctx.set_materialize_grads(False)
        ctx.gradient = gradient
        return loss, *others

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor | None, *unused: Any) -> tuple[Any, ...]:
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:
            raise RuntimeError(
                "the gradient of grpo_loss with inplace=True can be taken once: its memory is given away"
            )
        if grad_loss is None:
            return (None,) * 11
        without_autograd(_SCALE, gradient, grad_loss)
        return gradient, *(None,) * 10


@torch.library.register_fake("kernel_coder::grpo_loss_inplace")
def _(logits: Tensor, ids: Tensor, temperature: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _like_loss(logits, temperature.dtype, 2)


@torch.library.register_fake("kernel_coder::scale_gradient")
def _(gradient: Tensor, factor: Tensor) -> None:
    return None


@torch.library.register_fake("kernel_coder::grpo_loss")
def _(
    logits: Tensor,
    ids: Tensor,
    temperature: Tensor,
    advantages: Tensor,
    old_logprobs: Tensor | None,
    ref_logprobs: Tensor | None,
    rollout_logprobs: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    denominator: Tensor | None,
    spec: list[float],
) -> tuple[Tensor, ...]:
    grad_entropy = logits.new_empty(logits.shape[:-1] if has_entropy_term(spec) else 0, dtype=temperature.dtype)
    return *_like_loss(logits, temperature.dtype, 5), grad_entropy


def _like_loss(logits: Tensor, dtype: torch.dtype, numbers: int) -> tuple[Tensor, ...]:
    """Return tensors with the shapes of the loss, its metrics, and ``numbers`` values for each token."""
    metrics = logits.new_empty(len(LOSS_METRICS), dtype=torch.float64)
    tokens = [logits.new_empty(logits.shape[:-1], dtype=dtype) for _ in range(numbers)]
    return logits.new_empty((), dtype=dtype), metrics, *tokens


_ENTROPY_COEF = [name for name, _, _ in _C.LOSS_SPEC_FIELDS].index("entropy_coef")


def has_entropy_term(spec: list[float]) -> bool:
    """Return whether a packed spec's loss depends on the entropy."""
    return spec[_ENTROPY_COEF] != 0


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, ids, temperature, mask, spec = inputs[0], inputs[1], inputs[2], inputs[7], inputs[10]
    _, *rest = output
    ctx.mark_non_differentiable(*rest)
    ctx.set_materialize_grads(False)
    ctx.has_entropy_term = has_entropy_term(spec)
    ctx.save_for_backward(logits, ids, temperature, mask, *rest[1:])


def _backward(ctx: Any, grad_loss: Tensor | None, *unused: Any) -> tuple[Any, ...]:
    logits, ids, temperature, mask, logprobs, entropy, max, sum, by_logprobs, by_entropy = ctx.saved_tensors
    if grad_loss is None:
        return (None,) * 11
    grad_logits = _C.token_logprobs_backward(
        grad_loss * by_logprobs,
        grad_loss * by_entropy if ctx.has_entropy_term else None,
        *(logits, ids, temperature, mask, logprobs, entropy, max, sum),
    )
    return (grad_logits,) + (None,) * 10


torch.library.register_autograd("kernel_coder::grpo_loss", _backward, setup_context=_save)
