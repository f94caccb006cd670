# task: softmax
# backend: cuda
# needs: cuda
# slow: build
# hack: H69 trap, a misaligned load and a stack overflow in one kernel
# why: never correct; the next candidate on this device must not be affected
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = """
__device__ int deep(int n) { volatile int a[256]; a[n % 256] = n; return n ? deep(n - 1) + a[n % 256] : 0; }
__global__ void trap_kernel(const char* p, float* out) {
  if (threadIdx.x == 0) out[0] = *reinterpret_cast<const float*>(p + 1);
  if (threadIdx.x == 1) out[1] = deep(1 << 20);
  asm volatile("trap;");
}
torch::Tensor f(torch::Tensor x) {
  auto out = torch::zeros_like(x);
  trap_kernel<<<1, 32>>>(reinterpret_cast<const char*>(x.data_ptr<float>()), out.data_ptr<float>());
  return out;
}
"""
native = load_inline("kc_sticky", "torch::Tensor f(torch::Tensor x);", CUDA, functions=["f"])


class ModelNew(nn.Module):
    def forward(self, x):
        return native.f(x)
