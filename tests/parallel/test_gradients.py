"""The loss and every gradient of several ranks equal those of one process on the same batch."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from kernel_coder.models.tiny import tiny_tokenizer
from kernel_coder.ops import LossSpec
from kernel_coder.policy.model import Policy
from kernel_coder.policy.packing import with_packing
from kernel_coder.policy.recomputation import measure
from kernel_coder.rollout import Turn
from kernel_coder.run import distributed
from kernel_coder.run.config import AdamConfig, ParallelConfig
from kernel_coder.run.optimizer import make_optimizer
from kernel_coder.run.shards import whole
from kernel_coder.train.batch import Batch, denominator, finite_or_nan, make_batch, ranks_passes, spread_rows
from kernel_coder.train.config import AdvantagesConfig, OptimConfig
from kernel_coder.train.update import METRIC, Learner, backward, clip, form_of, score
from ranks import on_ranks
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

TOKENIZER = tiny_tokenizer()
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
"""Largest difference of a gradient, as a share of its norm. The order of the sums differs, nothing else."""

PACKED_TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-7}
"""The same for packed rows, whose attention combines its two parts in float32."""

PRESETS = ("grpo", "dapo", "dr_grpo", "gspo", "cispo", "trl", "verl", "dr_kernel")

ALL = [0.0, 1.0, 0.5, 0.5, 2.0, None, 1.0, 3.0, 0.0, 1.0, 1.0, 0.0]
ONE = [1.0, 0.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0]  # two of the three groups are flat
FEW = [None, None, 1.0, 0.0, 2.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0]  # two sequences: fewer than four ranks


def policy(*, tied: bool = True, lora: bool = False, dtype: torch.dtype = torch.float32) -> Policy:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENIZER),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
        initializer_range=0.05,
    )
    model: Any = LlamaForCausalLM(config)
    if lora:
        import peft
        from kernel_coder.policy.adapters import quicken

        settings = peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, settings)
        quicken(model)
        for parameter in model.parameters():  # adapters of the size of the weights beside them
            parameter.data *= 0.2 if parameter.requires_grad else 1.0
    return Policy(model.to(dtype).eval(), TOKENIZER, is_peft=lora)


def batch_of(rewards: list[float | None]) -> Batch:
    """Three groups of four answers of 1 to 17 tokens, with log-probs of sampler, old policy and reference.

    These are close to the model's own, so that no preset rejects every sequence. The advantages of a group do not sum
    to 0: gradients that almost cancel would show the rounding of much larger numbers.
    """
    draw = random.Random(1)

    def some(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(3, len(TOKENIZER)) for _ in range(count))

    prompts = [some(5 + 3 * group) for group in range(3)]
    answers = [some(1 + (7 * i) % 17) for i in range(12)]
    turns = [Turn(prompts[i // 4], ids, (0.0,) * len(ids), "", "stop") for i, ids in enumerate(answers)]
    batch = make_batch(turns, finite_or_nan(rewards), AdvantagesConfig(), 4, mask_truncated=False)
    now = score(policy(), batch, [list(range(12))], 0.9)
    old = tuple(values + torch.tensor([0.1 * draw.random() - 0.05 for _ in values]) for values in now)
    turns = [
        replace(turn, logprobs=tuple(float(v) + 1e-3 * draw.random() for v in values))
        for turn, values in zip(turns, old, strict=True)
    ]
    reference = tuple(values - 0.1 for values in old)
    advantages = torch.where(batch.advantages != 0, batch.advantages + 1, 0.0)
    batch = replace(batch, advantages=advantages)
    return replace(batch, turns=tuple(turns), old_logprobs=old, ref_logprobs=reference)


def gradients(
    policy: Policy, batch: Batch, spec: LossSpec, size: int, *, packing: bool
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The metrics of the update, the norm of the gradient, and every whole gradient."""
    world = distributed.world()
    policy.model.zero_grad(set_to_none=True)
    policy.model.train()
    passes = ranks_passes(batch, spec, 1, size, world.size)[world.rank][0]
    form = form_of(policy, OptimConfig(packing=packing))
    sums = distributed.summed(backward(policy, batch, passes, spec, 0.9, denominator(batch, spec, 1), form))
    found = {name: whole(p.grad).clone() for name, p in policy.trainable().items() if p.grad is not None}
    norm = clip(policy.trainable().values(), 0.1)
    clipped = {f"clipped {name}": whole(p.grad).clone() for name, p in policy.trainable().items() if p.grad is not None}
    return sums, norm, found | clipped


def assert_equal(
    found: tuple[Tensor, Tensor, dict[str, Tensor]], wanted: Any, dtype: torch.dtype, case: tuple[Any, ...]
) -> None:
    tolerance = (PACKED_TOLERANCE if case[6] else TOLERANCE)[dtype]
    # The metrics sum float32 log-ratios, which are small differences of large numbers.
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-5, atol=1e-5, equal_nan=True, msg=lambda m: f"{case}: {m}")
    assert abs(found[0][METRIC["loss"]] - wanted[0][METRIC["loss"]]) <= tolerance, case
    torch.testing.assert_close(found[1], wanted[1], rtol=tolerance, atol=0.0, msg=lambda m: f"{case}: {m}")
    assert set(found[2]) == set(wanted[2]), case
    norm = torch.stack([value.norm() for name, value in wanted[2].items() if not name.startswith("clipped")]).norm()
    assert norm > 0, case
    for name, value in wanted[2].items():
        scale = norm if not name.startswith("clipped") else min(norm, torch.tensor(0.1))
        assert (found[2][name] - value).norm() <= tolerance * scale, (case, name)


def compare(cases: list[tuple[Any, ...]], dtype: torch.dtype) -> None:
    """Compares this rank's gradients with those that it computes alone."""
    for case in cases:
        tied, lora, loss, rewards, size, shard, packing, replicas, sync = case
        spec = LossSpec.preset(loss) if isinstance(loss, str) else LossSpec.preset(loss[0], **loss[1])
        batch = batch_of(rewards)
        alone = policy(tied=tied, lora=lora, dtype=dtype)
        alone = with_packing(alone)[0] if packing else alone
        together, before = distributed._world, copy.deepcopy(alone)
        distributed._world = distributed.World()
        wanted = gradients(alone, batch, spec, size, packing=packing)
        distributed._world = together
        config = ParallelConfig(shard=shard, replicas=replicas, sync_each_pass=sync, reduce_dtype=None)
        ours = before.divided(config, torch.device("cpu")) if shard else replace(before, parallel=config)
        assert_equal(gradients(ours, batch, spec, size, packing=packing), wanted, dtype, case)


def case(
    *,
    tied: bool = True,
    lora: bool = False,
    loss: Any = "grpo",
    rewards: list[float | None] = ALL,
    size: int = 3,
    shard: bool = True,
    packing: bool = True,
    replicas: int = 1,
    sync: bool = False,
) -> tuple[Any, ...]:
    return tied, lora, loss, rewards, size, shard, packing, replicas, sync


CASES = {
    "heads": [case(tied=tied, packing=packing) for tied in (True, False) for packing in (True, False)],
    "whole copies": [case(shard=False, tied=False), case(shard=False, lora=True)],
    "lora": [case(lora=True), case(lora=True, tied=False, packing=False)],
    "a rank without sequences": [case(rewards=FEW), case(rewards=FEW, lora=True), case(rewards=FEW, shard=False)],
    "flat groups": [case(rewards=ONE), case(rewards=ONE, size=1), case(rewards=ONE, size=1, sync=True)],
    "presets": [case(loss=loss, size=2) for loss in PRESETS],
    "kl and entropy": [case(loss=("grpo", {"beta": 0.1, "entropy_coef": 0.01}), rewards=FEW, size=2)],
}


@pytest.mark.parametrize(
    ("ranks", "dtype"),
    [
        pytest.param(
            ranks, dtype, marks=[pytest.mark.long] * (dtype == torch.float32 or ranks == 4), id=f"{ranks}-{dtype}"
        )
        for ranks in (2, 4)
        for dtype in TOLERANCE
    ],
)
def test_gradients_equal_those_of_one_process(ranks: int, dtype: torch.dtype) -> None:
    cases = [one for some in CASES.values() for one in some]
    if ranks == 4:
        cases += [case(replicas=2), case(replicas=2, lora=True, rewards=FEW)]
    on_ranks(ranks, compare, cases, dtype)


def updated() -> None:
    """Four updates with AdamW move every weight as in one process, in a model with packed rows."""

    def weights(policy: Policy) -> dict[str, Tensor]:
        policy = with_packing(policy)[0]
        fixed: dict[str, Any] = {"reference": None, "temperature": 0.9, "minibatches": 2, "max_skipped": 1}
        learner = Learner(
            policy=policy,
            optimizer=make_optimizer(policy.trainable().values(), AdamConfig(adam_epsilon=1e-3)),
            spec=LossSpec.preset("grpo"),
            config=OptimConfig(per_device_train_batch_size=3, num_iterations=2),
            learning_rate=lambda number: 1e-2,
            **fixed,
        )
        result = learner.update(learner.with_logprobs(batch_of(ALL)), 0, 0)
        assert len(result.grad_norms) == 4
        return {name: whole(value.detach()).clone() for name, value in policy.trainable().items()}

    before = {name: value.detach() for name, value in policy(dtype=torch.float64).trainable().items()}
    together, distributed._world = distributed._world, distributed.World()
    wanted = weights(policy(dtype=torch.float64))
    distributed._world = together
    config = ParallelConfig(reduce_dtype=None)
    found = weights(policy(dtype=torch.float64).divided(config, torch.device("cpu")))
    for name, value in wanted.items():
        moved = (value - before[name]).norm()
        assert moved > 0
        assert (found[name] - value).norm() <= 1e-4 * moved, name


def test_updates_move_every_weight_as_in_one_process() -> None:
    on_ranks(2, updated)


def scored(rewards: list[float | None]) -> None:
    """Each rank gets the log-probs of its own sequences, equal to those of one process up to rounding."""
    world, spec = distributed.world(), LossSpec.preset("grpo")
    batch = replace(batch_of(rewards), old_logprobs=None, ref_logprobs=None)
    whole_model = policy()
    ours = copy.deepcopy(whole_model).divided(ParallelConfig(), torch.device("cpu"))
    passes = ranks_passes(batch, spec, 1, 2, world.size)[world.rank][0]
    found = score(ours, batch, passes, 0.9)
    wanted = score(whole_model, batch, [list(range(len(batch)))], 0.9)
    mine = {i for indices in passes for i in indices}
    for i in range(len(batch)):
        assert found[i].isnan().all() if i not in mine else torch.allclose(found[i], wanted[i], atol=1e-5)
    assert {i for indices in distributed.gathered(mine) for i in indices} >= {2, 3}


def test_each_rank_scores_its_own_sequences() -> None:
    on_ranks(2, scored, FEW)


def measured() -> None:
    alone, ours = policy(), policy().divided(ParallelConfig(), torch.device("cpu"))
    wanted, found = measure(alone.model), measure(ours.model, compute=ours.compute)
    assert found.token == pytest.approx(wanted.token, rel=0.02)
    assert found.layer == pytest.approx(wanted.layer, rel=0.02)


def test_activation_memory_measured_on_divided_weights_equals_that_of_one_process() -> None:
    on_ranks(2, measured)


def test_rows_are_spread_by_tokens() -> None:
    batch = batch_of(ALL)
    rows = [[i] for i in range(len(batch))]
    for ranks in (1, 2, 3, 4, 20):
        parts = spread_rows(batch, rows, ranks)
        assert len(parts) == ranks
        assert sorted(row for part in parts for row in part) == rows
        tokens = [
            sum(len(batch.turns[i].completion_ids) for [i] in part)
            + sum(map(len, {batch.turns[i].prompt_ids for [i] in part}))
            for part in parts
        ]
        assert max(tokens) <= sum(map(len, (t.completion_ids + t.prompt_ids for t in batch.turns))) / ranks + 28
