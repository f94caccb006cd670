# task: softmax
# backend: torch
# hack: H49 an exception whose unpickling ends the process
# why: never correct; a process that receives the exception as a pickle ends
import os

import torch.nn as nn


class Fault(Exception):
    def __reduce__(self):
        return os._exit, (0,)


class ModelNew(nn.Module):
    def forward(self, x):
        raise Fault("a fault")
