"""Log-probs of sampled tokens from hidden states, without the logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernel_coder import _C
from kernel_coder.ops._errors import checked
from kernel_coder.ops._inputs import (
    as_mask,
    as_temperature,
    carries_gradient,
    plain_tensor,
    under_autocast,
    without_autograd,
)
from kernel_coder.ops.token_logprobs import TokenLogprobs


@checked
def linear_token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    *,
    bias: Tensor | None = None,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    temperature: float | Tensor = 1.0,
    mask: Tensor | None = None,
    entropy: bool = False,
    chunk_rows: int | None = None,
    logits_dtype: torch.dtype | None = None,
    allow_sync: bool = True,
) -> TokenLogprobs:
    """Compute :func:`token_logprobs` of ``hidden @ weight.T`` a few rows at a time, without storing all logits.

    ::

        x = logit_scale (hidden @ weight.T + bias);  logits = softcap tanh(x / softcap) if softcap else x

    Logits are float32 (float64 for float64 input) for any dtype of the head, without a float32 copy of it. Memory
    beside inputs and gradients is one workspace of ``chunk_rows`` rows, by default 256 MiB on the CPU and 1.25 GiB on a
    GPU. With N unmasked tokens, of which N' have a gradient, the forward costs ``2 N H V`` operations and the backward,
    which computes the logits again, ``6 N' H V``. :func:`linear_grpo_loss` does both in ``6 N H V``. Masked rows cost
    nothing if the host knows them: for work on a GPU, from a mask on the CPU or by waiting for the GPU
    (``allow_sync``).

    The bits of a row depend on that row alone, because rows are multiplied in whole blocks of 16, for which this holds
    with MKL and cuBLAS (tested for 1 to 70 rows, shuffled, cut into chunks, masked). So scoring without a gradient and
    :func:`linear_grpo_loss` agree bit for bit, and the ratio of an unchanged policy is exactly 1. There is one
    exception: on Hopper and newer GPUs, for vocabularies of some ten thousand tokens and more, the kernel of the loss
    sums in another order, and the two agree to 4e-6.

    Args:
        hidden: ``[tokens, hidden_size]`` or ``[sequences, length, hidden_size]``, float32, float64, bfloat16 or
            float16. Under autocast it is converted to autocast's dtype, as are weight and bias.
        weight: ``[vocab, hidden_size]``, the dtype of ``hidden``.
        ids: int64, ``[tokens]`` or ``[sequences, length]``, in ``[0, vocab)`` where unmasked.
        bias: ``[vocab]``, the dtype of ``hidden``.
        logit_scale, softcap: as in the formula (Cohere, Gemma).
        temperature: more than 0; a number, or one for each token. It divides the logits.
        mask: for each token a bool, or an integer that is 0 if it is masked; a masked row gives 0.
        entropy: whether to compute the entropy.
        chunk_rows: rows of the workspace; None: as many as fit into the default size.
        logits_dtype: dtype of the workspace on a GPU: float32 (None), or the dtype of ``hidden``, which halves the
            workspace and rounds each logit like a model that returns logits in 16 bits. The CPU always uses float32.
        allow_sync: whether the host may wait for the GPU to learn which rows are masked or have no gradient. Otherwise,
            and while a CUDA graph is captured, these rows are multiplied, too.

    Returns:
        :class:`TokenLogprobs`, differentiable once in hidden, weight and bias. The gradient of the weight is summed in
        float32 and rounded once.

    Raises:
        ValueError: wrong shape, dtype, device, id, temperature, softcap or chunk_rows.

    >>> hidden, weight = torch.eye(2), torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    >>> linear_token_logprobs(hidden, weight, torch.tensor([0, 1])).logprobs
    tensor([-0.5514, -0.2395])
    """
    hidden, weight, bias = as_head(hidden, weight, bias)
    arguments = (
        hidden,
        weight,
        bias,
        plain_tensor("ids", ids),
        as_temperature(temperature, hidden),
        as_mask(mask),
        logit_scale,
        *as_head_options(softcap, chunk_rows),
        rounds("logits_dtype", logits_dtype, hidden),
        allow_sync,
    )
    if carries_gradient(hidden, weight, bias):
        logprobs, entropies, _, _ = _OP(*arguments)
    else:
        logprobs, entropies, _, _ = without_autograd(_OP, *arguments)
    return TokenLogprobs(logprobs, entropies if entropy else None)


_OP = torch.ops.kernel_coder.linear_token_logprobs.default


def as_head(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return hidden states and head as tensors that can be multiplied, under autocast in its dtype."""
    plain_tensor("hidden", hidden)
    plain_tensor("weight", weight)
    if bias is not None:
        plain_tensor("bias", bias)
    if not torch.is_autocast_enabled(hidden.device.type):
        return hidden, weight, bias
    cast = under_autocast(hidden.device, hidden, weight, bias)
    assert cast[0] is not None
    assert cast[1] is not None
    return cast[0], cast[1], cast[2]


def as_head_options(softcap: float | None, chunk_rows: int | None) -> tuple[float, int]:
    """Return softcap and chunk_rows in the form of the ops, where 0 stands for None."""
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap must be more than 0, or None; got {softcap}")
    if chunk_rows is not None and chunk_rows < 1:
        raise ValueError(f"chunk_rows must be at least 1, or None; got {chunk_rows}")
    return softcap or 0.0, chunk_rows or 0


def rounds(name: str, dtype: torch.dtype | None, hidden: Tensor) -> bool:
    """Return whether ``dtype`` is that of ``hidden`` and not that of the sums (None)."""
    sums = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    if dtype is not None and dtype not in (sums, hidden.dtype):
        raise ValueError(f"{name} must be {sums}, the dtype of hidden ({hidden.dtype}), or None; got {dtype}")
    return dtype is not None and dtype == hidden.dtype


@torch.library.register_fake("kernel_coder::linear_token_logprobs")
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, temperature: Tensor, *rest: Any) -> Any:
    return tuple(hidden.new_empty(hidden.shape[:-1], dtype=temperature.dtype) for _ in range(4))


@torch.library.register_fake("kernel_coder::linear_token_logprobs_backward")
def _(by_logprobs: Any, by_entropy: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Any:
    return empty_gradients(hidden, weight, *rest[-3:])


def empty_gradients(hidden: Tensor, weight: Tensor, *needs: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return tensors with the shapes of the gradients of hidden, weight and bias; a gradient that is not needed is
    empty."""
    need_hidden, need_weight, need_bias = needs
    return (
        hidden.new_empty(hidden.shape if need_hidden else (0, hidden.shape[-1])),
        weight.new_empty(weight.shape[0] if need_weight else 0, weight.shape[1]),
        weight.new_empty(weight.shape[0] if need_bias else 0),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, options = inputs[:6], inputs[6:]
    ctx.mark_non_differentiable(output[2], output[3])
    ctx.set_materialize_grads(False)
    ctx.options = options
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None, *unused: Any) -> tuple[Any, ...]:
    if grad_logprobs is None and grad_entropy is None:
        return (None,) * 11
    needs = ctx.needs_input_grad[:3]
    gradients = _C.linear_token_logprobs_backward(grad_logprobs, grad_entropy, *ctx.saved_tensors, *ctx.options, *needs)
    return (*(gradient if need else None for gradient, need in zip(gradients, needs, strict=True)), *(None,) * 8)


def _backward_twice(ctx: Any, *grads: Any) -> Any:
    raise RuntimeError("linear_token_logprobs is differentiable once: its second derivative is not defined here")


torch.library.register_autograd("kernel_coder::linear_token_logprobs", _backward, setup_context=_save)
torch.library.register_autograd("kernel_coder::linear_token_logprobs_backward", _backward_twice)
