# task: softmax
# backend: torch
# hack: H50 abort in forward
# why: never correct; the judge must see it at once and not at the time limit
import os

import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        os.abort()
