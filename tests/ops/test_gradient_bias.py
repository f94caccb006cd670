"""A baseline that includes the sample itself shrinks the expected policy gradient by (n - 1) / n; others do not.

One state, one softmax over actions, rewards known: the gradient of the expected reward is p_a (r_a - sum p r). Groups
of n draws are turned into gradients by the ops that training uses. The mean over many groups comes with a confidence
interval that is narrow enough to tell the two apart.
"""

from __future__ import annotations

import math

import pytest
import torch
from kernel_coder import LossSpec, ops
from torch import Tensor

LOGITS = torch.tensor([0.5, -0.3, 0.2, 0.0, -1.0], dtype=torch.float64)
REWARDS = torch.tensor([1.0, 0.0, 0.3, 2.0, 0.5], dtype=torch.float64)
GROUPS = 40_000
Z = 4.5
"""Standard errors of the intervals: a true mean is outside of one in 150,000."""


def true_gradient() -> Tensor:
    probs = torch.softmax(LOGITS, 0)
    return probs * (REWARDS - probs @ REWARDS)


def estimates(mode: str, n: int, seed: int) -> Tensor:
    """For each group of n draws, the component of the estimate along the true gradient. A mean of 1 is unbiased."""
    generator = torch.Generator().manual_seed(seed)
    actions = torch.multinomial(torch.softmax(LOGITS, 0), GROUPS * n, replacement=True, generator=generator)
    advantages = ops.turn_advantages(REWARDS[actions][:, None], n, mode=mode)[:, 0]
    # The negative gradient of policy_loss: the mean of A grad log p(a) over a group.
    direction = true_gradient()
    score = direction[actions] - torch.softmax(LOGITS, 0) @ direction  # grad log p(a) along the direction
    return (advantages * score).view(GROUPS, n).mean(1) / (direction @ direction)


def interval(values: Tensor) -> tuple[float, float]:
    mean, error = float(values.mean()), float(values.std()) / math.sqrt(len(values))
    return mean - Z * error, mean + Z * error


@pytest.mark.parametrize("n", [2, 4, 8])
def test_the_baseline_of_grpo_shrinks_the_gradient_and_that_of_trloo_does_not(n: int) -> None:
    for seed, mode, factor in ((1, "dr_grpo", (n - 1) / n), (2, "trloo", 1.0)):
        low, high = interval(estimates(mode, n, seed))
        assert low < factor < high, (mode, n, low, high)
        assert high - low < 1 / n, "the interval must tell the two factors apart"
    low, high = interval(estimates("dr_grpo", n, 3))
    assert high < 1
    low, high = interval(estimates("trloo", n, 4))
    assert low > (n - 1) / n


def test_first_of_two_turns_is_unbiased_with_trloo_and_biased_with_dr_grpo() -> None:
    """The first action scales the reward of the second, so the first turn earns a discounted return."""
    n, groups = 4, GROUPS
    generator = torch.Generator().manual_seed(5)
    probs = torch.softmax(LOGITS, 0)
    first, second = (torch.multinomial(probs, groups * n, replacement=True, generator=generator) for _ in range(2))
    scale = torch.tensor([1.0, 0.5, 2.0, 0.0, 1.5], dtype=torch.float64)
    rewards = torch.stack([0.1 * REWARDS[first], scale[first] * REWARDS[second]], dim=1)
    worth = 0.1 * REWARDS + 0.7 * scale * (probs @ REWARDS)  # the expected return of a first action, gamma 0.7
    direction = probs * (worth - probs @ worth)
    score = direction[first] - probs @ direction
    for mode, factor in (("trloo", 1.0), ("dr_grpo", (n - 1) / n)):
        advantages = ops.turn_advantages(rewards, n, gamma=0.7, mode=mode)[:, 0]
        low, high = interval((advantages * score).view(groups, n).mean(1) / (direction @ direction))
        assert low < factor < high
        assert high - low < 1 / n


def test_grpo_and_loo_std_estimates_point_along_the_true_gradient() -> None:
    """Both divide by a standard deviation, which changes the length of the gradient. Only its direction is checked."""
    n = 4
    shrunk, whole = estimates("grpo", n, 6), estimates("loo_std", n, 6)
    assert interval(shrunk)[0] > 0
    assert interval(whole)[0] > 0


def test_gradient_of_policy_loss_equals_the_formula_of_the_estimates() -> None:
    """The tests above compute gradients by hand. Autograd of ``policy_loss`` gives the same gradient."""
    n, groups = 4, 50
    generator = torch.Generator().manual_seed(7)
    actions = torch.multinomial(torch.softmax(LOGITS, 0), groups * n, replacement=True, generator=generator)
    advantages = ops.turn_advantages(REWARDS[actions][:, None], n)[:, 0]
    logits = LOGITS.clone().requires_grad_()
    logprobs = torch.log_softmax(logits, 0)[actions]
    spec = LossSpec.preset("bnpo")
    ops.policy_loss(logprobs, advantages, spec, cu_seqlens=torch.arange(groups * n + 1)).loss.backward()
    assert logits.grad is not None
    probs = torch.softmax(LOGITS, 0)
    by_hand = (advantages[:, None] * (torch.nn.functional.one_hot(actions, 5) - probs)).mean(0)
    torch.testing.assert_close(-logits.grad, by_hand, rtol=1e-12, atol=1e-12)
