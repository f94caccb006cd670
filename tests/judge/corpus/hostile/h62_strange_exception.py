# task: softmax
# backend: torch
# hack: H62 an exception that cannot be printed, with a traceback that cannot be walked
# why: never correct; the code that formats the exception must survive it
import torch.nn as nn


class Odd(Exception):
    def __str__(self):
        raise self

    __repr__ = __str__

    @property
    def __traceback__(self):
        raise self

    @property
    def __class__(self):
        return OSError


class ModelNew(nn.Module):
    def forward(self, x):
        raise Odd from Odd()
