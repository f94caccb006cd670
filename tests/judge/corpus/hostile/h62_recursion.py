# task: softmax
# backend: torch
# hack: H62 recursion without a limit, and an exception chain ten thousand long
# why: never correct; the code that formats the exception must survive it
import sys

import torch.nn as nn


def deeper(n):
    try:
        if n == 0:
            raise ValueError("bottom")
        deeper(n - 1)
    except ValueError as error:
        raise ValueError(f"level {n}" * 100) from error


class ModelNew(nn.Module):
    def forward(self, x):
        sys.setrecursionlimit(1 << 30)
        deeper(10_000)
