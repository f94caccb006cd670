"""The decoder's layers compiled, and the trial that says whether they can be."""

from __future__ import annotations

import torch

from kernel_coder.sft.packing import PackedBatch
from kernel_coder.sft.update import backward
from kernel_coder.train.memory import layers_of
from kernel_coder.train.model import Policy


def compile_layers(policy: Policy, batch: PackedBatch, *, bf16: bool = False) -> str | None:
    """Compiles layer by layer, of which all share the code; returns what is in the way, if anything, and leaves them.

    ``batch`` has the shape of the run's. It goes forward and backward once, beside as much memory as the optimiser
    will take, so that what cannot be compiled is known before the first step. Gradients of it are not kept.
    """
    layers = layers_of(policy.model)
    for layer in layers:
        layer.compile()
    problem = None
    policy.model.train()
    try:
        moments = [torch.empty_like(weight) for weight in policy.trainable().values() for _ in range(2)]
        backward(policy, [batch], 1.0, bf16=bf16).tolist()
        del moments
    except Exception as error:  # whatever a compiler raises: the run goes on without it
        problem = reason_of(error)
        for layer in layers:
            layer._compiled_call_impl = None
    policy.model.zero_grad(set_to_none=True)
    policy.model.eval()
    return problem


def reason_of(error: Exception) -> str:
    """One line; of a compiler's error what it is about.

    >>> reason_of(ValueError("no such thing\\nat all"))
    'ValueError: no such thing'
    """
    inner = getattr(error, "inner_exception", None)
    if isinstance(inner, Exception):
        return reason_of(inner)
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__
