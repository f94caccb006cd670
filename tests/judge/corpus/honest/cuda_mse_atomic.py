# task: mse_loss
# backend: cuda
# needs: cuda
# slow: build
# why: a sum whose order changes from run to run
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = "torch::Tensor mse(torch::Tensor p, torch::Tensor t);"
CUDA = """
__global__ void mse_kernel(const float* p, const float* t, float* out, int n) {
  float total = 0.0f;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    total += (p[i] - t[i]) * (p[i] - t[i]);
  for (int k = 16; k; k /= 2) total += __shfl_down_sync(~0u, total, k);
  if (threadIdx.x % 32 == 0) atomicAdd(out, total / n);
}

torch::Tensor mse(torch::Tensor p, torch::Tensor t) {
  auto out = torch::zeros({}, p.options());
  mse_kernel<<<4, 128>>>(p.data_ptr<float>(), t.data_ptr<float>(), out.data_ptr<float>(), p.numel());
  return out;
}
"""

native = load_inline("kc_cuda_mse", CPP, CUDA, functions=["mse"])


class ModelNew(nn.Module):
    def forward(self, predictions, targets):
        return native.mse(predictions, targets)
