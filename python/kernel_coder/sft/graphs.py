"""The decoder's forward and backward pass as two CUDA graphs, so that the CPU launches each with a single call.

A graph repeats recorded work in the same memory. Each batch is copied into the recorded inputs; hidden states and
gradients of the weights appear in the recorded outputs. The head and its loss, whose rows differ between batches, are
not recorded: their gradient is copied into the recorded backward pass.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from kernel_coder.policy.attention import packed
from kernel_coder.policy.parts import causal_lm, head_of, layers_of
from kernel_coder.sft.attention import computing, hidden_states
from kernel_coder.sft.packing import PackedBatch

INPUTS = ("ids", "positions", "cu_seqlens")
"""The tensors of a batch that are copied into the recorded inputs."""

SIXTEEN_BITS = (torch.bfloat16, torch.float16)

Written = Sequence[Tensor | None]
"""The tensors that recorded work writes."""

Work = Callable[[], Written]

_log = logging.getLogger(__name__)


class Recorder(Protocol):
    """Records GPU work so that it can be repeated."""

    def warm_up(self, work: Callable[[], None]) -> None:
        """Runs the work without recording it, so that libraries and the allocator are initialised."""

    def record(self, work: Work) -> tuple[Written, Callable[[], None]]:
        """Records the work. Returns what it writes, and a function that repeats it in the same memory.

        A repetition may overwrite results of the same recorder to which no reference is held.
        """


class CudaRecorder:
    """Records CUDA graphs that share one memory pool, on a separate stream.

    The warm-up runs the work twice. The first run initialises libraries and the allocator. In the second, an operation
    that makes the CPU wait for the GPU raises; such work cannot be recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            self.stream = torch.cuda.Stream(device)
            self.pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Callable[[], None]) -> None:
        before = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(before)
        with torch.cuda.stream(self.stream):
            work()
            with waiting_forbidden():
                work()
        before.wait_stream(self.stream)

    def record(self, work: Work) -> tuple[Written, Callable[[], None]]:
        graph = torch.cuda.CUDAGraph()
        before = torch.cuda.current_stream(self.device)
        taking = torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local")
        try:
            with torch.cuda.device(self.device), taking:
                written = work()
        except Exception as error:  # ending a failed recording raises as well; report the first error
            raise error.__context__ or error from None
        finally:
            torch.cuda.set_stream(before)  # a failed recording leaves its own stream set
        return written, graph.replay


@contextmanager
def waiting_forbidden() -> Iterator[None]:
    """Inside this context, an operation that makes the CPU wait for the GPU raises."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it does not detect every such operation
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class GraphedBody:
    """Computes :func:`~kernel_coder.sft.attention.hidden_states` by replaying graphs, for batches of one shape.

    In other cases it computes without graphs: another shape, a model in evaluation mode, no gradients, weights that
    have moved in memory. Results and gradients are in the graphs' memory and are overwritten by the next pass; only a
    ``.grad`` is copied out of it first.

    Args:
        model: in training mode; its weights are updated in place.
        batch: has the shape to record.
        recorder: a :class:`CudaRecorder`.
        bf16: compute in bfloat16.
    """

    def __init__(self, model: nn.Module, batch: PackedBatch, recorder: Recorder, *, bf16: bool = False) -> None:
        decoder = causal_lm(model).get_decoder()
        self.model, self.bf16 = model, bf16
        self.inputs = replace(batch, **{name: getattr(batch, name).clone() for name in INPUTS})
        self.weights = tuple(weight for weight in decoder.parameters() if weight.requires_grad)
        self.tensors = (*decoder.parameters(), *decoder.buffers())
        self.places = self._places()
        self.passes = 0
        recorder.warm_up(self._pass)
        (states,), self.replay_forward = recorder.record(self._forward)
        assert states is not None
        self.states = states.detach()
        self.gradient = torch.zeros_like(self.states)
        self.gradients, self.replay_backward = recorder.record(self._backward)
        self._output = self.states

    def __call__(self, model: nn.Module, batch: PackedBatch) -> Tensor:
        """Return the hidden states [T, H]. Call it inside :func:`~kernel_coder.policy.attention.packed`."""
        if not self.takes(model, batch):
            return hidden_states(model, batch)
        self._move_gradients_out()
        for name in INPUTS:
            getattr(self.inputs, name).copy_(getattr(batch, name), non_blocking=True)
        states: Tensor = _Replayed.apply(self, *self.weights)
        return states

    def takes(self, model: nn.Module, batch: PackedBatch) -> bool:
        """Return whether the graphs can compute this batch."""
        if model is not self.model or not model.training or not torch.is_grad_enabled():
            return False
        if self.places and self._places() != self.places:
            _log.warning("sft: weights have moved in memory, so the CUDA graphs are no longer used")
            self.places = ()
        same = (getattr(batch, name).shape == getattr(self.inputs, name).shape for name in INPUTS)
        return bool(self.places) and batch.longest == self.inputs.longest and all(same)

    def _places(self) -> tuple[int, ...]:
        return tuple(tensor.data_ptr() for tensor in self.tensors)

    def _move_gradients_out(self) -> None:
        """Copies gradients that autograd left in the graph's own tensors, which the next pass overwrites."""
        for weight, gradient in zip(self.weights, self.gradients, strict=True):
            if weight.grad is not None and gradient is not None and weight.grad.data_ptr() == gradient.data_ptr():
                weight.grad = weight.grad.clone()

    def _forward(self) -> Written:
        with torch.enable_grad(), packed(self.model), computing(self.inputs.ids.device, self.bf16):
            self._output = hidden_states(self.model, self.inputs)
        return (self._output,)

    def _backward(self) -> Written:
        return torch.autograd.grad(self._output, self.weights, self.gradient, allow_unused=True)

    def _pass(self) -> None:
        self._forward()
        self.gradient = torch.zeros_like(self._output)
        self._backward()
        self._output = self.gradient  # frees the activations of the pass


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, body: GraphedBody, *weights: Tensor) -> Tensor:
        body.passes += 1
        ctx.body, ctx.number = body, body.passes
        body.replay_forward()
        return body.states.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        body: GraphedBody = ctx.body
        if ctx.number != body.passes:
            raise RuntimeError("a second graphed forward pass was made before the backward pass of the first one")
        body.gradient.copy_(gradient)
        body.replay_backward()
        return None, *(None if each is None else each.detach() for each in body.gradients)


def why_not(model: nn.Module, *, bf16: bool) -> str | None:
    """Return why a model cannot be recorded as graphs; None if it can."""
    if head_of(model) is None:
        return "the loss of this model is not computed from hidden states"
    if dropout := dropout_of(model):
        return f"a graph would drop the same elements every time, and the model has {dropout}"
    if any(getattr(layer, "gradient_checkpointing", False) for layer in layers_of(model)):
        return "layers that are recomputed read the random state"
    weight = next(model.parameters())
    if weight.is_cuda and not bf16 and weight.dtype not in SIXTEEN_BITS:
        return "attention in 32 bits reads the ends of examples on the CPU; set model.bf16"
    return None


def dropout_of(model: nn.Module) -> str | None:
    """Describes the dropout of a model in training mode; None if it has none.

    >>> dropout_of(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)))
    'Dropout of 0.1'
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            return f"{type(module).__name__} of {module.p}"
    for name, value in getattr(getattr(causal_lm(model), "config", None), "to_dict", dict[str, Any])().items():
        if "dropout" in name and isinstance(value, int | float) and value > 0:
            return f"{name} of {value}"
    return None
