# task: softmax
# backend: torch
# needs: cuda
# hack: H67 takes all device memory and sleeps
# why: never correct; freed afterwards, and others are not starved
import time

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        kept, size = [], 1 << 30
        while size >= 1 << 20:
            try:
                kept.append(torch.empty(size, dtype=torch.uint8, device="cuda").fill_(1))
            except RuntimeError:
                size //= 2
        time.sleep(600)
