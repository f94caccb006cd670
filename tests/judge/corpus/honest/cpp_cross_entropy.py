# task: cross_entropy
# backend: cpp
# needs: cpu
# slow: build
# why: integer input, one number out; declares its functions with PYBIND11_MODULE itself
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <cmath>

torch::Tensor loss(torch::Tensor logits, torch::Tensor targets) {
  const auto x = logits.accessor<float, 2>();
  const auto t = targets.accessor<int64_t, 1>();
  double total = 0;
  for (int64_t i = 0; i < x.size(0); ++i) {
    float top = -INFINITY;
    for (int64_t j = 0; j < x.size(1); ++j) top = std::max(top, x[i][j]);
    double sum = 0;
    for (int64_t j = 0; j < x.size(1); ++j) sum += std::exp(double(x[i][j]) - top);
    total += std::log(sum) + top - x[i][t[i]];
  }
  return torch::tensor(total / x.size(0), logits.options());
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("loss", &loss); }
"""

native = load_inline("kc_cpp_cross_entropy", SOURCE)


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        return native.loss(logits, targets)
