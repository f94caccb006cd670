# task: swish_chain
# backend: cuda
# needs: cuda
# slow: build
# why: the simplest CUDA extension, on the default stream
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = "torch::Tensor swish(torch::Tensor x);"
CUDA = """
__global__ void swish_kernel(const float* x, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float y = x[i] / (1.0f + expf(-1.5f * x[i])) + 0.25f;
  out[i] = y < -1.0f ? -1.0f : (y > 6.0f ? 6.0f : y);
}

torch::Tensor swish(torch::Tensor x) {
  auto out = torch::empty_like(x);
  const int n = x.numel();
  swish_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), n);
  return out;
}
"""

native = load_inline("kc_cuda_swish", CPP, CUDA, functions=["swish"])


class ModelNew(nn.Module):
    def forward(self, x):
        return native.swish(x)
