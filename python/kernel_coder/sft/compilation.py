"""Compiles the decoder's layers, records them as CUDA graphs, and tests whether both work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernel_coder.policy.model import Policy
from kernel_coder.policy.parts import layers_of
from kernel_coder.sft.attention import StatesOf, hidden_states
from kernel_coder.sft.graphs import CudaRecorder, GraphedBody, Recorder, why_not
from kernel_coder.sft.packing import PackedBatch
from kernel_coder.sft.update import backward
from kernel_coder.train.update import METRIC

GRAPH_TOLERANCE = 5e-2
"""Upper limit for the relative difference between the gradients with and without a CUDA graph. Rounding in bfloat16
gives 1e-2; the gradient of another batch gives 1."""

COMPARED_ELEMENTS = 4096
"""Approximate number of elements of each weight's gradient that are compared."""


@dataclass(frozen=True, slots=True)
class Acceleration:
    """The result of ``model.torch_compile``.

    Attributes:
        states_of: computes hidden states, by replaying CUDA graphs if there are any.
        compiled: whether the layers are compiled.
        notes: why something was not compiled or recorded.
    """

    states_of: StatesOf = hidden_states
    compiled: bool = False
    notes: tuple[str, ...] = ()


def accelerate(
    policy: Policy, batch: PackedBatch, *, bf16: bool = False, recorder: Recorder | None = None
) -> Acceleration:
    """Compiles the layers and, on a GPU, records forward and backward pass. A step that fails is undone.

    Args:
        policy: the model. Its ``recomputation`` must be None, since it would change the layers before a pass.
        batch: any batch of the shape that all batches of the run have.
        bf16: compute in bfloat16.
        recorder: records the passes; None: CUDA graphs on a GPU, nothing on the CPU.
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
    """Compiles each layer; all share one compiled function. Returns the reason if that fails, and undoes it.

    ``batch`` has the shape of all batches of the run. One forward and backward pass over it is made with as much memory
    in use as the optimiser will need, so that a failure occurs before the first step. Its gradients are discarded.
    """
    layers = layers_of(policy.model)
    for layer in layers:
        layer.compile()
    try:
        with as_in_a_run(policy):
            backward(policy, [batch], 1.0, bf16=bf16).tolist()
    except Exception as error:  # a compiler can raise anything; the run continues without it
        for layer in layers:
            layer._compiled_call_impl = None
        return reason_of(error)
    return None


def record_body(policy: Policy, batch: PackedBatch, recorder: Recorder, *, bf16: bool = False) -> GraphedBody | str:
    """Records the graphs; returns the reason if that fails.

    The graphs must give the gradients that are computed without them, for ``batch`` and for another batch of the same
    shape. The second one detects a graph that ignores its inputs.
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
    except Exception as error:  # CUDA can raise anything
        problem = reason_of(error)
    else:
        apart = max(relative_error(now, then) for now, then in zip(found, expected, strict=True))
        problem = "" if apart <= GRAPH_TOLERANCE else f"they are off by {apart:.2g}"
        if not problem:
            return body
        del body
    _give_memory_back(policy)
    return problem


@contextmanager
def as_in_a_run(policy: Policy) -> Iterator[None]:
    """Inside this context, the model is in training mode and as much memory as the optimiser needs is in use."""
    policy.model.train()
    moments = [torch.empty_like(weight) for weight in policy.trainable().values() for _ in range(2)]
    try:
        yield
    finally:
        del moments
        policy.model.zero_grad(set_to_none=True)
        policy.model.eval()


def sample(policy: Policy, batch: PackedBatch, states_of: StatesOf, *, bf16: bool) -> tuple[Tensor, Tensor]:
    """Return the loss of a pass, and some elements of each weight's gradient."""
    policy.model.zero_grad(set_to_none=True)
    total = float(max(batch.num_targets, 1))
    sums = backward(policy, [batch], total, bf16=bf16, states_of=states_of)
    gradients = (weight.grad for weight in policy.trainable().values() if weight.grad is not None)
    some = [gradient.flatten()[:: max(1, gradient.numel() // COMPARED_ELEMENTS)].double() for gradient in gradients]
    policy.model.zero_grad(set_to_none=True)
    return sums[METRIC["loss"]].clone(), torch.cat(some)


def relative_error(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> float:
    """Return the larger one of the relative errors of loss and gradient; infinite if a value is not finite."""
    errors = [float((now - then).norm() / then.norm()) for now, then in zip(found, expected, strict=True)]
    return max(error if error == error else float("inf") for error in errors)


def mirrored(batch: PackedBatch) -> PackedBatch:
    """Return the batch with its tokens in reverse order, so with other ids, positions and sequence ends."""
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
    """Return the error in one line. A compiler's error is replaced by the error that caused it.

    >>> reason_of(ValueError("no such thing\\nat all"))
    'ValueError: no such thing'
    """
    inner = getattr(error, "inner_exception", None)
    if isinstance(inner, Exception):
        return reason_of(inner)
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__
