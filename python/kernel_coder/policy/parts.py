"""The parts of a transformers model that training needs: decoder, layers, head, and the dtype of its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Head:
    """The last layer in the form of ``ops.linear_grpo_loss``: logits = softcap(logit_scale (hidden weight^T +
    bias))."""

    weight: Tensor  # [V, H]
    bias: Tensor | None = None  # [V]
    logit_scale: float = 1.0
    softcap: float | None = None


def causal_lm(model: nn.Module) -> Any:
    """Return the transformers model inside a PEFT wrapper, or the model itself. Adapters stay in its layers."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


def head_of(model: nn.Module) -> Head | None:
    """Return the head, if ``ops.linear_grpo_loss`` can compute it: a linear layer, and at most a scale or a soft
    cap."""
    base = causal_lm(model)
    layer = base.get_output_embeddings()
    if type(layer) is not nn.Linear or not hasattr(base, "get_decoder"):
        return None
    config = base.config
    # Cohere multiplies the logits by logit_scale, and Granite divides them by logits_scaling.
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    softcap = getattr(config, "final_logit_softcapping", None)
    if softcap is not None and scale != 1.0:
        return None
    return Head(layer.weight, layer.bias, scale, None if softcap is None else float(softcap))


def layers_of(model: nn.Module) -> list[Any]:
    """Return the decoder's layers, from the first to the last."""
    return list(causal_lm(model).get_decoder().layers)


def with_dtype(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Converts the weights in place and returns the model. Buffers keep their dtype.

    The frequencies of rotary embeddings are buffers; rounded to 16 bits they would be off by radians after a thousand
    tokens.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model
