// grpo_loss on the CPU: log-probs of the rows, then the policy loss of the tokens; the gradient of the logits is one
// more sweep over them, in the backward (token_logprobs_backward), since on a CPU nothing is won by writing it earlier.
#ifndef KC_CUDA
#include <torch/csrc/stable/library.h>

#include <tuple>
#include <vector>

#include "ops/policy_loss_torch.h"
#include "ops/token_logprobs_torch.h"

namespace kc {
namespace {

using Outputs = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Outputs grpo_loss(Tensor logits, Tensor ids, Tensor temperature, Tensor advantages, OptionalTensor old_logprobs,
                  OptionalTensor ref_logprobs, OptionalTensor rollout_logprobs, OptionalTensor mask,
                  OptionalTensor cu_seqlens, OptionalTensor denominator, std::vector<double> spec_numbers) {
  check(logits.dim() == 2, "logits must have shape [tokens, vocab]; got ", shape_of(logits));
  const LossSpec spec = spec_of(spec_numbers);
  const int64_t tokens = logits.size(0);
  return with_float_type("logits", logits, [&](auto zero) {
    using A = Accumulator<decltype(zero)>;
    const LossTensors tensors{advantages, old_logprobs, ref_logprobs, rollout_logprobs, mask, cu_seqlens, denominator};
    LossInputs<A> inputs(tensors, spec, "logits", logits, tokens, /*has_entropy=*/true);
    auto [logprobs, entropy, max, sum] = token_logprobs(logits, ids, temperature, mask);
    inputs.args.logprobs = data_of<A>(logprobs);
    inputs.args.entropy = data_of<A>(entropy);

    Tensor loss = torch::stable::new_empty(logprobs, {});
    Tensor metrics = torch::stable::new_empty(logprobs, {kLossMetrics}, ScalarType::Double);
    Tensor grad_logprobs = torch::stable::empty_like(logprobs);
    Tensor grad_entropy = torch::stable::new_empty(logprobs, {spec.entropy_coef != 0 ? tokens : 0});
    PolicyLossResult<A> result;
    result.grad_logprobs = grad_logprobs.mutable_data_ptr<A>();
    result.grad_entropy = spec.entropy_coef != 0 ? grad_entropy.mutable_data_ptr<A>() : nullptr;
    result.metrics = metrics.mutable_data_ptr<double>();
    policy_loss_forward(inputs.args, spec, result, parallel_over_sequences);
    *loss.mutable_data_ptr<A>() = static_cast<A>(result.loss);
    return std::make_tuple(loss, metrics, logprobs, entropy, max, sum, grad_logprobs, grad_entropy);
  });
}

}  // namespace
}  // namespace kc

STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CPU, m) {
  m.impl("grpo_loss", TORCH_BOX(&kc::grpo_loss));
}
#endif
