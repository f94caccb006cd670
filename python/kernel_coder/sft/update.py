"""The supervised update: the mean negative log-likelihood of the answers' tokens, and an optimiser step that is skipped
if loss or gradient are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kernel_coder import ops
from kernel_coder.policy.attention import packed
from kernel_coder.policy.model import Policy
from kernel_coder.policy.parts import head_of
from kernel_coder.run import distributed
from kernel_coder.run.errors import TrainingDiverged
from kernel_coder.sft.attention import StatesOf, computing, hidden_states, model_inputs
from kernel_coder.sft.packing import PackedBatch
from kernel_coder.train.update import METRIC, clip

NLL = ops.LossSpec.preset("reinforce")
"""The loss ``-A log p``, which with A = 1 is the negative log-likelihood."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Sums over the tokens in the loss, in nats."""

    nll: float
    entropy: float
    tokens: int

    @classmethod
    def of(cls, sums: Sequence[float], total: float) -> Losses:
        """Make the losses from the metric sums of a loss that was divided by ``total``."""
        return cls(sums[METRIC["loss"]] * total, sums[METRIC["entropy"]], int(sums[METRIC["tokens"]]))

    @property
    def mean(self) -> float:
        """The negative log-likelihood of a token; NaN if there is no token."""
        return self.nll / self.tokens if self.tokens else math.nan


@dataclass(frozen=True, slots=True)
class SftUpdate:
    """The result of an update. ``grad_norm`` is None if it was skipped because loss or gradient were not finite."""

    losses: Losses
    grad_norm: float | None
    learning_rate: float
    skipped_in_a_row: int


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """The settings that are the same in all updates of a run."""

    learning_rate: Callable[[int], float]  # of the n-th update
    max_grad_norm: float
    max_skipped: int  # number of skipped updates in a row that ends the run
    states_of: StatesOf = hidden_states  # the decoder in training


def loss_of(
    model: nn.Module, batch: PackedBatch, total: float, *, bf16: bool = False, states_of: StatesOf = hidden_states
) -> ops.LossOutput:
    """Return ``-sum(log p(target)) / total`` over the rows in the loss.

    It is computed from hidden states if the fused op supports the head, otherwise from logits. Call it inside
    :func:`~kernel_coder.policy.attention.packed`.
    """
    rows = len(batch.targets)
    arguments: dict[str, Any] = {"mask": batch.mask, "denominator": total}
    head = head_of(model)
    with computing(batch.ids.device, bf16):
        if head is None:
            scores = model(**model_inputs(batch)).logits[0]
        else:
            states = states_of(model, batch)
    if head is None:
        arguments["mask"] = batch.mask.to(scores.device)
        return ops.grpo_loss(scores, batch.targets, scores.new_ones(rows), NLL, **arguments)
    if bf16:
        states = states.to(torch.bfloat16)
    bias = None if head.bias is None else head.bias.to(states.dtype)
    return ops.linear_grpo_loss(
        states,
        head.weight.to(states.dtype),
        batch.targets,
        torch.ones(rows),
        NLL,
        bias=bias,
        logit_scale=head.logit_scale,
        softcap=head.softcap,
        allow_sync=False,  # the rows are known on the CPU, and each has a gradient
        **arguments,
    )


def backward(
    policy: Policy,
    batches: Sequence[PackedBatch],
    total: float,
    *,
    bf16: bool = False,
    states_of: StatesOf = hidden_states,
) -> Tensor:
    """Adds the gradients of these forward passes, divided by ``total``, to ``.grad``.

    Returns the sums of the loss's metrics, float64, on the model's device. Both are sums over all ranks.
    """
    sums = torch.zeros(len(METRIC), dtype=torch.float64, device=policy.device)
    for number, batch in enumerate(batches, start=1):
        policy.before_pass(len(batch.ids), last=number == len(batches))
        with packed(policy.model):  # the backward pass recomputes attention
            output = policy.compute(loss_of, batch, total, bf16=bf16, states_of=states_of)
            output.loss.backward()
        if batch.num_targets:
            sums += output.metrics
    policy.after_passes()
    return distributed.summed(sums)


@torch.no_grad()
def measure(policy: Policy, batches: Sequence[PackedBatch], *, bf16: bool = False) -> Losses:
    """Return the losses of these forward passes and those of the other ranks, without gradients."""
    sums = torch.zeros(len(METRIC), dtype=torch.float64, device=policy.device)
    for batch in batches:
        with packed(policy.model):
            found = policy.compute(loss_of, batch, 1.0, bf16=bf16).metrics
        if batch.num_targets:
            sums += found
    return Losses.of(distributed.summed(sums).tolist(), 1.0)


class AsyncCopy:
    """Copies numbers from the GPU without waiting. A later wait does not include work that was launched after."""

    def __init__(self, numbers: Tensor) -> None:
        self._numbers = numbers.to("cpu", non_blocking=True)
        self._arrived = torch.cuda.current_stream(numbers.device).record_event() if numbers.is_cuda else None

    def tolist(self) -> list[float]:
        """Waits until the copy is complete and returns the numbers."""
        if self._arrived is not None:
            self._arrived.synchronize()
        found: list[float] = self._numbers.tolist()
        return found


def launch_step(optimizer: torch.optim.Optimizer, loss: Tensor, norm: Tensor) -> None:
    """Takes an optimiser step, which changes nothing if loss or norm are not finite. The CPU does not wait for the GPU.

    The check is made on the device, with the flag that ``torch.amp.GradScaler`` uses, so the optimiser must be fused.
    """
    assert getattr(optimizer, "_step_supports_amp_scaling", False), "the optimiser is not a fused one"
    refused = ~(loss.isfinite() & norm.isfinite())
    optimizer.found_inf = refused.float()  # type: ignore[attr-defined]
    try:
        optimizer.step()
    finally:
        del optimizer.found_inf  # type: ignore[attr-defined]


def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[PackedBatch],
    settings: UpdateSettings,
    *,
    number: int,
    skipped_in_a_row: int,
) -> SftUpdate:
    """Does one update. The loss is the mean over its tokens on all ranks, counted before the first forward pass.

    The CPU waits for the GPU once, after all work of the update has been launched.

    Args:
        policy: the model.
        optimizer: a fused optimiser of its trainable parameters.
        batches: the forward passes of the update.
        settings: the settings that are the same in all updates.
        number: number of this update in the run, for the learning rate.
        skipped_in_a_row: updates that were skipped immediately before.

    Raises:
        TrainingDiverged: ``settings.max_skipped`` updates in a row were skipped.
    """
    total = float(sum(distributed.gathered(sum(batch.num_targets for batch in batches))))
    rate = settings.learning_rate(number)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    policy.model.train()
    sums = backward(policy, batches, total, bf16=policy.bf16, states_of=settings.states_of)
    clipped = clip(policy.trainable().values(), settings.max_grad_norm)
    numbers = AsyncCopy(torch.cat([sums, clipped[None]]))
    launch_step(optimizer, sums[METRIC["loss"]], clipped)
    optimizer.zero_grad(set_to_none=True)
    policy.model.eval()
    *found, norm = numbers.tolist()
    losses = Losses.of(found, total)
    refused = not (math.isfinite(losses.nll) and math.isfinite(norm))
    if refused and skipped_in_a_row + 1 >= settings.max_skipped:
        raise TrainingDiverged(
            f"{skipped_in_a_row + 1} updates in a row were refused (run.max_skipped_updates): their loss or gradient "
            f"was not finite. The weights are those from before these updates. Lower optim.learning_rate"
        )
    skipped_in_a_row = skipped_in_a_row + 1 if refused else 0
    return SftUpdate(losses, None if refused else norm, rate, skipped_in_a_row)
