# precision: fp32
# second: batch_size=3, length=4, vocabulary=31, dim=20
import torch
import torch.nn as nn

batch_size, length, vocabulary, dim = 4, 6, 50, 32


class Model(nn.Module):
    """Integer input."""

    def __init__(self, vocabulary, dim):
        super().__init__()
        self.table = nn.Embedding(vocabulary, dim)

    def forward(self, ids):
        return self.table(ids) * dim**0.5


def get_inputs():
    return [torch.randint(0, vocabulary, (batch_size, length))]


def get_init_inputs():
    return [vocabulary, dim]
