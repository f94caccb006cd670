"""A faster forward pass for PEFT's LoRA adapters.

PEFT keeps the adapters of a bfloat16 model in float32, because their optimiser needs that precision. Without autocast
it also computes them in float32: it converts the input, does two float32 products, and moves the result through memory
three more times to scale, add and round it. Here :math:`y = W x + s B (A x)` takes two products: :math:`A x` in the
dtype of :math:`W x`, and one that adds :math:`s B (A x)` to :math:`W x` in place. Weights and gradients stay in
float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


def quicken(model: nn.Module) -> int:
    """Makes every plain LoRA layer use the faster forward pass, and returns the number of these layers.

    PEFT still computes all other layers: variants such as DoRA, dropout in training, several adapters at once,
    quantised layers. It also computes all layers while adapters are disabled or merged.

    >>> import peft, torch
    >>> model = peft.get_peft_model(nn.Sequential(nn.Linear(8, 4)), peft.LoraConfig(r=2, target_modules="all-linear"))
    >>> quicken(model), model(torch.zeros(3, 8)).shape
    (1, torch.Size([3, 4]))
    """
    from peft.tuners.lora import Linear

    layers = [layer for layer in model.modules() if type(layer) is Linear and type(layer.base_layer) is nn.Linear]
    for layer in layers:
        layer.forward = functools.partial(_forward, layer, layer.forward)  # type: ignore[method-assign]
    return len(layers)


def _forward(layer: Any, plain: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    name = _adapter(layer)
    if name is None or args or kwargs:
        return plain(x, *args, **kwargs)
    down, up, scale = layer.lora_A[name].weight, layer.lora_B[name].weight, layer.scaling[name]
    made: Tensor = layer.base_layer(x)
    dtype = made.dtype  # the dtype of autocast, if it is on
    inner = nn.functional.linear(x.to(dtype), down.to(dtype)).reshape(-1, down.shape[0])
    made.view(-1, made.shape[-1]).addmm_(inner, up.to(dtype).t(), alpha=scale)
    return made


def _adapter(layer: Any) -> str | None:
    """Return the name of the layer's only active adapter if it is a plain one, else None."""
    if layer.disable_adapters or layer.merged or len(layer.active_adapters) != 1:
        return None
    (name,) = layer.active_adapters
    if name not in layer.lora_A or name in layer.lora_variant or layer.lora_B[name].bias is not None:
        return None
    dropout = layer.lora_dropout[name]
    if layer.training and not isinstance(dropout, nn.Identity) and dropout.p > 0:
        return None
    return str(name)
