# task: layer_norm
# backend: cuda
# needs: cuda
# slow: build
# why: dynamic shared memory, whose size depends on the row
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = "torch::Tensor layer_norm(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double eps);"
CUDA = """
__device__ float block_sum(float value, float* scratch) {
  __syncthreads();
  scratch[threadIdx.x] = value;
  for (int k = blockDim.x / 2; k; k /= 2) {
    __syncthreads();
    if (threadIdx.x < k) scratch[threadIdx.x] += scratch[threadIdx.x + k];
  }
  __syncthreads();
  return scratch[0];
}

__global__ void layer_norm_kernel(
    const float* x, const float* weight, const float* bias, float* out, int dim, float eps) {
  extern __shared__ float shared[];
  float *row = shared, *scratch = shared + dim;
  float total = 0.0f, squares = 0.0f;
  for (int j = threadIdx.x; j < dim; j += blockDim.x) total += row[j] = x[blockIdx.x * dim + j];
  const float mean = block_sum(total, scratch) / dim;
  for (int j = threadIdx.x; j < dim; j += blockDim.x) squares += (row[j] - mean) * (row[j] - mean);
  const float scale = 1.0f / sqrtf(block_sum(squares, scratch) / dim + eps);
  for (int j = threadIdx.x; j < dim; j += blockDim.x)
    out[blockIdx.x * dim + j] = (row[j] - mean) * scale * weight[j] + bias[j];
}

torch::Tensor layer_norm(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double eps) {
  auto out = torch::empty_like(x);
  const int dim = x.size(1);
  layer_norm_kernel<<<x.size(0), 128, (dim + 128) * sizeof(float)>>>(
      x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), out.data_ptr<float>(), dim, eps);
  return out;
}
"""

native = load_inline("kc_cuda_layer_norm", CPP, CUDA, functions=["layer_norm"])


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return native.layer_norm(x, self.norm.weight, self.norm.bias, self.norm.eps)
