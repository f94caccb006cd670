# task: swish_chain
# backend: cpp
# needs: cpu
# slow: build
# why: the function is in a module inside the extension's
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <torch/extension.h>
#include <cmath>

torch::Tensor swish(torch::Tensor x) {
  auto in = x.contiguous();
  auto out = torch::empty_like(in);
  const float* p = in.data_ptr<float>();
  float* q = out.data_ptr<float>();
  for (int64_t i = 0; i < in.numel(); ++i) {
    const float y = p[i] / (1.0f + std::exp(-1.5f * p[i])) + 0.25f;
    q[i] = y < -1.0f ? -1.0f : (y > 6.0f ? 6.0f : y);
  }
  return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def_submodule("activations").def("swish", &swish);
}
"""

kernels = load_inline("kc_cpp_swish_submodule", [SOURCE])


class ModelNew(nn.Module):
    def forward(self, x):
        return kernels.activations.swish(x)
