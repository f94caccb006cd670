// Checks, allocation and registration of linear_token_logprobs on the CPU.
#ifndef KC_CUDA
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "ops/linear_head_torch.h"

namespace kc {
namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor> linear_token_logprobs(Tensor hidden, Tensor weight, OptionalTensor bias,
                                                                 Tensor ids, Tensor temperature, OptionalTensor mask,
                                                                 double logit_scale, double softcap,
                                                                 int64_t chunk_rows) {
  const LinearArguments in{hidden, weight, bias, logit_scale, softcap, chunk_rows};
  check_linear(in);
  return with_float_type("hidden", hidden, [&](auto zero) {
    using A = Accumulator<decltype(zero)>;
    const ScalarType type = accumulator_of(hidden.scalar_type());
    const int64_t tokens = hidden.size(0);
    check_tokens(ids, temperature, mask, "hidden", hidden, tokens, weight.size(0), type);
    const TokenInputs<A> inputs(ids, temperature, mask);
    const TokenOutputs<A> out(hidden, tokens, type);
    LinearHead<decltype(zero)> head(in, LinearNeeds{});
    const std::vector<int64_t> rows = inputs.unmasked(0, tokens);
    const auto total = static_cast<int64_t>(rows.size());
    for (int64_t begin = 0; begin < total; begin += head.capacity()) {
      const int64_t count = std::min(head.capacity(), total - begin);
      head.score(head.logits(rows.data() + begin, count, inputs.rows), out.stats(), count);
    }
    return std::make_tuple(out.logprobs, out.entropy, out.max, out.sum);
  });
}

std::tuple<Tensor, Tensor, Tensor> linear_token_logprobs_backward(
    OptionalTensor grad_logprobs, OptionalTensor grad_entropy, Tensor hidden, Tensor weight, OptionalTensor bias,
    Tensor ids, Tensor temperature, OptionalTensor mask, Tensor logprobs, Tensor entropy, Tensor max, Tensor sum,
    double logit_scale, double softcap, int64_t chunk_rows, bool need_hidden, bool need_weight, bool need_bias) {
  const LinearArguments in{hidden, weight, bias, logit_scale, softcap, chunk_rows};
  check_linear(in);
  return with_float_type("hidden", hidden, [&](auto zero) {
    using A = Accumulator<decltype(zero)>;
    const ScalarType accumulator = accumulator_of(hidden.scalar_type());
    check_tokens(ids, temperature, mask, "hidden", hidden, hidden.size(0), weight.size(0), accumulator);
    check_saved(grad_logprobs, grad_entropy, logprobs, entropy, max, sum, hidden.size(0), accumulator);
    const TokenInputs<A> inputs(ids, temperature, mask);
    const OptionalTensor g = contiguous_or_none(grad_logprobs), h = contiguous_or_none(grad_entropy);
    const A* by_logprobs = g ? data_of<A>(*g) : nullptr;
    const A* by_entropy = h ? data_of<A>(*h) : nullptr;
    const auto saved = [](const Tensor& tensor) { return const_cast<A*>(data_of<A>(tensor)); };
    const TokenStats<A> stats{saved(logprobs), saved(entropy), saved(max), saved(sum)};
    LinearHead<decltype(zero)> head(in, {need_hidden, need_weight, need_bias});
    std::vector<int64_t> rows;  // those with a gradient: no other one is multiplied again
    for (const int64_t t : inputs.unmasked(0, hidden.size(0)))
      if ((by_logprobs && by_logprobs[t] != 0) || (by_entropy && by_entropy[t] != 0)) rows.push_back(t);
    const auto total = static_cast<int64_t>(rows.size());
    for (int64_t begin = 0; begin < total; begin += head.capacity()) {
      const int64_t count = std::min(head.capacity(), total - begin);
      const LogitRows<A> logits = head.logits(rows.data() + begin, count, inputs.rows);
      head.add_gradient(logits, stats, by_logprobs, by_entropy, count);
    }
    const ScalarType type = hidden.scalar_type();
    return std::make_tuple(head.grad_hidden, torch::stable::to(head.grad_weight, type),
                           torch::stable::to(head.grad_bias, type));
  });
}

}  // namespace
}  // namespace kc

STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CPU, m) {
  m.impl("linear_token_logprobs", TORCH_BOX(&kc::linear_token_logprobs));
  m.impl("linear_token_logprobs_backward", TORCH_BOX(&kc::linear_token_logprobs_backward));
}
#endif
