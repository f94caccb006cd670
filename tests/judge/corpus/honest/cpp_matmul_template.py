# task: matmul
# backend: cpp
# needs: cpu
# slow: build
# why: templates, and at::parallel_for with ATen's own threads
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <ATen/Parallel.h>

template <typename T, int BLOCK>
void matmul_rows(const T* a, const T* b, T* c, int64_t n, int64_t k, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i)
    for (int64_t start = 0; start < n; start += BLOCK) {
      double total[BLOCK] = {};
      const int64_t width = std::min<int64_t>(BLOCK, n - start);
      for (int64_t p = 0; p < k; ++p)
        for (int64_t j = 0; j < width; ++j) total[j] += double(a[i * k + p]) * b[p * n + start + j];
      for (int64_t j = 0; j < width; ++j) c[i * n + start + j] = T(total[j]);
    }
}

torch::Tensor matmul(torch::Tensor a, torch::Tensor b) {
  TORCH_CHECK(a.size(1) == b.size(0), "inner sizes differ");
  auto x = a.contiguous(), y = b.contiguous();
  const int64_t m = x.size(0), k = x.size(1), n = y.size(1);
  auto c = torch::empty({m, n}, a.options());
  at::parallel_for(0, m, 4, [&](int64_t begin, int64_t end) {
    matmul_rows<float, 8>(x.data_ptr<float>(), y.data_ptr<float>(), c.data_ptr<float>(), n, k, begin, end);
  });
  return c;
}
"""

native = load_inline("kc_cpp_matmul", SOURCE, functions=["matmul"])


class ModelNew(nn.Module):
    def forward(self, a, b):
        return native.matmul(a, b)
