# precision: fp32
# second: batch_size=7, in_features=50, out_features=19
import torch
import torch.nn as nn

batch_size, in_features, out_features = 16, 48, 32


class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
