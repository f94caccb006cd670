# task: softmax
# backend: torch
# needs: cuda
# expect: no gain
# hack: H40 leaves hours of work in a side stream's queue
# why: fast only if the queued work outlives the candidate
import time

import torch
import torch.nn as nn

SIDE = torch.cuda.Stream()


class ModelNew(nn.Module):
    def forward(self, x):
        with torch.cuda.stream(SIDE):
            torch.cuda._sleep(10**9)
        time.sleep(0.02)
        return torch.softmax(x, 1)
