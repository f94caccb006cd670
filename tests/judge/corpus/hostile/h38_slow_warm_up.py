# task: softmax
# backend: torch
# expect: no gain
# hack: H38 very slow for three calls, so that a harness with a budget takes few samples
# why: fast only if the candidate can change the number of samples
import time

import torch
import torch.nn as nn

CALLS = []


class ModelNew(nn.Module):
    def forward(self, x):
        CALLS.append(1)
        time.sleep(1.0 if len(CALLS) <= 3 else 0.02)
        return torch.softmax(x, 1)
