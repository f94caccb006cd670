"""Activation checkpointing chosen by free memory: each pass recomputes as few layers as its memory allows.

A forward pass keeps activations for its backward pass, in proportion to its tokens. At the first use, two short passes
with and two without checkpointing measure how much. From then on, the number of layers to recompute follows from the
number of tokens and the free memory. A recomputed layer gives the same bits, so this never changes a result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from kernel_coder.policy.parts import causal_lm, layers_of
from kernel_coder.run.shards import local

USABLE_SHARE = 0.85
"""Share of the free GPU memory that activations may fill. The rest is for temporary gradients and fragmentation."""

HEAD_BYTES = 2 << 30
"""Memory that the loss over the head needs, in bytes: the limit of its workspace, which holds a slice of the logits."""

SHORT_TOKENS, LONG_TOKENS = 128, 384
"""Lengths of the two measured passes, in tokens. Their difference gives the memory of one token."""

Compute = Callable[..., Any]
"""Type of :meth:`kernel_coder.policy.model.Policy.compute`."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ActivationMemory:
    """Bytes that a forward pass keeps for its backward pass."""

    fixed: float  # independent of the length, such as weights converted to another dtype
    token: float  # for each token if no layer is recomputed
    layer: float  # saved for each token and each recomputed layer
    layers: int  # layers of the model

    def bytes(self, tokens: int, recomputed: int) -> float:
        """Return the memory of a pass with that many tokens and recomputed layers.

        While the backward pass is in a recomputed layer, that layer's activations exist again.
        """
        again = self.layer if recomputed else 0.0
        return self.fixed + tokens * (self.token - recomputed * self.layer + again)

    def recomputed(self, tokens: int, free: float) -> int:
        """Return the smallest number of recomputed layers with which the pass fits into ``free`` bytes; all if none
        fits.

        >>> memory = ActivationMemory(fixed=0, token=110, layer=10, layers=10)
        >>> [memory.recomputed(tokens=1, free=free) for free in (110, 109, 100, 60, 1)]
        [0, 2, 2, 6, 10]
        """
        fitting = (k for k in range(self.layers + 1) if self.bytes(tokens, k) <= free)
        return next(fitting, self.layers)


class Recomputation:
    """Chooses before every forward pass which layers of a model are recomputed."""

    def __init__(self, model: nn.Module, *, bf16: bool = False) -> None:
        self.model, self.bf16 = model, bf16
        self.memory: ActivationMemory | None = None
        self.logged: int | None = None

    def fit(self, tokens: int, compute: Compute | None = None) -> None:
        """Chooses the layers to recompute in a pass of that many tokens, padding included. On the CPU these are none.

        Args:
            tokens: of the pass.
            compute: the policy's, if its weights are divided. The first call then needs all ranks at the same time.
        """
        device = next(self.model.parameters()).device
        if device.type != "cuda":
            return
        if self.memory is None:
            self.memory = measure(self.model, bf16=self.bf16, compute=compute)
        gradients = sum(  # that the pass will allocate
            local(p).numel() * p.element_size() for p in self.model.parameters() if p.requires_grad and p.grad is None
        )
        free = torch.cuda.mem_get_info(device)[0]
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        count = self.memory.recomputed(tokens, USABLE_SHARE * free - HEAD_BYTES - gradients)
        recompute(self.model, count)
        if count != self.logged:
            self.logged = count
            _log.info("update: %d of %d layers are recomputed", count, self.memory.layers)


def recompute(model: nn.Module, count: int) -> None:
    """Makes the backward pass recompute the first ``count`` layers and no others."""
    layers = layers_of(model)
    if count and not any(hasattr(layer, "_gradient_checkpointing_func") for layer in layers):
        causal_lm(model).gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for number, layer in enumerate(layers):
        layer.gradient_checkpointing = number < count


def measure(model: nn.Module, *, bf16: bool = False, compute: Compute | None = None) -> ActivationMemory:
    """Measures what forward passes keep. Afterwards the model is in its earlier mode, with no layer recomputed."""
    layers = layers_of(model)
    was_training = model.training
    model.train()  # transformers recomputes layers only in training mode
    try:
        kept = {}
        for count in (0, len(layers)):
            recompute(model, count)
            kept[count] = [kept_bytes(model, tokens, bf16, compute) for tokens in (SHORT_TOKENS, LONG_TOKENS)]
    finally:
        recompute(model, 0)
        model.train(was_training)
    (short, long), (short_less, long_less) = kept[0], kept[len(layers)]
    token, less = (long - short) / (LONG_TOKENS - SHORT_TOKENS), (long_less - short_less) / (LONG_TOKENS - SHORT_TOKENS)
    weight = causal_lm(model).get_input_embeddings().weight
    # The inputs of recomputed layers are kept as well, but the hooks do not see them.
    less += len(layers) * weight.shape[1] * weight.element_size()
    return ActivationMemory(
        fixed=max(short - token * SHORT_TOKENS, 0.0),
        token=token,
        layer=(token - less) / len(layers),
        layers=len(layers),
    )


def kept_bytes(model: nn.Module, tokens: int, bf16: bool = False, compute: Compute | None = None) -> int:
    """Return the bytes that a forward pass over one sequence of that length keeps for its backward pass, weights
    excluded."""
    device = next(model.parameters()).device
    compute = compute or (lambda function: function(model))
    kept: dict[int, torch.UntypedStorage] = {}  # by address

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        return tensor

    ids = torch.zeros(1, tokens, dtype=torch.int64, device=device)
    rng = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    keeping = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
    with torch.enable_grad(), keeping, torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        states, weights = compute(partial(_states_and_weights, ids=ids))
    # A weight that was gathered for one layer is empty by now.
    found = sum(storage.nbytes() for storage in kept.values() if storage.data_ptr() not in weights)
    del states
    if device.type == "cuda":
        torch.cuda.set_rng_state(rng, device)
    else:
        torch.set_rng_state(rng)
    return found


def _states_and_weights(model: nn.Module, ids: Tensor) -> tuple[Tensor, set[int]]:
    """Return the decoder's output, and the addresses of the weights that stay in memory after the pass."""
    states = causal_lm(model).get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    return states, {local(parameter.detach()).untyped_storage().data_ptr() for parameter in model.parameters()}


def can_recompute(model: nn.Module) -> bool:
    """Return whether layers can be recomputed one by one, as those of most transformers decoders can."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    try:
        layers = layers_of(model)
    except AttributeError:
        return False
    return bool(layers) and all(isinstance(layer, GradientCheckpointingLayer) for layer in layers)
