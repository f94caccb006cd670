"""Activation checkpointing chosen by free memory: a forward pass recomputes as few layers as it must.

What a pass keeps for its backward is proportional to its tokens. Two short passes with and two without checkpointing
measure it once; from then on it is arithmetic: so many tokens, so much memory free, so many layers recomputed. A
recomputed layer has the same bits, so none of this changes a result.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from kernel_coder.policy.model import Policy

SPENT = 0.85
"""Part of the free memory that is counted on; the rest is for gradients on their way and for fragments."""

HEAD_BYTES = 2 << 30
"""What the head's loss works in (its bounded workspace), logits of a slice included."""

SHORT, LONG = 128, 384
"""Tokens of the passes that are measured."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Appetite:
    """Bytes that a forward pass keeps for its backward."""

    fixed: float  # whatever its length: weights in another dtype
    token: float  # for each token, with no layer recomputed
    layer: float  # less for each token and each layer that is recomputed
    layers: int

    def bytes(self, tokens: int, recomputed: int) -> float:
        """With so many layers recomputed; one of them is whole again while the backward is in it."""
        again = self.layer if recomputed else 0.0
        return self.fixed + tokens * (self.token - recomputed * self.layer + again)

    def recomputed(self, tokens: int, free: float) -> int:
        """As few layers as let the pass fit.

        >>> appetite = Appetite(fixed=0, token=110, layer=10, layers=10)
        >>> [appetite.recomputed(tokens=1, free=free) for free in (110, 109, 100, 60, 1)]
        [0, 2, 2, 6, 10]
        """
        fitting = (k for k in range(self.layers + 1) if self.bytes(tokens, k) <= free)
        return next(fitting, self.layers)


class Recomputation:
    """Which layers of a model are recomputed; asked before every forward pass."""

    def __init__(self, model: nn.Module, *, bf16: bool = False) -> None:
        self.model, self.bf16 = model, bf16
        self.appetite: Appetite | None = None
        self.told: int | None = None

    def fit(self, tokens: int) -> None:
        """For a pass of so many tokens, padding included. On the CPU nothing is ever recomputed."""
        device = next(self.model.parameters()).device
        if device.type != "cuda":
            return
        if self.appetite is None:
            self.appetite = measure(self.model, bf16=self.bf16)
        ungraded = sum(
            p.numel() * p.element_size() for p in self.model.parameters() if p.requires_grad and p.grad is None
        )
        free = torch.cuda.mem_get_info(device)[0]
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        count = self.appetite.recomputed(tokens, SPENT * free - HEAD_BYTES - ungraded)
        recompute(self.model, count)
        if count != self.told:
            self.told = count
            _log.info("update: %d of %d layers are recomputed", count, self.appetite.layers)


def spend_memory(policy: Policy, tokens: int) -> None:
    """Before a forward pass of so many tokens with gradients."""
    if policy.recomputation is not None:
        policy.recomputation.fit(tokens)


def recompute(model: nn.Module, count: int) -> None:
    """Lets the first ``count`` layers be recomputed in the backward pass, and no other."""
    layers = layers_of(model)
    if count and not any(hasattr(layer, "_gradient_checkpointing_func") for layer in layers):
        _base(model).gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for number, layer in enumerate(layers):
        layer.gradient_checkpointing = number < count


def measure(model: nn.Module, *, bf16: bool = False) -> Appetite:
    """What forward passes keep. Leaves mode and layers as they were, all of these without checkpointing."""
    layers = layers_of(model)
    was_training = model.training
    model.train()  # transformers recomputes nothing in a model that is not in training
    try:
        kept = {}
        for count in (0, len(layers)):
            recompute(model, count)
            kept[count] = [kept_bytes(model, tokens, bf16) for tokens in (SHORT, LONG)]
    finally:
        recompute(model, 0)
        model.train(was_training)
    (short, long), (short_less, long_less) = kept[0], kept[len(layers)]
    token, less = (long - short) / (LONG - SHORT), (long_less - short_less) / (LONG - SHORT)
    weight = _base(model).get_input_embeddings().weight
    less += len(layers) * weight.shape[1] * weight.element_size()  # what goes into them stays, out of the hooks' sight
    return Appetite(
        fixed=max(short - token * SHORT, 0.0), token=token, layer=(token - less) / len(layers), layers=len(layers)
    )


def kept_bytes(model: nn.Module, tokens: int, bf16: bool = False) -> int:
    """What a forward pass over one sequence keeps for its backward, beside the weights."""
    device = next(model.parameters()).device
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        return tensor

    ids = torch.zeros(1, tokens, dtype=torch.int64, device=device)
    rng = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    keeping = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
    with torch.enable_grad(), keeping, torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        states = _base(model).get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    del states
    if device.type == "cuda":
        torch.cuda.set_rng_state(rng, device)
    else:
        torch.set_rng_state(rng)
    return sum(kept.values())


def layers_of(model: nn.Module) -> list[Any]:
    return list(_base(model).get_decoder().layers)


def can_recompute(model: nn.Module) -> bool:
    """Whether layers can be chosen one by one: those of transformers' decoders can."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    try:
        layers = layers_of(model)
    except AttributeError:
        return False
    return bool(layers) and all(isinstance(layer, GradientCheckpointingLayer) for layer in layers)


def _base(model: nn.Module) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
