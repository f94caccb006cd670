# task: softmax
# backend: torch
# hack: H50 SIGSTOP to itself and its group
# why: never correct; a stopped process neither runs nor ends
import os
import signal

import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        os.killpg(0, signal.SIGSTOP)
