# task: cumsum
# backend: cpp
# needs: cpu
# slow: build
# why: the loop's step comes from another C++ function; without that function the loop never ends, or the process ends
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
int64_t block(int64_t cols) { return cols < 64 ? cols : 64; }

torch::Tensor scan(torch::Tensor x, int64_t step) {
  auto in = x.contiguous();
  auto out = torch::empty_like(in);
  const float* p = in.data_ptr<float>();
  float* q = out.data_ptr<float>();
  const int64_t rows = in.size(0), cols = in.size(1);
  for (int64_t i = 0; i < rows; ++i) {
    double sum = 0;
    for (int64_t begin = 0; begin < cols; begin += step)
      for (int64_t j = begin; j < std::min(cols, begin + step); ++j) q[i * cols + j] = sum += p[i * cols + j];
  }
  return out;
}
"""

native = load_inline("kc_cpp_cumsum_block_size", SOURCE, functions=["block", "scan"])


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return native.scan(x, native.block(x.shape[self.dim]))
