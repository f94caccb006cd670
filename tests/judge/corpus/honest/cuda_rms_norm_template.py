# task: rms_norm
# backend: cuda
# needs: cuda
# slow: build
# why: a template over the block size, so the kernel's name in a profile is mangled with arguments
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = "torch::Tensor rms_norm(torch::Tensor x, torch::Tensor weight, double eps);"
CUDA = """
template <typename T, int THREADS>
__global__ void rms_norm_kernel(const T* x, const T* weight, T* out, int dim, T eps) {
  __shared__ T parts[THREADS / 32];
  const T* row = x + blockIdx.x * (size_t)dim;
  T total = 0;
  for (int j = threadIdx.x; j < dim; j += THREADS) total += row[j] * row[j];
  for (int k = 16; k; k /= 2) total += __shfl_down_sync(~0u, total, k);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = total;
  __syncthreads();
  total = 0;
  for (int k = 0; k < THREADS / 32; ++k) total += parts[k];
  const T scale = rsqrtf(total / dim + eps);
  for (int j = threadIdx.x; j < dim; j += THREADS) out[blockIdx.x * (size_t)dim + j] = row[j] * scale * weight[j];
}

torch::Tensor rms_norm(torch::Tensor x, torch::Tensor weight, double eps) {
  auto in = x.contiguous();
  auto out = torch::empty_like(in);
  const int dim = in.size(-1), rows = in.numel() / dim;
  const float *p = in.data_ptr<float>(), *w = weight.data_ptr<float>();
  if (dim > 512)
    rms_norm_kernel<float, 256><<<rows, 256>>>(p, w, out.data_ptr<float>(), dim, eps);
  else
    rms_norm_kernel<float, 64><<<rows, 64>>>(p, w, out.data_ptr<float>(), dim, eps);
  return out;
}
"""

native = load_inline("kc_cuda_rms_norm", CPP, CUDA, functions=["rms_norm"])


class ModelNew(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return native.rms_norm(x, self.weight, self.eps)
