# task: embedding
# backend: cuda
# needs: cuda
# slow: build
# why: integer input of two dimensions; the kernel's grid is the number of indices
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = "torch::Tensor embedding(torch::Tensor ids, torch::Tensor table, double scale);"
CUDA = """
__global__ void embedding_kernel(const int64_t* ids, const float* table, float* out, int dim, float scale) {
  const float* row = table + ids[blockIdx.x] * dim;
  for (int j = threadIdx.x; j < dim; j += blockDim.x) out[blockIdx.x * (size_t)dim + j] = row[j] * scale;
}

torch::Tensor embedding(torch::Tensor ids, torch::Tensor table, double scale) {
  const int dim = table.size(1);
  auto out = torch::empty({ids.size(0), ids.size(1), dim}, table.options());
  embedding_kernel<<<ids.numel(), 32>>>(
      ids.data_ptr<int64_t>(), table.data_ptr<float>(), out.data_ptr<float>(), dim, scale);
  return out;
}
"""

native = load_inline("kc_cuda_embedding", CPP, CUDA, functions=["embedding"])


class ModelNew(nn.Module):
    def __init__(self, vocabulary, dim):
        super().__init__()
        self.table = nn.Embedding(vocabulary, dim)

    def forward(self, ids):
        return native.embedding(ids, self.table.weight, self.table.embedding_dim**0.5)
