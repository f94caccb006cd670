# task: softmax
# backend: cpp
# needs: cpu
# slow: build
# why: torch::empty contains a guard that excludes dispatch keys, and it calls a small operator
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <algorithm>
#include <cmath>
torch::Tensor work(torch::Tensor x) {
  auto out = torch::empty({x.size(0), x.size(1)}, x.options());
  auto factors = at::mul(torch::ones({x.size(0)}, x.options()), 1.0);
  const float *in = x.data_ptr<float>(), *factor = factors.data_ptr<float>();
  const int64_t cols = x.size(1);
  for (int64_t row = 0; row < x.size(0); ++row, in += cols) {
    float top = in[0];
    for (int64_t i = 1; i < cols; ++i) top = std::max(top, in[i]);
    double sum = 0;
    for (int64_t i = 0; i < cols; ++i) sum += std::exp(in[i] - top);
    float* y = out.data_ptr<float>() + row * cols;
    for (int64_t i = 0; i < cols; ++i) y[i] = factor[row] * std::exp(in[i] - top) / sum;
  }
  return out;
}
"""

native = load_inline("kc_small_library_call", SOURCE, functions=["work"])


class ModelNew(nn.Module):
    def forward(self, x):
        return native.work(x)
