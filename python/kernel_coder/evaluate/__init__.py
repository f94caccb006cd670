"""``kernel-coder evaluate``: samples a model's answers to tasks, judges them and computes metrics."""
