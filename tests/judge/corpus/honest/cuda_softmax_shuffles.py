# task: softmax
# backend: cuda
# needs: cuda
# slow: build
# why: one warp for each row, reductions by shuffles
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = "torch::Tensor softmax(torch::Tensor x);"
CUDA = """
__global__ void softmax_kernel(const float* x, float* out, int cols) {
  const float* row = x + blockIdx.x * (size_t)cols;
  float top = -INFINITY, total = 0.0f;
  for (int j = threadIdx.x; j < cols; j += 32) top = fmaxf(top, row[j]);
  for (int k = 16; k; k /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, k));
  for (int j = threadIdx.x; j < cols; j += 32) total += expf(row[j] - top);
  for (int k = 16; k; k /= 2) total += __shfl_xor_sync(~0u, total, k);
  for (int j = threadIdx.x; j < cols; j += 32) out[blockIdx.x * (size_t)cols + j] = expf(row[j] - top) / total;
}

torch::Tensor softmax(torch::Tensor x) {
  auto out = torch::empty_like(x);
  softmax_kernel<<<x.size(0), 32>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.size(1));
  return out;
}
"""

native = load_inline("kc_cuda_softmax", CPP, CUDA, functions=["softmax"], extra_cuda_cflags=["-O3"])


class ModelNew(nn.Module):
    def forward(self, x):
        return native.softmax(x)
