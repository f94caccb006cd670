"""The policy loss from log-probs, and the output that all forms of the loss share."""

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
    """The output of a loss."""

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
    """Compute the policy-gradient loss of tokens from their log-probs. :class:`LossSpec` defines the loss, with
    formulas.

    Tokens are passed in one of two forms. Packed: ``[tokens]``, all sequences one after another, where sequence ``s``
    is ``[cu_seqlens[s], cu_seqlens[s + 1])``. Padded: ``[sequences, length]``, where each row is a sequence, with a
    mask for the padding. Both give the same bits.

    Args:
        logprobs: float32 or float64, ``[tokens]`` or ``[sequences, length]``, log-probs of the sampled tokens under the
            trained model. Differentiable once: a second derivative raises.
        advantages: one for each sequence, ``[sequences]`` or ``[sequences, 1]``, or one for each token. If there are as
            many sequences as tokens, packed advantages are those of tokens. A list or an array is allowed.
        spec: the loss, or the name of a preset.
        old_logprobs: ``[tokens]`` under the old policy, the denominator of the ratio. None: ``logprobs`` without
            gradient, so the ratio is exactly 1.
        ref_logprobs: ``[tokens]`` under the reference model; needed if ``spec.beta``.
        rollout_logprobs: ``[tokens]`` from the sampler, NaN where it gave none; needed for the spec's mismatch
            correction, veto and ``ratio_to_rollout``.
        mask: bool ``[tokens]``, True for tokens that count; integers other than 0 mean True. A masked token contributes
            nothing, whatever its values are.
        cu_seqlens: int32 or int64 ``[sequences + 1]``, for packed tokens; needed if the loss distinguishes sequences.
            None: there is one sequence, or, with padded tokens, each row is one.
        entropy: ``[tokens]``; needed if ``spec.entropy_coef``, and then carries gradient.
        denominator: divisor of the summed loss, a number or 0-D tensor. Count it over the *whole* batch, so that the
            losses of micro-batches add up exactly. None: the count of this call.

    All tensors must be on the device of ``logprobs`` and are converted to its dtype. The computation is in float64.

    Metrics are sums over unmasked tokens. Divide them by ``tokens``, ``sequences`` or ``rollout_tokens`` (tokens with a
    rollout log-prob); ``loss``, ``policy_loss``, ``kl_loss`` and ``entropy_loss`` are already divided. ``ratio`` and
    ``ratio_sq`` are r at the spec's level; ``clipped_low`` and ``clipped_high`` count tokens whose loss was changed by
    a bound on r; ``kl`` is against the reference; ``logratio``, ``logratio_sq`` and ``approx_kl`` (k3) are against the
    old policy; ``is_weight`` is the weight used, ``mismatch_logratio``, ``mismatch_ratio`` and ``mismatch_ratio_sq``
    (its mean less 1 is chi-squared) compare old and rollout; ``rejected`` tokens, ``vetoed_sequences`` and
    ``nonfinite`` tokens are counts.

    Returns:
        :class:`LossOutput`. Without unmasked tokens, or with a denominator of 0, loss and gradients are 0. An advantage
        of exactly 0 contributes no surrogate, even where its ratio overflows. If the loss or gradient of an unmasked
        token is not finite, the metric ``nonfinite`` counts it and the loss is NaN, so that a loop can skip the step.

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
    """``grad_output * gradient``, which cannot be differentiated again. ``source`` is the input of the loss."""

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
