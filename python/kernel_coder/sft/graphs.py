"""The decoder's forward and backward as two CUDA graphs: the CPU launches each of them once, whatever the layers do.

A graph repeats what it was recorded doing, in the same memory. A batch is copied into the inputs of the recording; the
hidden states, and gradients of the weights, lie where they lay then. The head and its loss, whose rows differ in each
batch, stay outside: their gradient flows into the recorded backward.
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
from kernel_coder.policy.model import causal_lm, head_of
from kernel_coder.policy.recomputation import layers_of
from kernel_coder.sft.attention import computing, hidden_states
from kernel_coder.sft.packing import PackedBatch

INPUTS = ("ids", "positions", "cu_seqlens")
"""What the decoder is given of a batch."""

SIXTEEN_BITS = (torch.bfloat16, torch.float16)

Written = Sequence[Tensor | None]
Work = Callable[[], Written]

_log = logging.getLogger(__name__)


class Recorder(Protocol):
    """What makes work repeatable."""

    def warm_up(self, work: Callable[[], None]) -> None: ...

    def record(self, work: Work) -> tuple[Written, Callable[[], None]]:
        """What the work writes, and what writes it again into the same memory. It may write over other results of the
        same recorder that nobody holds."""


class CudaRecorder:
    """CUDA graphs that share their memory, recorded on a stream of their own.

    Work runs twice before: libraries and allocator then have what they need, and what waits for the GPU is found by an
    exception while nothing is being recorded.
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
        except Exception as error:  # ending what has failed fails, too, and would be all that is said
            raise error.__context__ or error from None
        finally:
            torch.cuda.set_stream(before)  # a recording that fails leaves its own
        return written, graph.replay


@contextmanager
def waiting_forbidden() -> Iterator[None]:
    """Within, an operation for which the host waits for the GPU raises."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it does not find all of them
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class GraphedBody:
    """:func:`~kernel_coder.sft.attention.hidden_states` of batches of one shape, replayed.

    Whatever was not recorded is computed as ever: another shape, a model in evaluation, no gradients wanted, weights
    that have moved. Results and gradients lie in the graphs' memory: a ``.grad`` that is there when the next pass
    begins is moved out of it, anything else is valid until then.

    Args:
        model: in training; its weights are updated in place.
        batch: of the shape that is recorded.
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
        """[T, H]. Call it within :func:`~kernel_coder.policy.attention.packed`."""
        if not self.takes(model, batch):
            return hidden_states(model, batch)
        self._move_gradients_out()
        for name in INPUTS:
            getattr(self.inputs, name).copy_(getattr(batch, name), non_blocking=True)
        states: Tensor = _Replayed.apply(self, *self.weights)
        return states

    def takes(self, model: nn.Module, batch: PackedBatch) -> bool:
        if model is not self.model or not model.training or not torch.is_grad_enabled():
            return False
        if self.places and self._places() != self.places:
            _log.warning("sft: weights have moved, so the CUDA graphs are not used any more")
            self.places = ()
        same = (getattr(batch, name).shape == getattr(self.inputs, name).shape for name in INPUTS)
        return bool(self.places) and batch.longest == self.inputs.longest and all(same)

    def _places(self) -> tuple[int, ...]:
        return tuple(tensor.data_ptr() for tensor in self.tensors)

    def _move_gradients_out(self) -> None:
        """Autograd may have taken the graph's own tensors as ``.grad``: the next pass writes over them."""
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
        self._output = self.gradient  # what the pass kept is not kept any longer


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
            raise RuntimeError("a graphed forward pass went before the backward of the one before it")
        body.gradient.copy_(gradient)
        body.replay_backward()
        return None, *(None if each is None else each.detach() for each in body.gradients)


def why_not(model: nn.Module, *, bf16: bool) -> str | None:
    """What of a model a graph cannot repeat."""
    if head_of(model) is None:
        return "the loss of this model is not computed from hidden states"
    if dropout := dropout_of(model):
        return f"a graph would drop the same every time, and the model has {dropout}"
    if any(getattr(layer, "gradient_checkpointing", False) for layer in layers_of(model)):
        return "layers that are recomputed read the random state"
    weight = next(model.parameters())
    if weight.is_cuda and not bf16 and weight.dtype not in SIXTEEN_BITS:
        return "attention in 32 bits asks the host where an example ends; set model.bf16"
    return None


def dropout_of(model: nn.Module) -> str | None:
    """The dropout of a model in training, if it has any.

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
