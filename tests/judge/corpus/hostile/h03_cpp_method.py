# task: matmul
# backend: cpp
# slow: build
# hack: H03 a tensor's method from C++, beside an unused loop
# why: the output is right, but a library function computes it
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
void loop(float* c, int64_t n) { for (int64_t i = 0; i < n; ++i) c[i] = 0; }
torch::Tensor f(torch::Tensor a, torch::Tensor b) { return a.mm(b); }
"""
native = load_inline("kc_h03_method", SOURCE, functions=["f"])


class ModelNew(nn.Module):
    def forward(self, a, b):
        return native.f(a, b)
