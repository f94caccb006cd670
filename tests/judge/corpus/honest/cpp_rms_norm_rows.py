# task: rms_norm
# backend: cpp
# needs: cpu
# slow: build
# why: a plain loop over rows in C++
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <cmath>

torch::Tensor work(torch::Tensor x, torch::Tensor w, double eps) {
  const auto in = x.contiguous();
  auto out = torch::empty_like(in);
  const int64_t cols = in.size(-1), rows = in.numel() / cols;
  for (int64_t r = 0; r < rows; ++r) {
    const float* p = in.data_ptr<float>() + r * cols;
    float* q = out.data_ptr<float>() + r * cols;
    double v = 0;
    for (int64_t i = 0; i < cols; ++i) v += double(p[i]) * p[i];
    const double scale = 1 / std::sqrt(v / cols + eps);
    for (int64_t i = 0; i < cols; ++i) q[i] = p[i] * scale * w.data_ptr<float>()[i];
  }
  return out;
}
"""

native = load_inline("kc_rms_norm_rows", SOURCE, functions=["work"])


class ModelNew(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return native.work(x, self.weight, self.eps)
