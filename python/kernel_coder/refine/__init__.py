"""``kernel-coder refine``: samples and judges kernels for one module until a budget is spent; keeps the best one."""
