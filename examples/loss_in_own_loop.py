"""Use the ops in a training loop of your own: advantages from rewards, an exact loss, updates. This takes a second.

python examples/loss_in_own_loop.py
"""

from __future__ import annotations

import torch
from kernel_coder import LossSpec, ops
from torch import nn

VOCABULARY, LENGTH, GROUP = 64, 12, 4


def main() -> None:
    """Train on two groups of answers to two prompts: answers with a larger reward become more likely."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCABULARY, 32), nn.Linear(32, VOCABULARY))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.randint(VOCABULARY, (2 * GROUP, LENGTH + 1))
    inputs, answers = tokens[:, :-1], tokens[:, 1:]
    rewards = (answers % 2 == 0).float().mean(dim=1)  # even tokens are good
    advantages = ops.group_advantages(rewards, GROUP, mode="grpo")
    for step in range(1, 4):
        out = ops.grpo_loss(model(inputs), answers, advantages, LossSpec.preset("dapo"))
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
        better = out.logprobs.mean(dim=1)[advantages > 0].mean()
        print(f"step {step}: loss {out.loss.item():.4f}, mean log-prob of the better answers {better.item():.3f}")


if __name__ == "__main__":
    main()
