# task: rms_norm
# backend: cpp
# gradients: compared
# needs: cpu
# slow: build
# why: two C++ functions in an autograd function; the backward loops over the rows once
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <cmath>
#include <vector>

double scale_of(const float* x, int64_t dim, double eps) {
  double squares = 0;
  for (int64_t i = 0; i < dim; ++i) squares += double(x[i]) * x[i];
  return 1 / std::sqrt(squares / dim + eps);
}

void forward(torch::Tensor x, torch::Tensor w, torch::Tensor y, double eps) {
  const int64_t dim = w.numel();
  const float *p = x.data_ptr<float>(), *g = w.data_ptr<float>();
  float* q = y.data_ptr<float>();
  for (const float* end = p + x.numel(); p != end; p += dim, q += dim) {
    const double scale = scale_of(p, dim, eps);
    for (int64_t i = 0; i < dim; ++i) q[i] = p[i] * scale * g[i];
  }
}

void backward(torch::Tensor x, torch::Tensor w, torch::Tensor dy, torch::Tensor dx, torch::Tensor dw, double eps) {
  const int64_t dim = w.numel();
  const float *p = x.data_ptr<float>(), *g = w.data_ptr<float>(), *d = dy.data_ptr<float>();
  float* q = dx.data_ptr<float>();
  std::vector<double> total(dim, 0.0);
  for (const float* end = p + x.numel(); p != end; p += dim, d += dim, q += dim) {
    const double scale = scale_of(p, dim, eps);
    double along = 0;
    for (int64_t i = 0; i < dim; ++i) along += double(d[i]) * g[i] * p[i];
    for (int64_t i = 0; i < dim; ++i) q[i] = scale * (double(d[i]) * g[i] - p[i] * scale * scale * along / dim);
    for (int64_t i = 0; i < dim; ++i) total[i] += d[i] * scale * p[i];
  }
  for (int64_t i = 0; i < dim; ++i) dw.data_ptr<float>()[i] = total[i];
}
"""

native = load_inline("kc_grad_rms_norm", SOURCE, functions=["forward", "backward"])


class RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, eps):
        y, ctx.eps = torch.empty_like(x), eps
        ctx.save_for_backward(x, w)
        native.forward(x, w, y, eps)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        dx, dw = torch.empty_like(x), torch.empty_like(w)
        native.backward(x, w, grad.contiguous(), dx, dw, ctx.eps)
        return dx, dw, None


class ModelNew(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        return RMSNorm.apply(x, self.weight, self.eps)
