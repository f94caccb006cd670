"""The policy loss from hidden states, without the logits."""

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
    plain_tensor,
    token_numbers,
    without_autograd,
)
from kernel_coder.ops.linear_token_logprobs import as_head, as_head_options, empty_gradients, rounds
from kernel_coder.ops.loss_spec import LOSS_METRICS, LossSpec
from kernel_coder.ops.policy_loss import LossOutput


@checked
def linear_grpo_loss(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    advantages: Numbers,
    spec: LossSpec | str,
    *,
    bias: Tensor | None = None,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    temperature: float | Tensor = 1.0,
    old_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Numbers | None = None,
    denominator: float | Tensor | None = None,
    chunk_rows: int | None = None,
    logits_dtype: torch.dtype | None = None,
    weight_grad_dtype: torch.dtype | None = None,
    allow_sync: bool = True,
    skip_zero_advantage: bool = False,
) -> LossOutput:
    """Compute :func:`policy_loss` of :func:`linear_token_logprobs` in one op, whose forward also computes the gradient.

    The loss is a scalar, so the gradient of a token can be computed as soon as its log-prob is known, and the backward
    only scales it. That takes three matrix products (``6 N H V`` operations for N unmasked tokens); computing the
    logits again in the backward would take four. Whole sequences are put into the workspace, since a loss may need all
    log-probs of a sequence before the first gradient. A sequence longer than the workspace is cut if the loss depends
    on tokens one by one; otherwise (sequence ratios, sequence or geometric mismatch, veto, off-policy mask) the
    log-probs of that sequence are computed first, which takes a fourth product. Masked rows cost nothing. Rows whose
    gradient is exactly 0 (zero advantage, clipped, rejected) cost only the first product, or nothing
    (``skip_zero_advantage``). If the weight does not require a gradient (a frozen head), its gradient is not computed;
    if no input does, or under ``no_grad``, only the first product is.

    Memory beside inputs and gradients is the workspace, ``chunk_rows`` rows of logits, by default 256 MiB on the CPU
    and 1.25 GiB on a GPU. The gradient of the weight is summed in float32 inside the products, and rounded to the
    weight's dtype once, in the backward.

    To multiply fewer rows on a GPU, the host must know which rows are masked or have no gradient. It reads this from a
    mask, advantages and cu_seqlens on the CPU; for tensors on the GPU it waits, once for the mask and once in each
    chunk for the rows without gradient. With ``allow_sync=False``, and while a CUDA graph is captured, it never waits,
    and multiplies these rows, too (masked ones as zeros). A loss that depends on whole sequences then needs the fourth
    product if cu_seqlens are on the GPU and the batch is larger than the workspace.

    Args:
        hidden, weight, ids, bias, logit_scale, softcap, temperature, chunk_rows, logits_dtype: see
            :func:`linear_token_logprobs`.
        advantages, spec, old_logprobs, ref_logprobs, rollout_logprobs, mask, cu_seqlens, denominator: see
            :func:`policy_loss`. They are converted to float32 (float64 for float64 hidden states). The mask, advantages
            and cu_seqlens may be on the CPU for any device of ``hidden``.
        weight_grad_dtype: dtype in which the weight's gradient is summed on a GPU: float32 (None), or the dtype of the
            weight, which rounds once in each chunk and saves the memory of a float32 gradient.
        allow_sync: whether the host may wait for the GPU, see above.
        skip_zero_advantage: do not compute tokens of advantage 0 if their loss and gradient are exactly 0. This needs a
            spec without KL term, entropy bonus and ratio penalty, and, if the spec depends on whole sequences, a
            sequence of such tokens only. Reductions still count these tokens; their log-prob is given as 0, and they
            are left out of the metrics.

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
    spec = as_spec(spec)
    hidden, weight, bias = as_head(hidden, weight, bias)
    temperature = as_temperature(temperature, hidden)
    dtype, device = temperature.dtype, hidden.device
    advantages = as_advantages(advantages, dtype, torch.device("cpu"))  # a list may stay on the CPU
    mask = as_mask(mask)
    cu_seqlens = as_bounds("cu_seqlens", cu_seqlens, device)
    if skip_zero_advantage:
        shape = hidden.shape[:-1]
        mask, denominator = without_zero_advantage(shape, advantages, spec, mask, cu_seqlens, denominator)
    differentiates = torch.is_grad_enabled()
    needs = (
        differentiates and hidden.requires_grad,
        differentiates and weight.requires_grad,
        differentiates and bias is not None and bias.requires_grad,
    )
    arguments = (
        hidden,
        weight,
        bias,
        plain_tensor("ids", ids),
        temperature,
        advantages,
        *token_numbers(dtype, old_logprobs=old_logprobs, ref_logprobs=ref_logprobs, rollout_logprobs=rollout_logprobs),
        mask,
        cu_seqlens,
        as_denominator(denominator, device),
        spec.pack(),
        logit_scale,
        *as_head_options(softcap, chunk_rows),
        rounds("logits_dtype", logits_dtype, hidden),
        rounds("weight_grad_dtype", weight_grad_dtype, hidden),
        allow_sync,
        *needs,
    )
    if not any(needs):
        return LossOutput(*without_autograd(_OP, *arguments)[:4])
    # torch.compile can trace only the op itself. The autograd function may overwrite its saved gradients, which saves
    # memory.
    out = _OP(*arguments) if torch.compiler.is_compiling() else _LinearLoss.apply(*arguments)
    return LossOutput(*out[:4])


_OP = torch.ops.kernel_coder.linear_grpo_loss.default


class _LinearLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        loss, metrics, logprobs, entropy, *gradients = _OP(*arguments)
        ctx.mark_non_differentiable(metrics, logprobs, entropy)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*arguments[:3])
        ctx.gradients = gradients
        return loss, metrics, logprobs, entropy

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor | None, *unused: Any) -> tuple[Any, ...]:
        if grad_loss is None:
            return (None,) * _INPUTS
        sources, gradients, last = ctx.saved_tensors, ctx.gradients, _is_last_backward()
        if last:
            ctx.gradients = None
        scaled = [
            _scaled(grad_loss, gradient, source, last) if need else None
            for source, gradient, need in zip(sources, gradients, ctx.needs_input_grad[:3], strict=True)
        ]
        return (*scaled, *(None,) * (_INPUTS - 3))


def without_zero_advantage(
    shape: torch.Size,
    advantages: Tensor,
    spec: LossSpec,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    denominator: float | Tensor | None,
) -> tuple[Tensor | None, float | Tensor | None]:
    """Return the mask without the tokens whose advantage 0 makes their loss 0, and the denominator that still counts
    them.

    ``shape`` is that of the tokens; the returned mask is flat. It is on the CPU if all inputs are, otherwise on the
    GPU, without waiting for it.
    """
    if spec.beta != 0 or spec.entropy_coef != 0 or spec.ratio_penalty != 0:
        return mask, denominator
    given = [x.device for x in (advantages, mask, cu_seqlens) if x is not None]
    device = next((device for device in given if device.type != "cpu"), given[0])
    tokens = shape.numel()
    sequences = shape[0] if len(shape) == 2 else 1
    if mask is None:
        counted = torch.ones(tokens, dtype=torch.bool, device=device)
    else:
        counted = mask.to(device, non_blocking=True).reshape(-1)
    whole = tokens // max(1, sequences) * torch.arange(sequences + 1, device=device)
    bounds = whole if cu_seqlens is None else cu_seqlens.to(device, torch.int64, non_blocking=True)
    lengths = bounds.diff()
    active = (advantages.detach().to(device, non_blocking=True) != 0).reshape(-1)
    if active.numel() != tokens:
        active = active.repeat_interleave(lengths, output_size=tokens)
    elif spec.reduction == "sequence_mean" or spec.needs_whole_sequences:
        before = torch.nn.functional.pad(active.cumsum(0), (1, 0))
        any_active = before[bounds[1:]] > before[bounds[:-1]]
        active = any_active.repeat_interleave(lengths, output_size=tokens)
    if denominator is None:
        before = torch.nn.functional.pad(counted.cumsum(0), (1, 0))
        match spec.reduction:
            case "sum":
                denominator = 1.0
            case "token_mean":
                denominator = before[-1].double()
            case _:
                denominator = (before[bounds[1:]] > before[bounds[:-1]]).sum().double()
    return counted & active, denominator


@torch.library.register_fake("kernel_coder::linear_grpo_loss")
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, temperature: Tensor, *rest: Any) -> Any:
    metrics = hidden.new_empty(len(LOSS_METRICS), dtype=torch.float64)
    tokens = [hidden.new_empty(hidden.shape[:-1], dtype=temperature.dtype) for _ in range(2)]
    by_hidden, by_weight, by_bias = empty_gradients(hidden, weight, *rest[-3:])
    rounds_weight_grad = rest[-5]
    by_weight = by_weight if rounds_weight_grad else hidden.new_empty(by_weight.shape, dtype=temperature.dtype)
    return hidden.new_empty((), dtype=temperature.dtype), metrics, *tokens, by_hidden, by_weight, by_bias


@torch.library.register_fake("kernel_coder::scaled_gradient")
def _(gradient: Tensor, factor: Tensor, like: Tensor) -> Tensor:
    return gradient.new_empty(gradient.shape, dtype=like.dtype)


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


def _is_last_backward() -> bool:
    """Return whether the running backward frees its graph, so that the tensors saved by the forward may be
    overwritten."""
    keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return keeps_graph is not None and not keeps_graph() and not torch.is_grad_enabled()


def _scaled(grad_loss: Tensor, gradient: Tensor, source: Tensor, last: bool) -> Tensor:
    if last and gradient.dim() == 2 and gradient.dtype == source.dtype:
        _C.scale_gradient(gradient, grad_loss)  # reads and writes nothing where the factor is 1
        return gradient
    return _Scaled.apply(grad_loss, gradient, source)


class _Scaled(torch.autograd.Function):
    """``grad_output * gradient`` in the dtype of ``source``, rounded once. Its own gradient raises."""

    @staticmethod
    def forward(ctx: Any, grad_output: Tensor, gradient: Tensor, source: Tensor) -> Tensor:
        return _C.scaled_gradient(gradient, grad_output, source)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError("the policy loss is differentiable once: its second derivative is not defined here")


torch.library.register_autograd("kernel_coder::linear_grpo_loss", _backward, setup_context=_save)
