// Checks, allocation and registration of policy_loss on the CPU.
#ifndef KC_CUDA
#include "ops/policy_loss_torch.h"

#include <torch/csrc/stable/library.h>

#include <tuple>
#include <vector>

namespace kc {
namespace {

using Outputs = std::tuple<Tensor, Tensor, Tensor, Tensor>;

template <class T>
Outputs run(const Tensor& logprobs, const LossTensors& tensors, const OptionalTensor& entropy, const LossSpec& spec) {
  const Tensor values = torch::stable::contiguous(logprobs);
  const int64_t tokens = values.size(0);
  LossInputs<T> inputs(tensors, spec, "logprobs", values, tokens, entropy.has_value());
  PolicyLossArgs<T>& args = inputs.args;
  args.logprobs = data_of<T>(values);
  OptionalTensor entropies;
  if (entropy) {
    check_vector("entropy", *entropy, tokens, "tokens");
    check_dtype("entropy", *entropy, values.scalar_type());
    check_same_device("entropy", *entropy, "logprobs", values);
    entropies = torch::stable::contiguous(*entropy);
    args.entropy = data_of<T>(*entropies);
  }

  Tensor loss = torch::stable::new_empty(values, {});
  Tensor grad_logprobs = torch::stable::empty_like(values);
  Tensor grad_entropy = torch::stable::new_empty(values, {args.entropy ? tokens : 0});
  Tensor metrics = torch::stable::new_empty(values, {kLossMetrics}, ScalarType::Double);
  PolicyLossResult<T> result;
  result.grad_logprobs = grad_logprobs.mutable_data_ptr<T>();
  result.grad_entropy = args.entropy ? grad_entropy.mutable_data_ptr<T>() : nullptr;
  result.metrics = metrics.mutable_data_ptr<double>();
  policy_loss_forward(args, spec, result, parallel_over_sequences);
  *loss.mutable_data_ptr<T>() = static_cast<T>(result.loss);
  return {loss, grad_logprobs, grad_entropy, metrics};
}

Outputs policy_loss(Tensor logprobs, Tensor advantages, OptionalTensor old_logprobs, OptionalTensor ref_logprobs,
                    OptionalTensor rollout_logprobs, OptionalTensor mask, OptionalTensor cu_seqlens,
                    OptionalTensor entropy, OptionalTensor denominator, std::vector<double> spec) {
  check(logprobs.dim() == 1, "logprobs must be 1-D; got shape ", shape_of(logprobs));
  const ScalarType type = logprobs.scalar_type();
  check(type == ScalarType::Float || type == ScalarType::Double, "logprobs must be float32 or float64; got ",
        name_of(type));
  const LossTensors tensors{advantages, old_logprobs, ref_logprobs, rollout_logprobs, mask, cu_seqlens, denominator};
  const auto call = type == ScalarType::Float ? run<float> : run<double>;
  return call(logprobs, tensors, entropy, spec_of(spec));
}

}  // namespace
}  // namespace kc

STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CPU, m) {
  m.impl("policy_loss", TORCH_BOX(&kc::policy_loss));
}
#endif
