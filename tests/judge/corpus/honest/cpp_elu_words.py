# task: elu
# backend: cpp
# needs: cpu
# slow: build
# why: names of its functions that look like those of a library
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <cmath>
// sgemm_blocked, cblas_sgemm and at::cpu::_softmax do it otherwise
static int sgemm_blocked(int n) { return n; }
namespace native { inline int softmax(int n) { return sgemm_blocked(n); } }

torch::Tensor work(torch::Tensor x) {
  const auto in = x.contiguous();
  auto out = torch::empty_like(in);
  const int64_t cols = in.size(-1), rows = native::softmax(in.numel() / cols);
  for (int64_t r = 0; r < rows; ++r) {
    const float* p = in.data_ptr<float>() + r * cols;
    float* q = out.data_ptr<float>() + r * cols;
    for (int64_t i = 0; i < cols; ++i) q[i] = p[i] > 0 ? p[i] : std::expm1(p[i]);
  }
  return out;
}
"""

native = load_inline("kc_elu_words", SOURCE, functions=["work"])


class ModelNew(nn.Module):
    def forward(self, x):
        return native.work(x)
