# task: rms_norm
# backend: cuda
# needs: cuda
# slow: build
# why: one thread for each row
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = "torch::Tensor work(torch::Tensor x, torch::Tensor w, double eps);"
CUDA = """
__global__ void row_kernel(const float* x, float* out, int cols, const float* w, float eps) {
  const float* p = x + size_t(blockIdx.x) * cols;
  float* q = out + size_t(blockIdx.x) * cols;
  if (threadIdx.x != 0) return;
  float v = 0;
  for (int i = 0; i < cols; ++i) v += p[i] * p[i];
  const float scale = rsqrtf(v / cols + eps);
  for (int i = 0; i < cols; ++i) q[i] = p[i] * scale * w[i];
}

torch::Tensor work(torch::Tensor x, torch::Tensor w, double eps) {
  auto in = x.contiguous();
  auto out = torch::empty_like(in);
  const int cols = in.size(-1), rows = in.numel() / cols;
  row_kernel<<<rows, 1>>>(in.data_ptr<float>(), out.data_ptr<float>(), cols, w.data_ptr<float>(), eps);
  return out;
}
"""

native = load_inline("kc_cuda_rms_norm_serial", CPP, CUDA, functions=["work"])


class ModelNew(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return native.work(x, self.weight, self.eps)
