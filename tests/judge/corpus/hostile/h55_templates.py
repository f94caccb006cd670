# task: softmax
# backend: cpp
# slow: build
# hack: H55 a template that instantiates itself twice, forty deep: 10^12 times
# why: never correct; the compiler must hit a limit
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
template <int N, long K> struct Grow {
  static constexpr long value = Grow<N - 1, 2 * K>::value + Grow<N - 1, 2 * K + 1>::value;
};
template <long K> struct Grow<0, K> { static constexpr long value = K; };
torch::Tensor f(torch::Tensor x) { return x + Grow<40, 0>::value; }
"""
native = load_inline("kc_h55_templates", SOURCE, functions=["f"])


class ModelNew(nn.Module):
    def forward(self, x):
        return native.f(x)
