# task: layer_norm
# backend: cpp
# needs: cpu
# slow: build
# why: OpenMP threads, which stay alive between calls
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <cmath>

torch::Tensor layer_norm(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double eps) {
  auto out = torch::empty_like(x);
  const int64_t rows = x.size(0), dim = x.size(1);
  const float *in = x.data_ptr<float>(), *w = weight.data_ptr<float>(), *b = bias.data_ptr<float>();
  float* result = out.data_ptr<float>();
#pragma omp parallel for
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = in + i * dim;
    double mean = 0, variance = 0;
    for (int64_t j = 0; j < dim; ++j) mean += row[j];
    mean /= dim;
    for (int64_t j = 0; j < dim; ++j) variance += (row[j] - mean) * (row[j] - mean);
    const double scale = 1 / std::sqrt(variance / dim + eps);
    for (int64_t j = 0; j < dim; ++j) result[i * dim + j] = (row[j] - mean) * scale * w[j] + b[j];
  }
  return out;
}
"""

native = load_inline(
    "kc_cpp_layer_norm", SOURCE, functions=["layer_norm"], extra_cflags=["-O3", "-fopenmp"], extra_ldflags=["-fopenmp"]
)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return native.layer_norm(x, self.norm.weight, self.norm.bias, self.norm.eps)
