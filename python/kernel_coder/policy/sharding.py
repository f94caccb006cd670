"""Weights that are divided between GPUs: FSDP2 with the model and the loss in one forward pass.

FSDP2 (``fully_shard``) keeps a part of every weight on each rank. It gathers a layer's weights before the layer
computes, and sums gradients over the ranks after the layer's backward pass. It hooks into the forward pass of a module.
The fused loss reads the head's weight outside of the head's own forward pass, so :class:`Root` puts everything, from
token ids to the loss, into one forward pass of its own. Each layer is a unit, and all other weights, embeddings and
head among them, belong to the root's unit. A head that is tied to the embeddings is then one weight of one unit.

Each rank computes the loss of its own sequences, divided by the denominator of the whole batch. FSDP2 would average
gradients; here it sums them, which gives the gradient of the whole batch.

A rank with fewer sequences must make as many passes as the others, because every pass gathers weights from all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from kernel_coder.policy.parts import layers_of
from kernel_coder.run import distributed
from kernel_coder.run.config import ParallelConfig
from kernel_coder.run.errors import UsageError
from kernel_coder.run.shards import whole

T = TypeVar("T")

BUCKET_BYTES = 256 << 20
"""Size, in bytes, up to which gradients are joined for one all-reduce between whole copies. It limits extra memory."""


class Root(nn.Module):
    """Computes functions of the model inside of one forward pass, during which the weights are whole.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Return ``function(model, ...)``. The gradients of its outputs are summed over the ranks."""
        return function(self.model, *arguments, **named)


def check_parallel(config: ParallelConfig, size: int) -> None:
    """Checks that the ranks divide into ``replicas`` groups.

    Raises:
        UsageError: they do not.
    """
    if size % config.replicas:
        raise UsageError(f"parallel.replicas = {config.replicas} does not divide the {size} processes of the run")


def shard(model: nn.Module, config: ParallelConfig, device: torch.device) -> Root:
    """Divides the weights of a model between the ranks, in place, and returns the root that computes with it.

    The model may still be on the CPU: it is moved to ``device`` layer by layer.

    Raises:
        UsageError: the model has no list of layers, or the ranks do not divide into ``config.replicas`` groups.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    world = distributed.world()
    check_parallel(config, world.size)
    try:
        layers = layers_of(model)
    except AttributeError:
        raise UsageError(
            "the weights of this model cannot be divided, because it has no list of layers: set parallel.shard false"
        ) from None
    if config.replicas == 1:
        mesh = init_device_mesh(device.type, (world.size,), mesh_dim_names=("shard",))
    else:
        shape = (config.replicas, world.size // config.replicas)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
    precision = MixedPrecisionPolicy(
        param_dtype=None if config.param_dtype is None else getattr(torch, config.param_dtype),
        reduce_dtype=None if config.reduce_dtype is None else getattr(torch, config.reduce_dtype),
        cast_forward_inputs=False,
    )
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=config.reshard, mp_policy=precision)
    root = Root(model)
    fully_shard(root, mesh=mesh, reshard_after_forward=False, mp_policy=precision)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            if device.type == "cpu":  # gloo cannot scale while it sums
                module.set_force_sum_reduction_for_comms(True)
    return root


@torch.no_grad()
def copy_whole(source: Mapping[str, nn.Parameter], target: Mapping[str, nn.Parameter]) -> None:
    """Copies the weights of a divided model into a whole one with the same names. All ranks must call this together."""
    for name, parameter in source.items():
        target[name].copy_(whole(parameter.detach()))


@torch.no_grad()
def sum_gradients(parameters: Mapping[str, nn.Parameter], dtype: torch.dtype | None) -> None:
    """Sums the gradients of whole copies of a model over the ranks, with few large all-reduces.

    Args:
        parameters: of this rank's copy. A gradient that is None counts as zero.
        dtype: in which to sum; None: that of the gradients.
    """
    if distributed.world().is_alone:
        return
    bucket: list[Tensor] = []
    size = 0
    for parameter in parameters.values():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if bucket and (size >= BUCKET_BYTES or bucket[0].dtype != parameter.grad.dtype):
            _sum_bucket(bucket, dtype)
            bucket, size = [], 0
        bucket.append(parameter.grad)
        size += parameter.grad.numel() * parameter.grad.element_size()
    if bucket:
        _sum_bucket(bucket, dtype)


def _sum_bucket(gradients: list[Tensor], dtype: torch.dtype | None) -> None:
    import torch.distributed as dist

    flat = torch.cat([gradient.flatten() for gradient in gradients]).to(dtype or gradients[0].dtype)
    dist.all_reduce(flat)
    for gradient, total in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(total.view_as(gradient))
