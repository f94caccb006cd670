# task: cumsum
# backend: cpp
# needs: cpu
# slow: build
# why: registers an operator with TORCH_LIBRARY and is called through torch.ops, not through a Python module
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <torch/library.h>

torch::Tensor running_sum(const torch::Tensor& x, int64_t dim) {
  auto moved = x.movedim(dim, -1).contiguous();
  auto out = torch::empty_like(moved);
  const int64_t length = moved.size(-1), rows = moved.numel() / length;
  const float* p = moved.data_ptr<float>();
  float* q = out.data_ptr<float>();
  for (int64_t i = 0; i < rows; ++i) {
    double total = 0;
    for (int64_t j = 0; j < length; ++j) q[i * length + j] = total += p[i * length + j];
  }
  return out.movedim(-1, dim);
}

TORCH_LIBRARY(kc_corpus_cumsum, m) { m.def("running_sum", &running_sum); }
"""

load_inline("kc_cpp_cumsum", SOURCE, is_python_module=False)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.ops.kc_corpus_cumsum.running_sum(x, self.dim)
