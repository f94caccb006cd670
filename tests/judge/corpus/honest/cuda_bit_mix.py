# task: bit_mix
# backend: cuda
# needs: cuda
# slow: build
# why: 64-bit integers in and out
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = "torch::Tensor mix(torch::Tensor x, torch::Tensor y);"
CUDA = """
__global__ void mix_kernel(const int64_t* x, const int64_t* y, int64_t* out, int64_t n) {
  const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) out[i] = (x[i] ^ (y[i] >> 3)) * 5 + (x[i] & 255);
}

torch::Tensor mix(torch::Tensor x, torch::Tensor y) {
  auto out = torch::empty_like(x);
  const int64_t n = x.numel();
  mix_kernel<<<(n + 127) / 128, 128>>>(x.data_ptr<int64_t>(), y.data_ptr<int64_t>(), out.data_ptr<int64_t>(), n);
  return out;
}
"""

native = load_inline("kc_cuda_bit_mix", CPP, CUDA, functions=["mix"])


class ModelNew(nn.Module):
    def forward(self, x, y):
        return native.mix(x, y)
