"""The policy update: log-probs that the loss compares with, gradients of a minibatch, one guarded optimiser step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from kernel_coder import ops
from kernel_coder.ops import LossSpec
from kernel_coder.policy.attention import packed, packed_inputs
from kernel_coder.policy.model import Policy, causal_lm, head_of
from kernel_coder.policy.recomputation import spend_memory
from kernel_coder.run.errors import TrainingDiverged
from kernel_coder.train.batch import (
    PADDED,
    Batch,
    Form,
    MicroBatch,
    by_update,
    collate,
    denominator,
    forward_passes,
)
from kernel_coder.train.config import OptimConfig

METRIC = {name: index for index, name in enumerate(ops.LOSS_METRICS)}


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What the updates of one generation batch did."""

    sums: Tensor  # float64 [len(LOSS_METRICS)], over all updates that were taken
    grad_norms: tuple[float, ...]
    learning_rate: float
    skipped: int  # updates refused: loss or gradient not finite, or no answer that could be scored
    skipped_in_a_row: int  # up to and including the last one


def form_of(policy: Policy, config: OptimConfig) -> Form:
    """What the config asks for, as far as the model is known to be able to."""
    packing = config.packing and policy.can_pack
    return Form(packing=packing, sharing=packing and config.share_prompts and policy.can_share, bf16=policy.bf16)


def model_inputs(micro: MicroBatch) -> dict[str, Any]:
    if micro.layout is None:
        return {"input_ids": micro.ids, "attention_mask": micro.attention_mask, "use_cache": False}
    assert micro.positions is not None
    return packed_inputs(micro.ids[0], micro.positions, micro.layout)


def loss_and_sums(
    model: nn.Module,
    micro: MicroBatch,
    spec: LossSpec,
    temperature: float,
    total: float | None,
    *,
    bf16: bool = False,
) -> ops.LossOutput:
    """The loss of one micro-batch, from hidden states if the head allows it, else from logits.

    If it is packed, call it within :func:`kernel_coder.policy.attention.packed`.
    """
    arguments: dict[str, Any] = {
        "temperature": temperature,
        "old_logprobs": micro.old_logprobs,
        "ref_logprobs": micro.ref_logprobs,
        "rollout_logprobs": micro.rollout_logprobs,
        "mask": micro.mask,
        "cu_seqlens": micro.cu_seqlens,
        "denominator": total,
    }
    head = head_of(model)
    with torch.autocast(micro.ids.device.type, torch.bfloat16, enabled=bf16):
        if head is None:
            scores = model(**model_inputs(micro)).logits  # [R, L, V]
        else:
            states = causal_lm(model).get_decoder()(**model_inputs(micro)).last_hidden_state  # [R, L, H]
    if head is None:
        return ops.grpo_loss(scores.flatten(0, 1)[micro.rows], micro.targets, micro.advantages, spec, **arguments)
    states = states.flatten(0, 1)[micro.rows]
    if bf16:
        states = states.to(torch.bfloat16)
    return ops.linear_grpo_loss(
        states,
        head.weight.to(states.dtype),
        micro.targets,
        micro.advantages,
        spec,
        bias=None if head.bias is None else head.bias.to(states.dtype),
        logit_scale=head.logit_scale,
        softcap=head.softcap,
        **arguments,
    )


@torch.no_grad()
def score(
    policy: Policy, batch: Batch, passes: Sequence[Sequence[int]], temperature: float, form: Form = PADDED
) -> tuple[Tensor, ...]:
    """Log-probs of the completion tokens under the policy as it is, by the same op as the update: equal bits.

    Sequences that are in none of the forward passes get NaN, which no loss may ever read.
    """
    spec = LossSpec.preset("grpo")
    found = [torch.full((len(turn.completion_ids),), math.nan) for turn in batch.turns]
    plain = replace(batch, old_logprobs=None, ref_logprobs=None)
    for indices in passes:
        micro = collate(plain.select(indices), policy.tokenizer.pad_token_id or 0, policy.device, form)
        with packed(policy.model) if form.packing else nullcontext():
            output = loss_and_sums(policy.model, micro, spec, temperature, 1.0, bf16=form.bf16)
        logprobs = output.logprobs.cpu()
        for index, values in zip(indices, logprobs.split(micro.cu_seqlens.diff().tolist()), strict=True):
            found[index] = values
    return tuple(found)


def with_old_and_reference(
    policy: Policy,
    reference: Policy | None,
    batch: Batch,
    spec: LossSpec,
    config: OptimConfig,
    *,
    temperature: float,
    minibatches: int,
) -> Batch:
    """The batch with the log-probs that its loss needs.

    Old ones when the policy moves before the batch is used up (with a single update the ratio is exactly 1, and the op
    knows), reference ones when there is a KL term.
    """
    plan = forward_passes(batch, spec, minibatches, config.per_device_train_batch_size)
    passes = [indices for update_passes in plan for indices in update_passes]
    form = form_of(policy, config)
    if minibatches * config.num_iterations > 1:
        batch = replace(batch, old_logprobs=score(policy, batch, passes, temperature, form))
    if spec.beta != 0:
        with policy.as_reference() if reference is None else nullcontext():
            batch = replace(batch, ref_logprobs=score(reference or policy, batch, passes, temperature, form))
    return batch


def backward(
    policy: Policy,
    batch: Batch,
    passes: Sequence[Sequence[int]],
    spec: LossSpec,
    temperature: float,
    total: float,
    form: Form = PADDED,
) -> Tensor:
    """Adds the gradients of these forward passes to ``.grad`` and returns the metric sums."""
    sums = torch.zeros(len(METRIC), dtype=torch.float64)
    for indices in passes:
        micro = collate(batch.select(indices), policy.tokenizer.pad_token_id or 0, policy.device, form)
        spend_memory(policy, micro.ids.numel())
        with packed(policy.model) if form.packing else nullcontext():  # recomputed activations need it in the backward
            output = loss_and_sums(policy.model, micro, spec, temperature, total, bf16=form.bf16)
            output.loss.backward()
        sums += output.metrics.cpu()
    return sums


def optimizer_step(
    optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], loss: float, max_grad_norm: float
) -> float | None:
    """Clips and steps; returns the gradient's norm before clipping. None: not finite, and nothing has changed."""
    norm = float(clip(parameters, max_grad_norm))
    if not (math.isfinite(loss) and math.isfinite(norm)):
        return None
    optimizer.step()
    return norm


def clip(parameters: Iterable[nn.Parameter], max_grad_norm: float) -> Tensor:
    """The norm of all gradients before they are clipped, where the parameters are: nobody waits for it."""
    parameters = list(parameters)
    for parameter in parameters:
        if parameter.grad is None:  # no sequence carried gradient: a zero gradient, which momentum and decay must see
            parameter.grad = torch.zeros_like(parameter)
    return torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)


def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    spec: LossSpec,
    config: OptimConfig,
    *,
    temperature: float,
    minibatches: int,
    learning_rate: Callable[[int], float],
    first_update: int,
    skipped_in_a_row: int,
    max_skipped: int,
) -> UpdateResult:
    """Every update of one generation batch: ``num_iterations`` passes over its minibatches."""
    total = denominator(batch, spec, minibatches)  # one count for the whole batch, before any update
    parameters = list(policy.trainable().values())
    sums = torch.zeros(len(METRIC), dtype=torch.float64)
    norms: list[float] = []
    skipped = 0
    number = first_update
    form = form_of(policy, config)
    policy.model.train()
    plan = forward_passes(batch, spec, minibatches, config.per_device_train_batch_size)
    scored = [bool(batch.counted[part].any()) for part in by_update(batch, range(len(batch)), minibatches)]
    for passes, any_scored in list(zip(plan, scored, strict=True)) * config.num_iterations:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(number)
        optimizer.zero_grad(set_to_none=True)
        found = backward(policy, batch, passes, spec, temperature, total, form)
        # Where no answer could be scored there is nothing to step on, and momentum alone must not move the weights.
        loss = float(found[METRIC["loss"]]) if any_scored else math.nan
        norm = optimizer_step(optimizer, parameters, loss, config.max_grad_norm)
        if norm is None:
            skipped, skipped_in_a_row = skipped + 1, skipped_in_a_row + 1
            if skipped_in_a_row >= max_skipped:
                raise TrainingDiverged(
                    f"{skipped_in_a_row} updates in a row were refused (run.max_skipped_updates), for their loss or "
                    "gradient was not finite or none of their answers could be scored; the weights are those from "
                    "before: look at the rewards, or lower optim.learning_rate"
                )
        else:
            sums, skipped_in_a_row = sums + found, 0
            norms.append(norm)
        number += 1
    optimizer.zero_grad(set_to_none=True)
    policy.model.eval()
    return UpdateResult(sums, tuple(norms), learning_rate(number - 1), skipped, skipped_in_a_row)
