// The torch side of a policy loss except its log-probs: checks that the three forms of the loss share.
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

// Whether tensors are in memory that the host cannot read.
#ifdef KC_CUDA
constexpr bool kOnDevice = true;
#else
constexpr bool kOnDevice = false;
#endif

struct LossTensors {
  Tensor advantages;
  OptionalTensor old_logprobs, ref_logprobs, rollout_logprobs, mask, cu_seqlens, denominator;
};

// Checks the tensors, keeps contiguous copies alive and provides them as `args`. T is float or double, the dtype of all
// tensors except mask, cu_seqlens and denominator. The caller sets the pointers of log-probs and entropies;
// `has_entropy` says whether there are entropies. Padded tokens without cu_seqlens are sequences of equal length.
template <class T>
class LossInputs {
 public:
  LossInputs(LossTensors tensors, const LossSpec& spec, const char* with_name, const Tensor& with,
             const TokenShape& shape, bool has_entropy)
      : tensors_(std::move(tensors)), shape_(shape), with_name_(with_name), with_(with) {
    const int64_t tokens = args.tokens = shape.count();
    if (tensors_.cu_seqlens) {
      check(tensors_.cu_seqlens->dim() == 1 && tensors_.cu_seqlens->size(0) >= 1,
            "cu_seqlens must be 1-D and not empty; got shape ", shape_of(*tensors_.cu_seqlens));
      check(!shape.is_padded() || shape.sizes[0] == 1, "cu_seqlens must not be given for tokens of shape [",
            shape.is_padded() ? shape.sizes[0] : 0, ", ", shape.length(),
            "], where each row is a sequence; flatten the tokens if they are packed");
      if (tensors_.cu_seqlens->scalar_type() == ScalarType::Int)
        tensors_.cu_seqlens = torch::stable::to(*tensors_.cu_seqlens, ScalarType::Long);
      args.sequences = tensors_.cu_seqlens->size(0) - 1;
    } else if (shape.is_padded() && tokens > 0) {
      args.sequences = shape.sizes[0];
      args.sequence_length = shape.length();
    }
    args.cu_seqlens = data<int64_t>("cu_seqlens", tensors_.cu_seqlens, ScalarType::Long);
    if (args.cu_seqlens && !kOnDevice) check_cu_seqlens(args.cu_seqlens, args.sequences, tokens);

    check_advantages();
    advantages_ = tensors_.advantages;
    args.advantages = data<T>("advantages", advantages_, kType);

    args.old_logprobs = token_numbers("old_logprobs", tensors_.old_logprobs);
    args.ref_logprobs = token_numbers("ref_logprobs", tensors_.ref_logprobs);
    args.rollout_logprobs = token_numbers("rollout_logprobs", tensors_.rollout_logprobs);
    if (tensors_.mask) check_token_values("mask", *tensors_.mask, shape);
    args.mask = data<bool>("mask", tensors_.mask, ScalarType::Bool);
    if (tensors_.denominator)
      check(tensors_.denominator->dim() == 0, "denominator must be a number or 0-D; got shape ",
            shape_of(*tensors_.denominator));
    if (tensors_.denominator && is_host_number(*tensors_.denominator)) {
      check_dtype("denominator", *tensors_.denominator, ScalarType::Double);
      args.denominator_value = *data_of<double>(*tensors_.denominator);
      check(args.denominator_value >= 0, "denominator must be at least 0; got ", args.denominator_value);
    } else {
      args.denominator = data<double>("denominator", tensors_.denominator, ScalarType::Double);
    }

    PolicyLossArgs<T> given = args;
    static const T present{};
    if (has_entropy) given.entropy = &present;
    check_policy_loss(given, spec);
  }

  PolicyLossArgs<T> args;

 private:
  static constexpr ScalarType kType = sizeof(T) == sizeof(double) ? ScalarType::Double : ScalarType::Float;

  void check_advantages() {
    const Tensor& given = tensors_.advantages;
    const int64_t tokens = args.tokens, sequences = args.sequences;
    if (shape_.is_padded()) {
      const bool is_column = given.dim() == 2 && given.size(0) == sequences && given.size(1) == 1;
      const bool by_sequence = is_column || (given.dim() == 1 && given.size(0) == sequences);
      args.advantages_per_sequence = by_sequence && given.numel() != tokens;
      if (!by_sequence)
        check((given.dim() == 1 && given.size(0) == tokens) ||
                  (given.dim() == 2 && given.size(0) == shape_.sizes[0] && given.size(1) == shape_.sizes[1]),
              "advantages must have one value a sequence or one a token, shape [", sequences, "] or [", shape_.sizes[0],
              ", ", shape_.length(), "]; got ", shape_of(given));
      return;
    }
    check(given.dim() == 1, "advantages must be 1-D; got shape ", shape_of(given));
    args.advantages_per_sequence = given.size(0) != tokens;
    if (!args.advantages_per_sequence || given.size(0) == sequences) return;
    check(args.has_sequences(), "advantages must have one value a token or one a sequence, shape [", tokens, "] or [",
          sequences, "]; got ", shape_of(given), ". Without cu_seqlens all tokens are one sequence: pass cu_seqlens, [",
          given.size(0) + 1, "] numbers from 0 to ", tokens, ", or tensors of shape [sequences, length, ...]");
    check(false, "advantages must have one value a token or one a sequence, shape [", tokens, "] or [", sequences,
          "]; got ", shape_of(given));
  }

  template <class V>
  const V* data(const char* name, OptionalTensor& tensor, ScalarType type) {
    if (!tensor) return nullptr;
    check_dtype(name, *tensor, type);
    check_same_device(name, *tensor, with_name_, with_);
    tensor = dense(*tensor);
    return data_of<V>(*tensor);
  }

  const T* token_numbers(const char* name, OptionalTensor& tensor) {
    if (tensor) check_token_values(name, *tensor, shape_);
    return data<T>(name, tensor, kType);
  }

  LossTensors tensors_;
  TokenShape shape_;
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
// The scratch memory of a policy loss, which lives as long as this object.
template <class T>
class LossScratch {
 public:
  LossScratch(const Tensor& like, const PolicyLossArgs<T>& args)
      : memory_(fresh(like, {static_cast<int64_t>(PolicyLossScratch::bytes(args.tokens, args.sequences))},
                      ScalarType::Byte)),
        scratch(PolicyLossScratch::in(memory_.mutable_data_ptr(), args.tokens, args.sequences)) {}

 private:
  Tensor memory_;

 public:
  PolicyLossScratch scratch;
};
#endif

// A sequence is little work compared with a row of logits, so each thread gets several.
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
