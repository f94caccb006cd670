// The torch side of everything about a policy loss that is not a log-prob: checks shared by the three forms of the
// loss.
#pragma once

#include <functional>
#include <optional>

#include "common/checks.h"
#include "ops/policy_loss.h"
#include "ops/token_logprobs_torch.h"
#ifdef KC_CUDA
#include "common/cuda_torch.h"
#include "ops/policy_loss.cuh"
#endif

namespace kc {

// Whether tensors lie where the host cannot read them.
#ifdef KC_CUDA
constexpr bool kOnDevice = true;
#else
constexpr bool kOnDevice = false;
#endif

struct LossTensors {
  Tensor advantages;
  OptionalTensor old_logprobs, ref_logprobs, rollout_logprobs, mask, cu_seqlens, denominator;
};

// Checks the tensors, keeps contiguous copies alive and offers them as `args`. T is float or double, the dtype of all
// that is not mask, cu_seqlens or denominator. Log-probs and entropies are left for the caller to point at;
// `has_entropy` says whether it will.
template <class T>
class LossInputs {
 public:
  LossInputs(LossTensors tensors, const LossSpec& spec, const char* with_name, const Tensor& with, int64_t tokens,
             bool has_entropy)
      : tensors_(std::move(tensors)), with_name_(with_name), with_(with) {
    args.tokens = tokens;
    if (tensors_.cu_seqlens) {
      check(tensors_.cu_seqlens->dim() == 1 && tensors_.cu_seqlens->size(0) >= 1,
            "cu_seqlens must be 1-D and not empty; got shape ", shape_of(*tensors_.cu_seqlens));
      args.sequences = tensors_.cu_seqlens->size(0) - 1;
    }
    args.cu_seqlens = data<int64_t>("cu_seqlens", tensors_.cu_seqlens, ScalarType::Long);
    if (args.cu_seqlens && !kOnDevice) check_cu_seqlens(args.cu_seqlens, args.sequences, tokens);

    check(tensors_.advantages.dim() == 1, "advantages must be 1-D; got shape ", shape_of(tensors_.advantages));
    args.advantages_per_sequence = tensors_.advantages.size(0) != tokens;
    check(!args.advantages_per_sequence || tensors_.advantages.size(0) == args.sequences,
          "advantages must have one value a token or one a sequence, shape [", tokens, "] or [", args.sequences,
          "]; got ", shape_of(tensors_.advantages));
    advantages_ = tensors_.advantages;
    args.advantages = data<T>("advantages", advantages_, kType);

    args.old_logprobs = token_numbers("old_logprobs", tensors_.old_logprobs);
    args.ref_logprobs = token_numbers("ref_logprobs", tensors_.ref_logprobs);
    args.rollout_logprobs = token_numbers("rollout_logprobs", tensors_.rollout_logprobs);
    if (tensors_.mask) check_vector("mask", *tensors_.mask, tokens, "tokens");
    args.mask = data<bool>("mask", tensors_.mask, ScalarType::Bool);
    if (tensors_.denominator)
      check(tensors_.denominator->dim() == 0, "denominator must be a number or 0-D; got shape ",
            shape_of(*tensors_.denominator));
    args.denominator = data<double>("denominator", tensors_.denominator, ScalarType::Double);
    if (args.denominator && !kOnDevice)
      check(*args.denominator >= 0, "denominator must be at least 0; got ", *args.denominator);

    PolicyLossArgs<T> shape = args;
    static const T present{};
    if (has_entropy) shape.entropy = &present;
    check_policy_loss(shape, spec);
  }

  PolicyLossArgs<T> args;

 private:
  static constexpr ScalarType kType = sizeof(T) == sizeof(double) ? ScalarType::Double : ScalarType::Float;

  template <class V>
  const V* data(const char* name, OptionalTensor& tensor, ScalarType type) {
    if (!tensor) return nullptr;
    check_dtype(name, *tensor, type);
    check_same_device(name, *tensor, with_name_, with_);
    tensor = torch::stable::contiguous(*tensor);
    return data_of<V>(*tensor);
  }

  const T* token_numbers(const char* name, OptionalTensor& tensor) {
    if (tensor) check_vector(name, *tensor, args.tokens, "tokens");
    return data<T>(name, tensor, kType);
  }

  LossTensors tensors_;
  OptionalTensor advantages_;
  const char* with_name_;
  const Tensor& with_;
};

inline LossSpec spec_of(const std::vector<double>& numbers) {
  check(numbers.size() == kLossSpecFields, "spec must have ", kLossSpecFields,
        " numbers, as LossSpec.pack() makes them; got ", numbers.size());
  return unpack_loss_spec(numbers.data());
}

#ifdef KC_CUDA
// The scratch memory of a policy loss, as long as this lives.
template <class T>
class LossScratch {
 public:
  LossScratch(const Tensor& like, const PolicyLossArgs<T>& args)
      : memory_(torch::stable::new_empty(
            like, {static_cast<int64_t>(PolicyLossScratch::bytes(args.tokens, args.sequences))}, ScalarType::Byte)),
        scratch(PolicyLossScratch::in(memory_.mutable_data_ptr(), args.tokens, args.sequences)) {}

 private:
  Tensor memory_;

 public:
  PolicyLossScratch scratch;
};
#endif

// Sequences are cheap beside a row of logits: a few to a thread.
inline void parallel_over_sequences(int64_t count, const std::function<void(int64_t, int64_t)>& work) {
  torch::stable::parallel_for(0, count, /*grain_size=*/4, work);
}

// The loss of tokens whose log-probs (and entropies, where by_entropy is not null) are known.
template <class T>
void run_policy_loss(const PolicyLossArgs<T>& args, const LossSpec& spec, const Tensor& loss, T* by_logprobs,
                     T* by_entropy, const Tensor& metrics) {
#ifdef KC_CUDA
  const CudaScope scope(loss);
  const LossScratch<T> memory(loss, args);
  const PolicyLossDeviceResult<T> result{loss.mutable_data_ptr<T>(), by_logprobs, by_entropy,
                                         metrics.mutable_data_ptr<double>()};
  check_launch("policy_loss", launch_count_sequences(args, memory.scratch, scope.stream()));
  check_launch("policy_loss", launch_policy_loss(args, spec, memory.scratch, result, scope.stream()));
#else
  PolicyLossResult<T> result;
  result.grad_logprobs = by_logprobs;
  result.grad_entropy = by_entropy;
  result.metrics = metrics.mutable_data_ptr<double>();
  policy_loss_forward(args, spec, result, parallel_over_sequences);
  *loss.mutable_data_ptr<T>() = static_cast<T>(result.loss);
#endif
}

}  // namespace kc
