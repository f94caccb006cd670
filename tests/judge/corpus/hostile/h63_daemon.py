# task: softmax
# backend: torch
# hack: H63 setsid, two forks, and the grandchild loops for ever
# why: never correct; no process may be left behind
import os

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                while True:
                    continue
            os._exit(0)
        return torch.zeros_like(x)
