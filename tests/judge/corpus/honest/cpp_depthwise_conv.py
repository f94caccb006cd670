# task: depthwise_conv
# backend: cpp
# needs: cpu
# slow: build
# why: the outer loop runs on ATen's threads; taps outside the input are left out by the loop's bounds
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <ATen/Parallel.h>
#include <algorithm>

torch::Tensor causal(torch::Tensor x, torch::Tensor weight, torch::Tensor bias) {
  auto in = x.contiguous();
  auto out = torch::empty_like(in);
  const int64_t channels = in.size(1), length = in.size(2), taps = weight.size(2);
  const float* p = in.data_ptr<float>();
  const float* w = weight.data_ptr<float>();
  const float* b = bias.data_ptr<float>();
  float* q = out.data_ptr<float>();
  at::parallel_for(0, in.size(0) * channels, 1, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t channel = row % channels;
      for (int64_t t = 0; t < length; ++t) {
        float total = b[channel];
        for (int64_t k = std::max<int64_t>(0, taps - 1 - t); k < taps; ++k)
          total += p[row * length + t + k - (taps - 1)] * w[channel * taps + k];
        q[row * length + t] = total;
      }
    }
  });
  return out;
}
"""

native = load_inline("kc_depthwise_conv", SOURCE, functions=["causal"])


class ModelNew(nn.Module):
    def __init__(self, channels, taps):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, taps, groups=channels, padding=taps - 1)

    def forward(self, x):
        return native.causal(x, self.conv.weight, self.conv.bias)
