// The schema of every op, once; each <op>_torch.cpp registers an implementation for its device.
// Fake implementations and gradients are registered in Python, beside the facades.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(kernel_coder, m) {
  m.def(
      "group_advantages(Tensor rewards, Tensor? order, Tensor offsets, str mode, float eps, str std, str singleton) "
      "-> Tensor");
}
