"""The policy update: old and reference log-probs, gradients of a minibatch, and an optimiser step that is skipped if
loss or gradient are not finite."""

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
from kernel_coder.policy.model import Policy
from kernel_coder.policy.parts import causal_lm, head_of
from kernel_coder.run import distributed
from kernel_coder.run.errors import TrainingDiverged
from kernel_coder.run.shards import whole
from kernel_coder.train.batch import (
    PADDED,
    Batch,
    Form,
    MicroBatch,
    by_update,
    collate,
    denominator,
    idle,
    ranks_passes,
)
from kernel_coder.train.config import OptimConfig

METRIC = {name: index for index, name in enumerate(ops.LOSS_METRICS)}
"""Index of each metric in the sums that the loss ops return."""


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """The result of the updates of one generation batch."""

    sums: Tensor  # float64 [len(LOSS_METRICS)], over all updates that were taken
    grad_norms: tuple[float, ...]  # before clipping, of each update that was taken
    learning_rate: float  # of the last update
    skipped: int  # skipped updates: loss or gradient not finite, or no scored answer
    skipped_in_a_row: int  # at the end of the batch


def form_of(policy: Policy, config: OptimConfig) -> Form:
    """Return the config's form of forward passes, as far as the model supports it."""
    packing = config.packing and policy.can_pack
    return Form(packing=packing, sharing=packing and config.share_prompts and policy.can_share, bf16=policy.bf16)


def model_inputs(micro: MicroBatch) -> dict[str, Any]:
    """Return the arguments of the model's forward pass."""
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
    """Return the loss of one micro-batch: from hidden states if the fused op supports the head, otherwise from logits.

    A packed micro-batch must be computed inside :func:`kernel_coder.policy.attention.packed`, and divided weights
    inside :meth:`kernel_coder.policy.model.Policy.compute`. The summed loss is divided by ``total``.
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
    """Return the log-probs of the completion tokens under the present policy, with the bits that the update's op would
    give.

    Sequences that are in no forward pass get NaN. No loss reads them.
    """
    spec = LossSpec.preset("grpo")
    found = [torch.full((len(turn.completion_ids),), math.nan) for turn in batch.turns]
    plain = replace(batch, old_logprobs=None, ref_logprobs=None)
    for indices in passes:
        micro = micro_batch(policy, plain, indices, form)
        with packed(policy.model) if form.packing else nullcontext():
            output = policy.compute(loss_and_sums, micro, spec, temperature, 1.0, bf16=form.bf16)
        if not indices:
            continue
        logprobs = output.logprobs.cpu()
        for index, values in zip(indices, logprobs.split(micro.cu_seqlens.diff().tolist()), strict=True):
            found[index] = values
    return tuple(found)


def micro_batch(policy: Policy, batch: Batch, indices: Sequence[int], form: Form) -> MicroBatch:
    """Return the tensors of one forward pass over these sequences, or over none of them for a rank without rows."""
    pad = policy.tokenizer.pad_token_id or 0
    return collate(batch.select(indices) if indices else idle(batch, pad), pad, policy.device, form)


def backward(
    policy: Policy,
    batch: Batch,
    passes: Sequence[Sequence[int]],
    spec: LossSpec,
    temperature: float,
    total: float,
    form: Form = PADDED,
) -> Tensor:
    """Adds the gradients of these forward passes to ``.grad`` and returns the sums of the loss's metrics.

    Afterwards ``.grad`` is the sum over all ranks. The returned sums are those of this rank.

    Args:
        policy: the model.
        batch: the generation batch.
        passes: the sequences of each forward pass.
        spec: the loss.
        temperature: sampling temperature of the answers.
        total: divisor of the summed loss.
        form: how the passes are computed.
    """
    sums = torch.zeros(len(METRIC), dtype=torch.float64)
    for number, indices in enumerate(passes, start=1):
        micro = micro_batch(policy, batch, indices, form)
        policy.before_pass(micro.ids.numel(), last=number == len(passes))
        with packed(policy.model) if form.packing else nullcontext():  # the backward pass recomputes attention
            output = policy.compute(loss_and_sums, micro, spec, temperature, total, bf16=form.bf16)
            output.loss.backward()
        if indices:
            sums += output.metrics.cpu()
    policy.after_passes()
    return sums


def optimizer_step(
    optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], loss: float, max_grad_norm: float
) -> float | None:
    """Clips the gradient and takes an optimiser step. Returns the gradient's norm before clipping.

    If loss or norm are not finite it returns None, and weights and optimiser are unchanged.
    """
    norm = float(clip(parameters, max_grad_norm))
    if not (math.isfinite(loss) and math.isfinite(norm)):
        return None
    optimizer.step()
    return norm


def clip(parameters: Iterable[nn.Parameter], max_grad_norm: float) -> Tensor:
    """Scales the gradient down if its norm is above ``max_grad_norm``. Returns the norm before, without a GPU sync."""
    parameters = list(parameters)
    for parameter in parameters:
        if parameter.grad is None:  # no sequence carried gradient; momentum and weight decay still apply
            parameter.grad = torch.zeros_like(parameter)
    return whole(torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm))


@dataclass(frozen=True, slots=True, eq=False)
class Learner:
    """Turns generation batches into updates of the policy.

    Attributes:
        policy: the model that is trained; the optimiser updates its weights in place.
        reference: the initial model, for the KL term. None: there is no KL term, or the initial model is the policy
            without its adapters.
        optimizer: the optimiser of the policy's trainable parameters.
        spec: the loss.
        config: sizes of updates and forward passes.
        temperature: sampling temperature of the answers.
        minibatches: updates in one pass over a generation batch.
        learning_rate: gives the learning rate of the n-th update of the run.
        max_skipped: number of skipped updates in a row that ends the run.
        frees_cache: return unused GPU memory after the updates, because a judge works on the same GPU.
    """

    policy: Policy
    reference: Policy | None
    optimizer: torch.optim.Optimizer
    spec: LossSpec
    config: OptimConfig
    temperature: float
    minibatches: int
    learning_rate: Callable[[int], float]
    max_skipped: int
    frees_cache: bool = False

    @property
    def form(self) -> Form:
        """How forward passes are computed."""
        return form_of(self.policy, self.config)

    def passes(self, batch: Batch) -> list[list[list[int]]]:
        """Return the sequences of this rank's forward passes of each update; see
        :func:`~kernel_coder.train.batch.ranks_passes`."""
        world, size = distributed.world(), self.config.per_device_train_batch_size
        return ranks_passes(batch, self.spec, self.minibatches, size, world.size)[world.rank]

    def with_logprobs(self, batch: Batch) -> Batch:
        """Return the batch with the log-probs that its loss compares with.

        Those of the old policy are needed if there is more than one update: with a single one the ratio is exactly 1,
        and the op then needs no old log-probs. Those of the reference are needed for a KL term.
        """
        passes = [indices for update_passes in self.passes(batch) for indices in update_passes]
        if self.minibatches * self.config.num_iterations > 1:
            batch = replace(batch, old_logprobs=score(self.policy, batch, passes, self.temperature, self.form))
        if self.spec.beta != 0:
            model = self.reference or self.policy
            with self.policy.as_reference() if self.reference is None else nullcontext():
                batch = replace(batch, ref_logprobs=score(model, batch, passes, self.temperature, self.form))
        return batch

    def update(self, batch: Batch, first_update: int, skipped_in_a_row: int) -> UpdateResult:
        """Does all updates of one generation batch: ``num_iterations`` passes over its minibatches.

        Args:
            batch: the generation batch, with log-probs.
            first_update: number of the first of these updates in the run, for the learning rate.
            skipped_in_a_row: updates that were skipped immediately before.

        Raises:
            TrainingDiverged: ``max_skipped`` updates in a row were skipped.
        """
        total = denominator(batch, self.spec, self.minibatches)  # counted once for the whole batch
        parameters = list(self.policy.trainable().values())
        sums = torch.zeros(len(METRIC), dtype=torch.float64)
        norms: list[float] = []
        skipped, number = 0, first_update
        scored = [bool(batch.counted[part].any()) for part in by_update(batch, range(len(batch)), self.minibatches)]
        self.policy.model.train()
        for passes, any_scored in list(zip(self.passes(batch), scored, strict=True)) * self.config.num_iterations:
            for group in self.optimizer.param_groups:
                group["lr"] = self.learning_rate(number)
            self.optimizer.zero_grad(set_to_none=True)
            found = backward(self.policy, batch, passes, self.spec, self.temperature, total, self.form)
            found = distributed.summed(found)
            # If no answer could be scored there is no gradient, and momentum alone must not move the weights.
            loss = float(found[METRIC["loss"]]) if any_scored else math.nan
            norm = optimizer_step(self.optimizer, parameters, loss, self.config.max_grad_norm)
            if norm is None:
                skipped, skipped_in_a_row = skipped + 1, skipped_in_a_row + 1
                self._check_skipped(skipped_in_a_row)
            else:
                sums, skipped_in_a_row = sums + found, 0
                norms.append(norm)
            number += 1
        self.optimizer.zero_grad(set_to_none=True)
        self.policy.model.eval()
        if self.frees_cache:
            torch.cuda.empty_cache()
        return UpdateResult(sums, tuple(norms), self.learning_rate(number - 1), skipped, skipped_in_a_row)

    def _check_skipped(self, in_a_row: int) -> None:
        if in_a_row >= self.max_skipped:
            raise TrainingDiverged(
                f"{in_a_row} updates in a row were refused (run.max_skipped_updates): their loss or gradient was not "
                "finite, or none of their answers could be scored. The weights are those from before these updates. "
                "Look at the rewards, or lower optim.learning_rate"
            )
