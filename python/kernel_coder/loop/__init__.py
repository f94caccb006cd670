"""``kernel-coder loop``: rounds of reinforcement learning, filtering, and supervised training from the start (RLoop)."""
