# task: add_in_place
# backend: cpp
# needs: cpu
# slow: build
# why: writes to its input by contract, from two source strings with a header between them
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

KERNEL = """
void add(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = 0.5f * x[i] + y[i];
}
"""
BINDING = """
void add(float* x, const float* y, int64_t n);

torch::Tensor add_in_place(torch::Tensor x, torch::Tensor y) {
  TORCH_CHECK(x.is_contiguous() && y.is_contiguous());
  add(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return x;
}
"""

native = load_inline("kc_cpp_add", [KERNEL, BINDING], functions=["add_in_place"], verbose=False)


class ModelNew(nn.Module):
    def forward(self, x, y):
        return native.add_in_place(x, y)
