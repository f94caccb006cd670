# task: gated_gelu
# backend: cpp
# needs: cpu
# slow: build
# why: accessors instead of pointers, and checks with TORCH_CHECK
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <cmath>

torch::Tensor gated_gelu(const torch::Tensor& x, const torch::Tensor& gate) {
  TORCH_CHECK(x.sizes() == gate.sizes(), "x and gate differ in shape");
  TORCH_CHECK(x.dim() == 2, "two dimensions are expected");
  auto out = torch::empty_like(x);
  auto a = x.accessor<float, 2>();
  auto g = gate.accessor<float, 2>();
  auto o = out.accessor<float, 2>();
  for (int64_t i = 0; i < x.size(0); ++i)
    for (int64_t j = 0; j < x.size(1); ++j)
      o[i][j] = 0.5f * g[i][j] * (1.0f + std::erf(g[i][j] * 0.70710678f)) * a[i][j];
  return out;
}
"""

native = load_inline("kc_gated_gelu", SOURCE, functions=["gated_gelu"])


class ModelNew(nn.Module):
    def forward(self, x, gate):
        return native.gated_gelu(x, gate)
