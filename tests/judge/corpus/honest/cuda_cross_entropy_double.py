# task: cross_entropy
# backend: cuda
# needs: cuda
# slow: build
# why: sums in double precision and is nearer to the oracle than the reference is
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = "torch::Tensor loss(torch::Tensor logits, torch::Tensor targets);"
CUDA = """
__global__ void loss_kernel(const float* logits, const long* targets, float* out, int rows, int classes) {
  __shared__ double parts[256];
  double mine = 0;
  for (int i = threadIdx.x; i < rows; i += 256) {
    const float* row = logits + i * (size_t)classes;
    float top = -INFINITY;
    for (int j = 0; j < classes; ++j) top = fmaxf(top, row[j]);
    double total = 0;
    for (int j = 0; j < classes; ++j) total += exp((double)row[j] - top);
    mine += log(total) + top - row[targets[i]];
  }
  parts[threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    double sum = 0;
    for (int k = 0; k < 256; ++k) sum += parts[k];
    *out = sum / rows;
  }
}

torch::Tensor loss(torch::Tensor logits, torch::Tensor targets) {
  auto out = torch::empty({}, logits.options());
  loss_kernel<<<1, 256>>>(
      logits.data_ptr<float>(), reinterpret_cast<const long*>(targets.data_ptr<int64_t>()), out.data_ptr<float>(),
      logits.size(0), logits.size(1));
  return out;
}
"""

native = load_inline("kc_cuda_cross_entropy", CPP, CUDA, functions=["loss"])


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        return native.loss(logits, targets)
