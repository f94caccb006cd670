# task: rotary
# backend: cpp
# needs: cpu
# slow: build
# why: angles in double precision; its result is nearer to the oracle than the reference's
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <cmath>

torch::Tensor rotary(torch::Tensor x) {
  auto in = x.contiguous();
  auto out = torch::empty_like(in);
  const int64_t features = in.size(-1), half = features / 2, length = in.size(-2), rows = in.numel() / features;
  const float* p = in.data_ptr<float>();
  float* q = out.data_ptr<float>();
  for (int64_t r = 0; r < rows; ++r, p += features, q += features)
    for (int64_t i = 0; i < half; ++i) {
      const double angle = (r % length) * std::pow(10000.0, -2.0 * i / features);
      const double s = std::sin(angle), c = std::cos(angle);
      q[i] = static_cast<float>(p[i] * c - p[half + i] * s);
      q[half + i] = static_cast<float>(p[half + i] * c + p[i] * s);
    }
  return out;
}
"""

native = load_inline("kc_rotary", SOURCE, functions=["rotary"])


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()

    def forward(self, x):
        return native.rotary(x)
