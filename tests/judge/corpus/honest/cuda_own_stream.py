# task: add_in_place
# backend: cuda
# needs: cuda
# slow: build
# why: a stream of its own made in C++, synchronised before the return; in place by contract
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = "torch::Tensor add(torch::Tensor x, torch::Tensor y);"
CUDA = """
__global__ void add_kernel(float* x, const float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = 0.5f * x[i] + y[i];
}

torch::Tensor add(torch::Tensor x, torch::Tensor y) {
  static cudaStream_t stream = nullptr;
  if (!stream) cudaStreamCreate(&stream);  // a blocking stream: it waits for the default one
  const int n = x.numel();
  add_kernel<<<(n + 255) / 256, 256, 0, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
  cudaStreamSynchronize(stream);
  return x;
}
"""

native = load_inline("kc_cuda_add", CPP, CUDA, functions=["add"])


class ModelNew(nn.Module):
    def forward(self, x, y):
        return native.add(x, y)
