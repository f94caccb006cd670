// Checks, allocation and registration of policy_loss; compiled once for the CPU library and once (KC_CUDA) for the CUDA
// library.
#include "ops/policy_loss_torch.h"

#include <torch/csrc/stable/library.h>

#include <tuple>
#include <vector>

namespace kc {
namespace {

using Outputs = std::tuple<Tensor, Tensor, Tensor, Tensor>;

template <class T>
Outputs run(const Tensor& logprobs, const LossTensors& tensors, const OptionalTensor& entropy, const LossSpec& spec) {
  const Tensor values = dense(logprobs);
  const TokenShape shape{sizes_of(values)};
  LossInputs<T> inputs(tensors, spec, "logprobs", values, shape, entropy.has_value());
  PolicyLossArgs<T>& args = inputs.args;
  args.logprobs = data_of<T>(values);
  OptionalTensor entropies;
  if (entropy) {
    check_token_values("entropy", *entropy, shape);
    check_dtype("entropy", *entropy, values.scalar_type());
    check_same_device("entropy", *entropy, "logprobs", values);
    entropies = dense(*entropy);
    args.entropy = data_of<T>(*entropies);
  }

  Tensor loss = fresh(values, {});
  Tensor grad_logprobs = fresh(values, shape.sizes);
  Tensor grad_entropy = args.entropy ? fresh(values, sizes_of(*entropy)) : fresh(values, {0});
  Tensor metrics = fresh(values, {kLossMetrics}, ScalarType::Double);
  T* by_entropy = args.entropy ? grad_entropy.mutable_data_ptr<T>() : nullptr;
  run_policy_loss(args, spec, loss, grad_logprobs.mutable_data_ptr<T>(), by_entropy, metrics);
  return {loss, grad_logprobs, grad_entropy, metrics};
}

Outputs policy_loss(Tensor logprobs, Tensor advantages, OptionalTensor old_logprobs, OptionalTensor ref_logprobs,
                    OptionalTensor rollout_logprobs, OptionalTensor mask, OptionalTensor cu_seqlens,
                    OptionalTensor entropy, OptionalTensor denominator, std::vector<double> spec) {
  check(logprobs.dim() == 1 || logprobs.dim() == 2, "logprobs must have shape [tokens] or [sequences, length]; got ",
        shape_of(logprobs));
  const ScalarType type = logprobs.scalar_type();
  check(type == ScalarType::Float || type == ScalarType::Double, "logprobs must be float32 or float64; got ",
        name_of(type));
  const LossTensors tensors{advantages, old_logprobs, ref_logprobs, rollout_logprobs, mask, cu_seqlens, denominator};
  const auto call = type == ScalarType::Float ? run<float> : run<double>;
  return call(logprobs, tensors, entropy, spec_of(spec));
}

}  // namespace
}  // namespace kc

#ifdef KC_CUDA
STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CUDA, m) {
  m.impl("policy_loss", TORCH_BOX(&kc::policy_loss));
}
#else
STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CPU, m) {
  m.impl("policy_loss", TORCH_BOX(&kc::policy_loss));
}
#endif
