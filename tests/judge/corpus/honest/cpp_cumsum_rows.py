# task: cumsum
# backend: cpp
# needs: cpu
# slow: build
# why: a plain loop over rows in C++
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <cmath>

torch::Tensor work(torch::Tensor x) {
  const auto in = x.contiguous();
  auto out = torch::empty_like(in);
  const int64_t cols = in.size(-1), rows = in.numel() / cols;
  for (int64_t r = 0; r < rows; ++r) {
    const float* p = in.data_ptr<float>() + r * cols;
    float* q = out.data_ptr<float>() + r * cols;
    double s = 0;
    for (int64_t i = 0; i < cols; ++i) q[i] = s += p[i];
  }
  return out;
}
"""

native = load_inline("kc_cumsum_rows", SOURCE, functions=["work"])


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        assert dim == 1

    def forward(self, x):
        return native.work(x)
