// The arguments of the ops that begin with hidden states, and their checks.
#pragma once

#include <cmath>

#include "common/checks.h"
#include "ops/token_logprobs_torch.h"

namespace kc {

struct LinearArguments {
  Tensor hidden, weight;
  OptionalTensor bias;
  double logit_scale, softcap;
  int64_t chunk_rows;  // 0: as many as fit the workspace
  // On CUDA: whether the workspace holds logits in the dtype of hidden, otherwise in the accumulator's; the same for
  // the sum of the weight's gradient; and whether the host may wait for the device. The CPU always uses the
  // accumulator.
  bool rounded_logits, rounded_weight_grad, allow_sync;
};

struct LinearNeeds {
  bool hidden, weight, bias;
  bool any() const { return hidden || weight || bias; }
};

// Checks the arguments and returns them with hidden states of shape [tokens, hidden_size]; `shape` gets the shape of
// the tokens.
inline LinearArguments check_linear(LinearArguments in, TokenShape& shape) {
  shape = tokens_with("hidden", in.hidden, "hidden_size");
  if (shape.is_padded()) in.hidden = torch::stable::view(dense(in.hidden), {shape.count(), in.hidden.size(2)});
  check(in.weight.dim() == 2 && in.weight.size(1) == in.hidden.size(1),
        "weight must have shape [vocab, hidden_size] = [vocab, ", in.hidden.size(1), "]; got ", shape_of(in.weight));
  check_dtype("weight", in.weight, in.hidden.scalar_type());
  check_same_device("weight", in.weight, "hidden", in.hidden);
  if (in.bias) {
    check_vector("bias", *in.bias, in.weight.size(0), "vocab");
    check_dtype("bias", *in.bias, in.hidden.scalar_type());
    check_same_device("bias", *in.bias, "hidden", in.hidden);
  }
  check(std::isfinite(in.logit_scale), "logit_scale must be finite; got ", in.logit_scale);
  check(std::isfinite(in.softcap) && in.softcap >= 0, "softcap must be finite and at least 0; got ", in.softcap);
  check(in.chunk_rows >= 0, "chunk_rows must be at least 0; got ", in.chunk_rows);
  return in;
}

// Log-probs, entropy, max and sum of all tokens; 0 where masked.
template <class A>
struct TokenOutputs {
  TokenOutputs(const Tensor& like, const TokenShape& shape, ScalarType type)
      : logprobs(torch::stable::new_zeros(like, shape.sizes, type)),
        entropy(torch::stable::new_zeros(like, shape.sizes, type)),
        max(torch::stable::new_zeros(like, shape.sizes, type)),
        sum(torch::stable::new_zeros(like, shape.sizes, type)) {}

  TokenStats<A> stats() const {
    return {logprobs.template mutable_data_ptr<A>(), entropy.template mutable_data_ptr<A>(),
            max.template mutable_data_ptr<A>(), sum.template mutable_data_ptr<A>()};
  }

  Tensor logprobs, entropy, max, sum;
};

}  // namespace kc
