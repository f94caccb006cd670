# task: softmax
# backend: cuda
# needs: cuda
# slow: build
# why: one thread for each row
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = "torch::Tensor work(torch::Tensor x);"
CUDA = """
__global__ void row_kernel(const float* x, float* out, int cols) {
  const float* p = x + size_t(blockIdx.x) * cols;
  float* q = out + size_t(blockIdx.x) * cols;
  if (threadIdx.x != 0) return;
  float m = p[0], s = 0;
  for (int i = 1; i < cols; ++i) m = fmaxf(m, p[i]);
  for (int i = 0; i < cols; ++i) s += q[i] = expf(p[i] - m);
  for (int i = 0; i < cols; ++i) q[i] /= s;
}

torch::Tensor work(torch::Tensor x) {
  auto in = x.contiguous();
  auto out = torch::empty_like(in);
  const int cols = in.size(-1), rows = in.numel() / cols;
  row_kernel<<<rows, 1>>>(in.data_ptr<float>(), out.data_ptr<float>(), cols);
  return out;
}
"""

native = load_inline("kc_cuda_softmax_serial", CPP, CUDA, functions=["work"])


class ModelNew(nn.Module):
    def forward(self, x):
        return native.work(x)
