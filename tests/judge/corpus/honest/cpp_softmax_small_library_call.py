# task: softmax
# backend: cpp
# needs: cpu
# slow: build
# why: torch::empty contains a guard that excludes dispatch keys, and it calls a small operator
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <cmath>
torch::Tensor work(torch::Tensor x) {
  auto out = torch::empty({x.size(0), x.size(1)}, x.options());
  auto largest = at::mul(std::get<0>(x.max(1)), 1.0);
  const float *in = x.data_ptr<float>(), *top = largest.data_ptr<float>();
  const int64_t cols = x.size(1);
  for (int64_t row = 0; row < x.size(0); ++row) {
    double sum = 0;
    for (int64_t i = 0; i < cols; ++i) sum += std::exp(in[row * cols + i] - top[row]);
    float* y = out.data_ptr<float>() + row * cols;
    for (int64_t i = 0; i < cols; ++i) y[i] = std::exp(in[row * cols + i] - top[row]) / sum;
  }
  return out;
}
"""

native = load_inline("kc_small_library_call", SOURCE, functions=["work"])


class ModelNew(nn.Module):
    def forward(self, x):
        return native.work(x)
