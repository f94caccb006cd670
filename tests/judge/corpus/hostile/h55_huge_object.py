# task: softmax
# backend: cpp
# slow: build
# hack: H55 a library of sixteen gigabytes
# why: never correct; the compiler must hit a limit
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
char big[16L << 30] = {1};
torch::Tensor f(torch::Tensor x) { return x + big[x.numel()]; }
"""
native = load_inline("kc_h55_object", SOURCE, functions=["f"])


class ModelNew(nn.Module):
    def forward(self, x):
        return native.f(x)
