// The schema of every op, once; each <op>_torch.cpp registers an implementation for its device.
// Fake implementations and gradients are registered in Python, beside the facades.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(kernel_coder, m) {
  m.def(
      "group_advantages(Tensor rewards, Tensor? order, Tensor offsets, Tensor? lengths, str mode, float eps, str std, "
      "str singleton) -> Tensor");
  // spec: LossSpec.pack(). Returns the loss, d loss / d logprobs, d loss / d entropy (empty without entropy), and the
  // sums named by LOSS_METRICS.
  m.def(
      "policy_loss(Tensor logprobs, Tensor advantages, Tensor? old_logprobs, Tensor? ref_logprobs, "
      "Tensor? rollout_logprobs, Tensor? mask, Tensor? cu_seqlens, Tensor? entropy, Tensor? denominator, float[] spec) "
      "-> (Tensor loss, Tensor grad_logprobs, Tensor grad_entropy, Tensor metrics)");
}
