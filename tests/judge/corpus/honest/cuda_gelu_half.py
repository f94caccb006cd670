# task: gelu_half
# backend: cuda
# needs: cuda
# slow: build
# why: half precision by __half, computed in single precision
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = "torch::Tensor gelu(torch::Tensor x, torch::Tensor y);"
CUDA = """
#include <cuda_fp16.h>

__global__ void gelu_kernel(const __half* x, const __half* y, __half* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float v = __half2float(x[i]);
  out[i] = __float2half(0.5f * v * (1.0f + erff(v * 0.70710678f)) * __half2float(y[i]));
}

torch::Tensor gelu(torch::Tensor x, torch::Tensor y) {
  auto out = torch::empty_like(x);
  const int n = x.numel();
  gelu_kernel<<<(n + 255) / 256, 256>>>(
      reinterpret_cast<const __half*>(x.data_ptr()), reinterpret_cast<const __half*>(y.data_ptr()),
      reinterpret_cast<__half*>(out.data_ptr()), n);
  return out;
}
"""

native = load_inline("kc_cuda_gelu", CPP, CUDA, functions=["gelu"])


class ModelNew(nn.Module):
    def forward(self, x, y):
        return native.gelu(x, y)
