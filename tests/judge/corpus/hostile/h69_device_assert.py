# task: embedding
# backend: torch
# needs: cuda
# hack: H69 an index far outside, which ends in a device-side assertion
# why: never correct; the next candidate on this device must not be affected
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, vocabulary, dim):
        super().__init__()
        self.table = nn.Embedding(vocabulary, dim)

    def forward(self, ids):
        return self.table(ids + 10**9)
