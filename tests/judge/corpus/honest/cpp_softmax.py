# task: softmax
# backend: cpp
# needs: cpu
# slow: build
# why: the extension is built in __init__, not at import, with flags of its own
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <cmath>

torch::Tensor softmax(const torch::Tensor& x) {
  auto out = torch::empty_like(x);
  const auto in = x.accessor<float, 2>();
  auto result = out.accessor<float, 2>();
  for (int64_t i = 0; i < x.size(0); ++i) {
    float top = -INFINITY;
    for (int64_t j = 0; j < x.size(1); ++j) top = std::max(top, in[i][j]);
    double total = 0;
    for (int64_t j = 0; j < x.size(1); ++j) total += result[i][j] = std::exp(in[i][j] - top);
    for (int64_t j = 0; j < x.size(1); ++j) result[i][j] /= total;
  }
  return out;
}
"""


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.native = load_inline(
            "kc_cpp_softmax", [SOURCE], functions="softmax", extra_cflags=["-O2", "-fno-math-errno"]
        )

    def forward(self, x):
        return self.native.softmax(x)
