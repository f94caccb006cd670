# task: row_sum
# backend: cuda
# needs: cuda
# slow: build
# why: zeroes its output with cudaMemsetAsync and adds atomically
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = "torch::Tensor row_sum(torch::Tensor x);"
CUDA = """
__global__ void row_sum_kernel(const float* x, float* out, int cols) {
  const int j = blockIdx.y * blockDim.x + threadIdx.x;
  float value = j < cols ? x[blockIdx.x * cols + j] : 0.0f;
  for (int k = 16; k; k /= 2) value += __shfl_down_sync(~0u, value, k);
  if (threadIdx.x % 32 == 0) atomicAdd(out + blockIdx.x, value);
}

torch::Tensor row_sum(torch::Tensor x) {
  auto out = torch::empty({x.size(0)}, x.options());
  cudaMemsetAsync(out.data_ptr<float>(), 0, out.numel() * sizeof(float), 0);
  const int cols = x.size(1);
  row_sum_kernel<<<dim3(x.size(0), (cols + 127) / 128), 128>>>(x.data_ptr<float>(), out.data_ptr<float>(), cols);
  return out;
}
"""

native = load_inline("kc_cuda_row_sum", CPP, CUDA, functions=["row_sum"])


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        assert dim == 1

    def forward(self, x):
        return native.row_sum(x)
