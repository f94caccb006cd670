"""The decoder's layers compiled, all of it recorded as CUDA graphs, and the trials that say whether that works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernel_coder.policy.model import Policy
from kernel_coder.policy.recomputation import layers_of
from kernel_coder.sft.attention import StatesOf, hidden_states
from kernel_coder.sft.graphs import CudaRecorder, GraphedBody, Recorder, why_not
from kernel_coder.sft.packing import PackedBatch
from kernel_coder.sft.update import backward
from kernel_coder.train.update import METRIC

AGREES = 5e-2
"""Largest relative difference of a graph's gradient to that without; bfloat16 makes 1e-2, another batch makes 1."""

SAMPLED = 4096
"""About so many elements of each weight's gradient are compared."""


@dataclass(frozen=True, slots=True)
class Acceleration:
    """What became of ``model.torch_compile``.

    Attributes:
        states_of: computes hidden states, by replaying graphs if there are any.
        compiled: the layers are.
        notes: what is in the way of anything that is not.
    """

    states_of: StatesOf = hidden_states
    compiled: bool = False
    notes: tuple[str, ...] = ()


def accelerate(
    policy: Policy, batch: PackedBatch, *, bf16: bool = False, recorder: Recorder | None = None
) -> Acceleration:
    """Compiles the layers and, on a GPU, records forward and backward. What fails is left as it was.

    ``batch`` has the shape of the run's. ``policy`` must decide nothing by itself before a pass
    (:attr:`Policy.recomputation`).
    """
    if problem := compile_layers(policy, batch, bf16=bf16):
        return Acceleration(notes=(f"model.torch_compile: the layers are not compiled: {problem}",))
    if policy.device.type == "cuda":
        recorder = recorder or CudaRecorder(policy.device)
    if recorder is None:
        return Acceleration(compiled=True)
    found = record_body(policy, batch, recorder, bf16=bf16)
    if isinstance(found, str):
        return Acceleration(compiled=True, notes=(f"model.torch_compile: no CUDA graphs: {found}",))
    return Acceleration(found, compiled=True)


def compile_layers(policy: Policy, batch: PackedBatch, *, bf16: bool = False) -> str | None:
    """Compiles layer by layer, of which all share the code; returns what is in the way, if anything, and leaves them.

    ``batch`` has the shape of the run's. It goes forward and backward once, beside as much memory as the optimiser
    will take, so that what cannot be compiled is known before the first step. Gradients of it are not kept.
    """
    layers = layers_of(policy.model)
    for layer in layers:
        layer.compile()
    try:
        with as_in_a_run(policy):
            backward(policy, [batch], 1.0, bf16=bf16).tolist()
    except Exception as error:  # whatever a compiler raises: the run goes on without it
        for layer in layers:
            layer._compiled_call_impl = None
        return reason_of(error)
    return None


def record_body(policy: Policy, batch: PackedBatch, recorder: Recorder, *, bf16: bool = False) -> GraphedBody | str:
    """The graphs, or what is in the way of them.

    They must give what is computed without, of ``batch`` and of another of the same shape, so that a graph which looks
    at none of its inputs is found out.
    """
    if reason := why_not(policy.model, bf16=bf16):
        return reason
    trials = (batch, mirrored(batch))
    _give_memory_back(policy)
    try:
        with as_in_a_run(policy):
            expected = [sample(policy, trial, hidden_states, bf16=bf16) for trial in trials]
            _give_memory_back(policy)
            body = GraphedBody(policy.model, batch, recorder, bf16=bf16)
            found = [sample(policy, trial, body, bf16=bf16) for trial in trials]
    except Exception as error:  # whatever CUDA raises
        problem = reason_of(error)
    else:
        apart = max(relative_error(now, then) for now, then in zip(found, expected, strict=True))
        problem = "" if apart <= AGREES else f"they are off by {apart:.2g}"
        if not problem:
            return body
        del body
    _give_memory_back(policy)
    return problem


@contextmanager
def as_in_a_run(policy: Policy) -> Iterator[None]:
    """In training, beside the optimiser's memory. Leaves no gradients."""
    policy.model.train()
    moments = [torch.empty_like(weight) for weight in policy.trainable().values() for _ in range(2)]
    try:
        yield
    finally:
        del moments
        policy.model.zero_grad(set_to_none=True)
        policy.model.eval()


def sample(policy: Policy, batch: PackedBatch, states_of: StatesOf, *, bf16: bool) -> tuple[Tensor, Tensor]:
    """The loss of a pass, and elements of each weight's gradient."""
    policy.model.zero_grad(set_to_none=True)
    total = float(max(batch.num_targets, 1))
    sums = backward(policy, [batch], total, bf16=bf16, states_of=states_of)
    gradients = (weight.grad for weight in policy.trainable().values() if weight.grad is not None)
    some = [gradient.flatten()[:: max(1, gradient.numel() // SAMPLED)].double() for gradient in gradients]
    policy.model.zero_grad(set_to_none=True)
    return sums[METRIC["loss"]].clone(), torch.cat(some)


def relative_error(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> float:
    """The larger one, of the loss or of the gradient; infinite if anything is not finite."""
    errors = [float((now - then).norm() / then.norm()) for now, then in zip(found, expected, strict=True)]
    return max(error if error == error else float("inf") for error in errors)


def mirrored(batch: PackedBatch) -> PackedBatch:
    """The same tokens in reverse order: other ids, other positions, other ends of sequences."""
    lengths = batch.cu_seqlens.diff().flip(0)
    ends = lengths.cumsum(0)
    starts = (ends - lengths).repeat_interleave(lengths)
    return replace(
        batch,
        ids=batch.ids.flip(0),
        targets=batch.targets.flip(0),
        mask=batch.mask.flip(0),
        positions=torch.arange(len(batch.ids), device=starts.device) - starts,
        cu_seqlens=torch.cat([ends.new_zeros(1), ends]).to(batch.cu_seqlens.dtype),
    )


def _give_memory_back(policy: Policy) -> None:
    if policy.device.type == "cuda":
        torch.cuda.empty_cache()


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
