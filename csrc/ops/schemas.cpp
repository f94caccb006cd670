// The schema of every op; each <op>_torch.cpp registers an implementation for its device. Fake implementations and
// gradients are registered in Python, beside the facades.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(kernel_coder, m) {
  m.def(
      "group_advantages(Tensor rewards, Tensor? order, Tensor offsets, Tensor? lengths, str mode, float eps, str std, "
      "str singleton) -> Tensor");
  // order and offsets group rollouts.
  m.def(
      "turn_advantages(Tensor rewards, Tensor cu_turns, Tensor? order, Tensor offsets, float gamma, str mode, "
      "str baseline, float eps, str std, str singleton) -> Tensor");
  // spec: LossSpec.pack(). Returns the loss, d loss / d logprobs, d loss / d entropy (empty without entropy), and the
  // sums named by LOSS_METRICS.
  m.def(
      "policy_loss(Tensor logprobs, Tensor advantages, Tensor? old_logprobs, Tensor? ref_logprobs, "
      "Tensor? rollout_logprobs, Tensor? mask, Tensor? cu_seqlens, Tensor? entropy, Tensor? denominator, float[] spec) "
      "-> (Tensor loss, Tensor grad_logprobs, Tensor grad_entropy, Tensor metrics)");
  // The backward needs max and sum besides logits, logprobs and entropy; all four are [tokens].
  m.def(
      "token_logprobs(Tensor logits, Tensor ids, Tensor temperature, Tensor? mask) "
      "-> (Tensor logprobs, Tensor entropy, Tensor max, Tensor sum)");
  m.def(
      "token_logprobs_backward(Tensor? grad_logprobs, Tensor? grad_entropy, Tensor logits, Tensor ids, "
      "Tensor temperature, Tensor? mask, Tensor logprobs, Tensor entropy, Tensor max, Tensor sum) -> Tensor");
  // token_logprobs_backward gives the gradient of the logits from grad_logprobs and grad_entropy (empty if the spec has
  // no entropy term).
  m.def(
      "grpo_loss(Tensor logits, Tensor ids, Tensor temperature, Tensor advantages, Tensor? old_logprobs, "
      "Tensor? ref_logprobs, Tensor? rollout_logprobs, Tensor? mask, Tensor? cu_seqlens, Tensor? denominator, "
      "float[] spec) -> (Tensor loss, Tensor metrics, Tensor logprobs, Tensor entropy, Tensor max, Tensor sum, "
      "Tensor grad_logprobs, Tensor grad_entropy)");
  // The same loss; the logits are overwritten by their gradient.
  m.def(
      "grpo_loss_inplace(Tensor(a!) logits, Tensor ids, Tensor temperature, Tensor advantages, Tensor? old_logprobs, "
      "Tensor? ref_logprobs, Tensor? rollout_logprobs, Tensor? mask, Tensor? cu_seqlens, Tensor? denominator, "
      "float[] spec) -> (Tensor loss, Tensor metrics, Tensor logprobs, Tensor entropy)");
  // gradient *= factor, a 0-D number in the dtype that the rows are computed in.
  m.def("scale_gradient(Tensor(a!) gradient, Tensor factor) -> ()");
  // gradient times factor, a 0-D number in the dtype of the sums, in the dtype of `like`.
  m.def("scaled_gradient(Tensor gradient, Tensor factor, Tensor like) -> Tensor");
  // softcap 0: none. chunk_rows 0: chosen by the op. On CUDA: rounded_logits keeps logits in the dtype of hidden,
  // otherwise in the accumulator's; rounded_weight_grad does the same for the sum of the weight's gradient, which is
  // returned in that dtype.
  m.def(
      "linear_token_logprobs(Tensor hidden, Tensor weight, Tensor? bias, Tensor ids, Tensor temperature, Tensor? mask, "
      "float logit_scale, float softcap, int chunk_rows, bool rounded_logits, bool allow_sync) "
      "-> (Tensor logprobs, Tensor entropy, Tensor max, Tensor sum)");
  // Gradients that are not needed are returned empty.
  m.def(
      "linear_token_logprobs_backward(Tensor? grad_logprobs, Tensor? grad_entropy, Tensor hidden, Tensor weight, "
      "Tensor? bias, Tensor ids, Tensor temperature, Tensor? mask, Tensor logprobs, Tensor entropy, Tensor max, "
      "Tensor sum, float logit_scale, float softcap, int chunk_rows, bool rounded_logits, bool allow_sync, "
      "bool need_hidden, bool need_weight, bool need_bias) -> (Tensor grad_hidden, Tensor grad_weight, Tensor "
      "grad_bias)");
  m.def(
      "linear_grpo_loss(Tensor hidden, Tensor weight, Tensor? bias, Tensor ids, Tensor temperature, Tensor advantages, "
      "Tensor? old_logprobs, Tensor? ref_logprobs, Tensor? rollout_logprobs, Tensor? mask, Tensor? cu_seqlens, "
      "Tensor? denominator, float[] spec, float logit_scale, float softcap, int chunk_rows, "
      "bool rounded_logits, bool rounded_weight_grad, bool allow_sync, bool need_hidden, bool need_weight, "
      "bool need_bias) -> (Tensor loss, Tensor metrics, Tensor logprobs, Tensor entropy, "
      "Tensor grad_hidden, Tensor grad_weight, Tensor grad_bias)");
  // The numbers of Comparison in compare.h, float64, on the device of the tensors.
  m.def("compare(Tensor output, Tensor expected, float rtol, float atol) -> Tensor");
  // For tests: sets the widest vectors that rows may use; returns those that are in use.
  m.def("row_isa_limit(str widest) -> str");
}
