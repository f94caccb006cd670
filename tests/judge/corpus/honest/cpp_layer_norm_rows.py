# task: layer_norm
# backend: cpp
# needs: cpu
# slow: build
# why: a plain loop over rows in C++
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <cmath>

torch::Tensor work(torch::Tensor x, torch::Tensor w, torch::Tensor b, double eps) {
  const auto in = x.contiguous();
  auto out = torch::empty_like(in);
  const int64_t cols = in.size(-1), rows = in.numel() / cols;
  for (int64_t r = 0; r < rows; ++r) {
    const float* p = in.data_ptr<float>() + r * cols;
    float* q = out.data_ptr<float>() + r * cols;
    double s = 0, v = 0;
    for (int64_t i = 0; i < cols; ++i) s += p[i];
    for (int64_t i = 0; i < cols; ++i) v += (p[i] - s / cols) * (p[i] - s / cols);
    const double scale = 1 / std::sqrt(v / cols + eps);
    const float *g = w.data_ptr<float>(), *h = b.data_ptr<float>();
    for (int64_t i = 0; i < cols; ++i) q[i] = (p[i] - s / cols) * scale * g[i] + h[i];
  }
  return out;
}
"""

native = load_inline("kc_layer_norm_rows", SOURCE, functions=["work"])


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return native.work(x, self.norm.weight, self.norm.bias, self.norm.eps)
