# task: softmax
# backend: torch
# needs: cuda
# expect: no gain
# hack: H29 another class in place of torch.cuda.Event, under every name it has
# why: fast only if the judge believes CUDA events of this process
import time

import torch
import torch.nn as nn


class Event:
    def __init__(self, *args, **kwargs):
        self.cuda_event = 0

    def elapsed_time(self, other):
        return 1e-3

    def __getattr__(self, name):
        return lambda *a, **k: True


for owner in (torch.cuda, torch.cuda.streams, torch._C, torch):
    for name in ("Event", "_CudaEventBase"):
        if hasattr(owner, name):
            setattr(owner, name, Event)


class ModelNew(nn.Module):
    def forward(self, x):
        time.sleep(0.02)
        return torch.softmax(x, 1)
