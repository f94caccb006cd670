"""Log-probs of sampled tokens, and the entropies of their distributions."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernel_coder import _C
from kernel_coder.ops._errors import checked
from kernel_coder.ops._inputs import as_mask, as_temperature, carries_gradient, plain_tensor, without_autograd

_OP = torch.ops.kernel_coder.token_logprobs.default


class TokenLogprobs(NamedTuple):
    """The output of the log-prob ops: float32, or float64 for float64 input."""

    #: ``[tokens]`` or ``[sequences, length]``, differentiable.
    logprobs: Tensor
    #: The same shape, differentiable; None if it was not computed.
    entropy: Tensor | None


@checked
def token_logprobs(
    logits: Tensor,
    ids: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    mask: Tensor | None = None,
    entropy: bool = False,
) -> TokenLogprobs:
    """Compute for each row the log-prob of one token, ``log softmax(logits / temperature)[ids]``, and the entropy.

    With ``z = logits / temperature``, ``p = softmax(z)`` and ``y`` the token::

        logprob = -softplus(logsumexp_{j != y} z_j - z_y)      d logprob / d z_j = [j = y] - p_j
        entropy = -sum_j p_j log p_j                           d entropy / d z_j = -p_j (log p_j + entropy)

    The token itself is left out of the log-sum-exp. So even for a token that leads by 17 nats or more, log-prob and
    gradient ``1 - p`` have float32's seven digits, where ``z_y - logsumexp(z)`` would give 0 for both. The entropy is a
    sum of terms that are at least 0, so there is no cancellation.

    The logits are read once; memory beside the outputs does not grow with the vocabulary. The backward reads them once
    more and writes one gradient of their shape and dtype; rows without gradient are not read. The bits of a row depend
    on that row alone (on a GPU also on its alignment within 16 bytes), not on other rows, the number of threads, or
    whether there is a gradient.

    Args:
        logits: ``[tokens, vocab]`` or ``[sequences, length, vocab]``, float32, float64, bfloat16 or float16. Rows may
            have any stride, as in ``logits[:, :-1]``; nothing is copied unless the elements of a row are not adjacent.
            ``-inf`` is a token of probability 0. NaN or ``+inf`` makes its own row NaN.
        ids: int64, ``[tokens]`` or ``[sequences, length]``, in ``[0, vocab)`` where unmasked.
        temperature: more than 0; a number, or one for each token.
        mask: for each token a bool, or an integer that is 0 if it is masked; a masked row gives 0 and costs nothing,
            whatever its id is.
        entropy: whether to compute the entropy.

    Returns:
        :class:`TokenLogprobs`. Differentiable once; a second derivative raises.

    Raises:
        ValueError: wrong shape, dtype, device, id or temperature; the message says which.

    >>> logits = torch.tensor([[0.0, 0.0], [0.0, 30.0]])
    >>> out = token_logprobs(logits, torch.tensor([0, 1]), entropy=True)
    >>> out.logprobs
    tensor([-6.9315e-01, -9.3576e-14])
    >>> out.entropy
    tensor([6.9315e-01, 2.9009e-12])
    """
    arguments = (
        plain_tensor("logits", logits),
        plain_tensor("ids", ids),
        as_temperature(temperature, logits),
        as_mask(mask),
    )
    if carries_gradient(logits):
        logprobs, entropies, _, _ = _OP(*arguments)
    else:
        logprobs, entropies, _, _ = without_autograd(_OP, *arguments)
    return TokenLogprobs(logprobs, entropies if entropy else None)


@torch.library.register_fake("kernel_coder::token_logprobs")
def _(logits: Tensor, ids: Tensor, temperature: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out = logits.new_empty(logits.shape[:-1], dtype=temperature.dtype)
    return out, torch.empty_like(out), torch.empty_like(out), torch.empty_like(out)


@torch.library.register_fake("kernel_coder::token_logprobs_backward")
def _(
    grad_logprobs: Tensor | None,
    grad_entropy: Tensor | None,
    logits: Tensor,
    ids: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    logprobs: Tensor,
    entropy: Tensor,
    max: Tensor,
    sum: Tensor,
) -> Tensor:
    return logits.new_empty(logits.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, ids, temperature, mask = inputs
    ctx.mark_non_differentiable(output[2], output[3])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(logits, ids, temperature, mask, *output)


def _backward(ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None, *unused: Any) -> tuple[Any, ...]:
    if grad_logprobs is None and grad_entropy is None:
        return None, None, None, None
    return _C.token_logprobs_backward(grad_logprobs, grad_entropy, *ctx.saved_tensors), None, None, None


def _backward_twice(ctx: Any, *grads: Any) -> Any:
    raise RuntimeError("token_logprobs is differentiable once: its second derivative is not defined here")


torch.library.register_autograd("kernel_coder::token_logprobs", _backward, setup_context=_save)
torch.library.register_autograd("kernel_coder::token_logprobs_backward", _backward_twice)
