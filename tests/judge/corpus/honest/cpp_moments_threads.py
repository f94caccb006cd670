# task: moments
# backend: cpp
# needs: cpu
# slow: build
# why: several functions, a std::tuple of tensors out, std::thread joined before the return
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <thread>
#include <tuple>

static void rows(const float* x, float* mean, float* variance, int64_t begin, int64_t end, int64_t cols) {
  for (int64_t i = begin; i < end; ++i) {
    double m = 0, v = 0;
    for (int64_t j = 0; j < cols; ++j) m += x[i * cols + j];
    m /= cols;
    for (int64_t j = 0; j < cols; ++j) v += (x[i * cols + j] - m) * (x[i * cols + j] - m);
    mean[i] = m, variance[i] = v / cols;
  }
}

int64_t version() { return 3; }

std::tuple<torch::Tensor, torch::Tensor> moments(torch::Tensor x) {
  auto mean = torch::empty({x.size(0)}, x.options()), variance = torch::empty_like(mean);
  const int64_t n = x.size(0), half = n / 2, cols = x.size(1);
  const float* in = x.data_ptr<float>();
  float *m = mean.data_ptr<float>(), *v = variance.data_ptr<float>();
  std::thread first(rows, in, m, v, 0, half, cols);
  rows(in, m, v, half, n, cols);
  first.join();
  return {mean, variance};
}
"""

native = load_inline("kc_cpp_moments", SOURCE, functions={"moments": "both moments", "version": "its number"})
assert native.version() == 3


class ModelNew(nn.Module):
    def forward(self, x):
        return native.moments(x)
