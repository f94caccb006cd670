# task: elu
# backend: cuda
# needs: cuda
# slow: build
# why: a loop over a row with 256 threads
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = "torch::Tensor work(torch::Tensor x);"
CUDA = """
__global__ void row_kernel(const float* x, float* out, int cols) {
  const float* p = x + size_t(blockIdx.x) * cols;
  float* q = out + size_t(blockIdx.x) * cols;
  for (int i = threadIdx.x; i < cols; i += blockDim.x) {
    const float v = p[i];
    q[i] = v > 0 ? v : expm1f(v);
  }
}

torch::Tensor work(torch::Tensor x) {
  auto in = x.contiguous();
  auto out = torch::empty_like(in);
  const int cols = in.size(-1), rows = in.numel() / cols;
  row_kernel<<<rows, 256>>>(in.data_ptr<float>(), out.data_ptr<float>(), cols);
  return out;
}
"""

native = load_inline("kc_cuda_elu_256", CPP, CUDA, functions=["work"])


class ModelNew(nn.Module):
    def forward(self, x):
        return native.work(x)
