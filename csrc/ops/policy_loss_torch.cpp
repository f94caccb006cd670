// Checks, allocation and registration of policy_loss on the CPU.
#ifndef KC_CUDA
#include "ops/policy_loss.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <optional>
#include <tuple>
#include <vector>

#include "common/checks.h"

namespace kc {
namespace {

using OptionalTensor = std::optional<Tensor>;

// An empty tensor may have a null pointer, which would say "not given".
template <class T>
const T* data_of(const Tensor& tensor) {
  static const T nothing{};
  return tensor.numel() > 0 ? tensor.const_data_ptr<T>() : &nothing;
}

// A vector of N numbers beside logprobs: same dtype, same device; made contiguous in place.
template <class T>
const T* numbers(const char* name, OptionalTensor& tensor, const Tensor& logprobs) {
  if (!tensor) return nullptr;
  check_vector(name, *tensor, logprobs.size(0), "tokens");
  check_dtype(name, *tensor, logprobs.scalar_type());
  check_same_device(name, *tensor, "logprobs", logprobs);
  tensor = torch::stable::contiguous(*tensor);
  return data_of<T>(*tensor);
}

template <class T>
const T* other(const char* name, OptionalTensor& tensor, ScalarType type, const Tensor& logprobs) {
  if (!tensor) return nullptr;
  check_dtype(name, *tensor, type);
  check_same_device(name, *tensor, "logprobs", logprobs);
  tensor = torch::stable::contiguous(*tensor);
  return data_of<T>(*tensor);
}

using Outputs = std::tuple<Tensor, Tensor, Tensor, Tensor>;

template <class T>
Outputs run(Tensor logprobs, Tensor advantages, OptionalTensor old_logprobs, OptionalTensor ref_logprobs,
            OptionalTensor rollout_logprobs, OptionalTensor mask, OptionalTensor cu_seqlens, OptionalTensor entropy,
            OptionalTensor denominator, const LossSpec& spec) {
  logprobs = torch::stable::contiguous(logprobs);
  PolicyLossArgs<T> args;
  args.tokens = logprobs.size(0);
  args.logprobs = logprobs.const_data_ptr<T>();

  if (cu_seqlens) {
    check(cu_seqlens->dim() == 1 && cu_seqlens->size(0) >= 1, "cu_seqlens must be 1-D and not empty; got shape ",
          shape_of(*cu_seqlens));
    args.sequences = cu_seqlens->size(0) - 1;
  }
  args.cu_seqlens = other<int64_t>("cu_seqlens", cu_seqlens, ScalarType::Long, logprobs);
  if (args.cu_seqlens) check_cu_seqlens(args.cu_seqlens, args.sequences, args.tokens);

  check(advantages.dim() == 1, "advantages must be 1-D; got shape ", shape_of(advantages));
  args.advantages_per_sequence = advantages.size(0) != args.tokens;
  check(!args.advantages_per_sequence || advantages.size(0) == args.sequences,
        "advantages must have one value a token or one a sequence, shape [", args.tokens, "] or [", args.sequences,
        "]; got ", shape_of(advantages));
  OptionalTensor advantage = advantages;
  args.advantages = other<T>("advantages", advantage, logprobs.scalar_type(), logprobs);

  args.old_logprobs = numbers<T>("old_logprobs", old_logprobs, logprobs);
  args.ref_logprobs = numbers<T>("ref_logprobs", ref_logprobs, logprobs);
  args.rollout_logprobs = numbers<T>("rollout_logprobs", rollout_logprobs, logprobs);
  args.entropy = numbers<T>("entropy", entropy, logprobs);
  if (mask) check_vector("mask", *mask, args.tokens, "tokens");
  args.mask = other<bool>("mask", mask, ScalarType::Bool, logprobs);
  if (denominator)
    check(denominator->dim() == 0, "denominator must be a number or 0-D; got shape ", shape_of(*denominator));
  args.denominator = other<double>("denominator", denominator, ScalarType::Double, logprobs);
  if (args.denominator) check(*args.denominator >= 0, "denominator must be at least 0; got ", *args.denominator);
  check_policy_loss(args, spec);

  Tensor loss = torch::stable::new_empty(logprobs, {});
  Tensor grad_logprobs = torch::stable::empty_like(logprobs);
  Tensor grad_entropy = torch::stable::new_empty(logprobs, {args.entropy ? args.tokens : 0});
  Tensor metrics = torch::stable::new_empty(logprobs, {kLossMetrics}, ScalarType::Double);
  PolicyLossResult<T> result;
  result.grad_logprobs = grad_logprobs.mutable_data_ptr<T>();
  result.grad_entropy = args.entropy ? grad_entropy.mutable_data_ptr<T>() : nullptr;
  result.metrics = metrics.mutable_data_ptr<double>();
  policy_loss_forward(args, spec, result);
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
  check(spec.size() == kLossSpecFields, "spec must have ", kLossSpecFields,
        " numbers, as LossSpec.pack() makes them; got ", spec.size());
  const auto call = type == ScalarType::Float ? run<float> : run<double>;
  return call(logprobs, advantages, old_logprobs, ref_logprobs, rollout_logprobs, mask, cu_seqlens, entropy,
              denominator, unpack_loss_spec(spec.data()));
}

}  // namespace
}  // namespace kc

STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CPU, m) {
  m.impl("policy_loss", TORCH_BOX(&kc::policy_loss));
}
#endif
