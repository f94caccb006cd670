# task: matmul
# backend: cuda
# needs: cuda
# slow: build
# why: tiles in shared memory, a two-dimensional grid, sizes that do not divide
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = "torch::Tensor matmul(torch::Tensor a, torch::Tensor b);"
CUDA = """
constexpr int TILE = 16;

__global__ void matmul_kernel(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float left[TILE][TILE], right[TILE][TILE + 1];
  const int i = blockIdx.y * TILE + threadIdx.y, j = blockIdx.x * TILE + threadIdx.x;
  float total = 0.0f;
  for (int start = 0; start < k; start += TILE) {
    const int p = start + threadIdx.x, q = start + threadIdx.y;
    left[threadIdx.y][threadIdx.x] = i < m && p < k ? a[i * k + p] : 0.0f;
    right[threadIdx.y][threadIdx.x] = q < k && j < n ? b[q * n + j] : 0.0f;
    __syncthreads();
    for (int s = 0; s < TILE; ++s) total += left[threadIdx.y][s] * right[s][threadIdx.x];
    __syncthreads();
  }
  if (i < m && j < n) c[i * n + j] = total;
}

torch::Tensor matmul(torch::Tensor a, torch::Tensor b) {
  const int m = a.size(0), k = a.size(1), n = b.size(1);
  auto c = torch::empty({m, n}, a.options());
  const dim3 grid((n + TILE - 1) / TILE, (m + TILE - 1) / TILE);
  matmul_kernel<<<grid, dim3(TILE, TILE)>>>(a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), m, n, k);
  return c;
}
"""

native = load_inline("kc_cuda_matmul", CPP, CUDA, functions=["matmul"])


class ModelNew(nn.Module):
    def forward(self, a, b):
        return native.matmul(a.contiguous(), b.contiguous())
