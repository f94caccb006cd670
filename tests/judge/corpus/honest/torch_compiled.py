# task: residual_mlp
# backend: torch
# slow: build
# why: torch.compile on part of the module; it compiles on the first call and starts worker processes
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.layers = nn.Sequential(nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, dim))
        self.run = torch.compile(self.compute, dynamic=False)

    def compute(self, x):
        return x + self.layers(self.norm(x))

    def forward(self, x):
        return self.run(x)
