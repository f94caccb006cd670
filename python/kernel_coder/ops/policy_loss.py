"""The policy loss from log-probs, and what every form of the loss returns."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernel_coder.ops._errors import checked
from kernel_coder.ops._inputs import (
    Numbers,
    as_advantages,
    as_bounds,
    as_denominator,
    as_mask,
    as_spec,
    carries_gradient,
    plain_tensor,
    token_numbers,
    without_autograd,
)
from kernel_coder.ops.loss_spec import LOSS_METRICS, LossSpec

_OP = torch.ops.kernel_coder.policy_loss.default


class LossOutput(NamedTuple):
    """What a loss gives."""

    #: 0-D, differentiable.
    loss: Tensor
    #: float64 sums, named by ``LOSS_METRICS``: add them over micro-batches and ranks, then divide.
    metrics: Tensor
    #: ``[tokens]`` or ``[sequences, length]``, detached.
    logprobs: Tensor
    #: The same shape, detached; None where it was not known.
    entropy: Tensor | None

    def as_dict(self) -> dict[str, float]:
        """Return the metrics as numbers by name. Waits for the device once.

        >>> out = policy_loss(torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 0.0]), LossSpec.preset("dapo"))
        >>> out.as_dict()["tokens"], out.as_dict()["loss"]
        (2.0, -0.5)
        """
        return dict(zip(LOSS_METRICS, self.metrics.tolist(), strict=True))


@checked
def policy_loss(
    logprobs: Tensor,
    advantages: Numbers,
    spec: LossSpec | str,
    *,
    old_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Numbers | None = None,
    entropy: Tensor | None = None,
    denominator: float | Tensor | None = None,
) -> LossOutput:
    """The policy-gradient loss of some tokens; :class:`LossSpec` says which one, with formulas.

    Tokens come in one of two forms. Packed: ``[tokens]``, all sequences one after another, sequence ``s`` being
    ``[cu_seqlens[s], cu_seqlens[s + 1])``. Padded: ``[sequences, length]``, each row a sequence, with a mask for the
    padding. Both give the same bits.

    Args:
        logprobs: float32 or float64, ``[tokens]`` or ``[sequences, length]``, log-probs of the sampled tokens under the
            trained model. Carries gradient, once: a second derivative raises.
        advantages: one a sequence, ``[sequences]`` or ``[sequences, 1]``, or one a token (which is how packed ones are
            read where the two counts are equal). A list or an array will do.
        spec: the loss, or the name of a preset.
        old_logprobs: ``[tokens]`` under the policy that the ratio is taken against. None: ``logprobs`` itself without
            gradient, so the ratio is exactly 1.
        ref_logprobs: ``[tokens]`` under the reference model; needed if ``spec.beta``.
        rollout_logprobs: ``[tokens]`` as the sampler gave them, NaN where it could not; needed by the spec's mismatch
            correction, veto and ``ratio_to_rollout``.
        mask: bool ``[tokens]``, True counts; integers count where they are not 0. A masked token contributes nothing,
            whatever its values are.
        cu_seqlens: int32 or int64 ``[sequences + 1]``, for packed tokens; needed by all that is about sequences. None:
            one sequence, or, with padded tokens, each row is one.
        entropy: ``[tokens]``; needed if ``spec.entropy_coef``, and then carries gradient.
        denominator: what the reduced sum is divided by: a number or 0-D tensor, counted over the *whole* batch, so that
            micro-batches add up to it exactly. None: what the reduction counts in this call.

    Tensors beside ``logprobs`` lie on its device and are converted to its dtype. The work is done in float64.

    Metrics are sums over unmasked tokens. ``tokens``, ``sequences`` and ``rollout_tokens`` (those with a rollout
    log-prob) are what to divide by; ``loss``, ``policy_loss``, ``kl_loss`` and ``entropy_loss`` are reduced already.
    ``ratio`` and ``ratio_sq`` are r at the spec's level; ``clipped_low`` and ``clipped_high`` count tokens whose loss
    a bound on r changed; ``kl`` is against the reference; ``logratio``, ``logratio_sq`` and ``approx_kl`` (k3) are
    against the old policy; ``is_weight`` is the weight used, ``mismatch_logratio``, ``mismatch_ratio`` and
    ``mismatch_ratio_sq`` (its mean less 1 is chi-squared) compare old and rollout; ``rejected`` tokens,
    ``vetoed_sequences`` and ``nonfinite`` tokens are counts.

    Returns:
        :class:`LossOutput`. No unmasked token, or a denominator of 0, gives loss 0 and zero gradients. An advantage of
        exactly 0 contributes no surrogate, even where its ratio overflows. If the loss or gradient of an unmasked token
        is not finite, the metric ``nonfinite`` counts it and the loss is NaN, so that a loop can skip the step.

    Raises:
        ValueError: wrong shape, dtype or device, or a tensor missing that the spec needs; the message says which.

    >>> logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    >>> spec = LossSpec.preset("grpo")
    >>> out = policy_loss(logprobs, torch.tensor([1.0, -1.0]), spec, cu_seqlens=torch.tensor([0, 2, 3]))
    >>> out.loss.backward()
    >>> logprobs.grad
    tensor([-0.2500, -0.2500,  0.5000])
    """

    spec = as_spec(spec)
    dtype, device = plain_tensor("logprobs", logprobs).dtype, logprobs.device
    if entropy is not None and plain_tensor("entropy", entropy).dtype is not dtype:
        entropy = entropy.to(dtype)
    arguments = (
        logprobs,
        as_advantages(advantages, dtype, device),
        *token_numbers(dtype, old_logprobs=old_logprobs, ref_logprobs=ref_logprobs, rollout_logprobs=rollout_logprobs),
        as_mask(mask),
        as_bounds("cu_seqlens", cu_seqlens, device),
        entropy,
        as_denominator(denominator, device),
        spec.pack(),
    )
    if carries_gradient(logprobs, entropy):
        loss, _, _, metrics = _OP(*arguments)
        return LossOutput(loss, metrics, logprobs.detach(), None if entropy is None else entropy.detach())
    loss, _, _, metrics = without_autograd(_OP, *arguments)
    return LossOutput(loss, metrics, logprobs, entropy)


@torch.library.register_fake("kernel_coder::policy_loss")
def _(
    logprobs: Tensor,
    advantages: Tensor,
    old_logprobs: Tensor | None,
    ref_logprobs: Tensor | None,
    rollout_logprobs: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    entropy: Tensor | None,
    denominator: Tensor | None,
    spec: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad_entropy = logprobs.new_empty(0) if entropy is None else logprobs.new_empty(entropy.shape)
    metrics = logprobs.new_empty(len(LOSS_METRICS), dtype=torch.float64)
    return logprobs.new_empty(()), logprobs.new_empty(logprobs.shape), grad_entropy, metrics


class DifferentiableOnce(torch.autograd.Function):
    """``grad_output * gradient``, whose own gradient raises. ``source``: what a second derivative would be taken by."""

    @staticmethod
    def forward(ctx: Any, grad_output: Tensor, gradient: Tensor, source: Tensor) -> Tensor:
        return grad_output * gradient

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError("the policy loss is differentiable once: its second derivative is not defined here")


def _save_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    _, grad_logprobs, grad_entropy, metrics = output
    ctx.mark_non_differentiable(grad_logprobs, grad_entropy, metrics)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[0], inputs[7], grad_logprobs, grad_entropy)


def _scale_gradients(ctx: Any, grad_loss: Tensor | None, *unused: Any) -> tuple[Tensor | None, ...]:
    logprobs, entropy, grad_logprobs, grad_entropy = ctx.saved_tensors
    by_logprobs = by_entropy = None
    if grad_loss is not None and ctx.needs_input_grad[0]:
        by_logprobs = DifferentiableOnce.apply(grad_loss, grad_logprobs, logprobs)
    if grad_loss is not None and ctx.needs_input_grad[7]:
        by_entropy = DifferentiableOnce.apply(grad_loss, grad_entropy, entropy)
    return by_logprobs, None, None, None, None, None, None, by_entropy, None, None


torch.library.register_autograd("kernel_coder::policy_loss", _scale_gradients, setup_context=_save_gradients)
