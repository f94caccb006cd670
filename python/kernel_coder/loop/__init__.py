"""``kernel-coder loop``: rounds of reinforcement learning, a filter, and supervised training from the start (RLoop)."""
