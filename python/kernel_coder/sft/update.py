"""The supervised update: the mean negative log-likelihood of the answers' tokens, and one guarded optimiser step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kernel_coder import ops
from kernel_coder.policy.attention import packed
from kernel_coder.policy.model import Policy, head_of
from kernel_coder.policy.recomputation import spend_memory
from kernel_coder.run.errors import TrainingDiverged
from kernel_coder.sft.attention import StatesOf, computing, hidden_states, model_inputs
from kernel_coder.sft.packing import PackedBatch
from kernel_coder.train.update import METRIC, clip

NLL = ops.LossSpec.preset("reinforce")
"""``-A logp`` with A = 1 is the negative log-likelihood; the policy's op forms its gradient in three products."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Sums over the tokens in the loss."""

    nll: float
    entropy: float
    tokens: int

    @classmethod
    def of(cls, sums: Sequence[float], total: float) -> Losses:
        """From the metrics of a loss that was divided by ``total``."""
        return cls(sums[METRIC["loss"]] * total, sums[METRIC["entropy"]], int(sums[METRIC["tokens"]]))

    @property
    def mean(self) -> float:
        return self.nll / self.tokens if self.tokens else math.nan


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What one update did. ``grad_norm`` is None if it was refused: loss or gradient were not finite."""

    losses: Losses
    grad_norm: float | None
    learning_rate: float
    skipped_in_a_row: int


def loss_of(
    model: nn.Module, batch: PackedBatch, total: float, *, bf16: bool = False, states_of: StatesOf = hidden_states
) -> ops.LossOutput:
    """``-sum(log p(target)) / total`` over the masked rows, from hidden states if the head allows it, else from logits.

    Call it within :func:`packed`.
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
        allow_sync=False,  # the host knows the rows, and each has a gradient
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
    """Adds the gradients of these forward passes to ``.grad``; a token weighs the same in whichever it is.

    Returns the sums of the loss's metrics, float64, where the model is.
    """
    sums = torch.zeros(len(METRIC), dtype=torch.float64, device=policy.device)
    for batch in batches:
        spend_memory(policy, len(batch.ids))
        with packed(policy.model):  # recomputed activations need it in the backward, too
            output = loss_of(policy.model, batch, total, bf16=bf16, states_of=states_of)
            output.loss.backward()
        sums += output.metrics
    return sums


@torch.no_grad()
def measure(policy: Policy, batches: Sequence[PackedBatch], *, bf16: bool = False) -> Losses:
    """The same sums without gradients."""
    sums = torch.zeros(len(METRIC), dtype=torch.float64, device=policy.device)
    for batch in batches:
        with packed(policy.model):
            sums += loss_of(policy.model, batch, 1.0, bf16=bf16).metrics
    return Losses.of(sums.tolist(), 1.0)


class Underway:
    """Numbers on their way from the device; waiting for them is not waiting for what it was told after them."""

    def __init__(self, numbers: Tensor) -> None:
        self._numbers = numbers.to("cpu", non_blocking=True)
        self._arrived = torch.cuda.current_stream(numbers.device).record_event() if numbers.is_cuda else None

    def tolist(self) -> list[float]:
        if self._arrived is not None:
            self._arrived.synchronize()
        found: list[float] = self._numbers.tolist()
        return found


def launch_step(optimizer: torch.optim.Optimizer, loss: Tensor, norm: Tensor) -> None:
    """A step that changes nothing if loss or norm are not finite, which is found out on their device: nobody waits.

    The optimiser must be a fused one, which takes that as it does from ``torch.amp.GradScaler``.
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
    *,
    learning_rate: Callable[[int], float],
    number: int,
    max_grad_norm: float,
    bf16: bool,
    skipped_in_a_row: int,
    max_skipped: int,
    states_of: StatesOf = hidden_states,
) -> UpdateResult:
    """One update. The loss is the mean over its tokens, counted once before the first of its forward passes.

    A GPU is waited for once, while it still works on the step.
    """
    total = float(sum(batch.num_targets for batch in batches))
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(number)
    optimizer.zero_grad(set_to_none=True)
    policy.model.train()
    sums = backward(policy, batches, total, bf16=bf16, states_of=states_of)
    clipped = clip(policy.trainable().values(), max_grad_norm)
    underway = Underway(torch.cat([sums, clipped[None]]))
    launch_step(optimizer, sums[METRIC["loss"]], clipped)
    optimizer.zero_grad(set_to_none=True)
    policy.model.eval()
    *found, norm = underway.tolist()
    losses = Losses.of(found, total)
    refused = not (math.isfinite(losses.nll) and math.isfinite(norm))
    if refused and skipped_in_a_row + 1 >= max_skipped:
        raise TrainingDiverged(
            f"{skipped_in_a_row + 1} updates in a row were refused (run.max_skipped_updates), for their loss or "
            "gradient was not finite; the weights are those from before: lower optim.learning_rate"
        )
    skipped_in_a_row = skipped_in_a_row + 1 if refused else 0
    return UpdateResult(losses, None if refused else norm, learning_rate(number), skipped_in_a_row)
