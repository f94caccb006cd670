# task: swish_chain
# backend: cuda
# needs: cuda
# slow: build
# why: 16-byte loads where the size allows it, a scalar kernel for the rest; two kernels, one of them often idle
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = "torch::Tensor swish(torch::Tensor x);"
CUDA = """
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

__device__ __forceinline__ float one(float x) {
  const float y = x / (1.0f + __expf(-1.5f * x)) + 0.25f;
  return y < -1.0f ? -1.0f : (y > 6.0f ? 6.0f : y);
}

__global__ void four_kernel(const float4* x, float4* out, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const float4 v = __ldg(x + i);
    out[i] = make_float4(one(v.x), one(v.y), one(v.z), one(v.w));
  }
}

__global__ void rest_kernel(const float* x, float* out, int begin, int n) {
  const int i = begin + threadIdx.x;
  if (i < n) out[i] = one(x[i]);
}

torch::Tensor swish(torch::Tensor x) {
  auto out = torch::empty_like(x);
  const int n = x.numel();
  const float* in = x.data_ptr<float>();
  float* result = out.data_ptr<float>();
  const bool aligned = reinterpret_cast<uintptr_t>(in) % 16 == 0;
  const int whole = aligned ? n / 4 : 0;
  auto stream = c10::cuda::getCurrentCUDAStream().stream();
  if (whole)
    four_kernel<<<(whole + 127) / 128, 128, 0, stream>>>(
        reinterpret_cast<const float4*>(in), reinterpret_cast<float4*>(result), whole);
  for (int begin = 4 * whole; begin < n; begin += 1024)
    rest_kernel<<<1, 1024, 0, stream>>>(in, result, begin, n);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
"""

native = load_inline("kc_cuda_swish_vectorised", CPP, CUDA, functions=["swish"])


class ModelNew(nn.Module):
    def forward(self, x):
        return native.swish(x)
