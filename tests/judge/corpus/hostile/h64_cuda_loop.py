# task: softmax
# backend: cuda
# needs: cuda
# slow: build
# hack: H64 all processors of the device wait for ever, in a stream of their own
# why: never correct; the judge must kill it, and the device must be usable afterwards
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = """
__global__ void wait_kernel(volatile int* flag) { while (!*flag) {} }
torch::Tensor f(torch::Tensor x) {
  auto flag = torch::zeros({1}, x.options().dtype(torch::kInt));
  wait_kernel<<<1 << 20, 1024>>>(flag.data_ptr<int>());
  return torch::zeros_like(x);
}
"""
native = load_inline("kc_h64", "torch::Tensor f(torch::Tensor x);", CUDA, functions=["f"])


class ModelNew(nn.Module):
    def forward(self, x):
        return native.f(x)
