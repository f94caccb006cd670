// Checks, allocation and registration of linear_token_logprobs; compiled once for the CPU library and once (KC_CUDA)
// for the CUDA library.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "ops/linear_arguments.h"
#ifdef KC_CUDA
#include "ops/linear_head_cuda_torch.h"
#else
#include "ops/linear_head_torch.h"
#endif

namespace kc {
namespace {

#ifdef KC_CUDA
OptionalTensor mask_on_device(const Tensor& like, const OptionalTensor& mask, void* stream) {
  if (!mask || !is_on_host(*mask)) return contiguous_or_none(mask);
  check(!is_capturing(stream), "mask must be on the GPU while a CUDA graph is captured");
  return on_device_of(like, dense(*mask));
}

template <class L>
LogitRows<L> rows_without_logits(const Tensor& ids, const Tensor& temperature, const TokenList& tokens,
                                 const OptionalTensor& mask) {
  LogitRows<L> rows;
  rows.ids = data_of<int64_t>(ids);
  set_temperature(rows, temperature);
  rows.mask = tokens.has_unknown_mask() ? data_of<bool>(*mask) : nullptr;
  return rows;
}
#endif

std::tuple<Tensor, Tensor, Tensor, Tensor> linear_token_logprobs(Tensor hidden, Tensor weight, OptionalTensor bias,
                                                                 Tensor ids, Tensor temperature, OptionalTensor mask,
                                                                 double logit_scale, double softcap, int64_t chunk_rows,
                                                                 bool rounded_logits, bool allow_sync) {
  TokenShape shape;
  const LinearArguments in =
      check_linear({hidden, weight, bias, logit_scale, softcap, chunk_rows, rounded_logits, true, allow_sync}, shape);
  const ScalarType type = accumulator_of(hidden.scalar_type());
  const int64_t tokens = shape.count();
#ifdef KC_CUDA
  const CudaScope scope(hidden);
  const OptionalTensor counts = mask_on_device(hidden, mask, scope.stream());
  return with_head_types(in, [&](auto head_zero, auto logit_zero) {
    using T = decltype(head_zero);
    using L = decltype(logit_zero);
    using A = Accumulator<T>;
    check_tokens(ids, temperature, counts, "hidden", hidden, shape, weight.size(0), type);
    const bool can_wait = allow_sync && !is_capturing(scope.stream());
    const Tensor flat_ids = dense(ids), temperatures = dense(temperature);
    const TokenOutputs<A> out(hidden, shape, type);
    TokenList list(hidden, tokens, mask, can_wait, scope.stream());
    list.upload(/*reordered=*/false);
    const LogitRows<L> rows = rows_without_logits<L>(flat_ids, temperatures, list, counts);
    const int64_t size = even_chunk(list.size(), workspace_rows<L>(in));
    DeviceHead<T, L> head(in, LinearNeeds{}, size, can_wait, scope.stream());
    for (int64_t begin = 0; begin < list.size(); begin += size) {
      const int64_t end = std::min(begin + size, list.size());
      const RowChunk chunk = list.chunk(begin, end, 0);
      head.score(head.logits(chunk, rows), out.stats(), chunk.count);
    }
    return std::make_tuple(out.logprobs, out.entropy, out.max, out.sum);
  });
#else
  return with_float_type("hidden", hidden, [&](auto zero) {
    using A = Accumulator<decltype(zero)>;
    check_tokens(ids, temperature, mask, "hidden", hidden, shape, weight.size(0), type);
    const TokenInputs<A> inputs(ids, temperature, mask);
    const TokenOutputs<A> out(hidden, shape, type);
    LinearHead<decltype(zero)> head(in, LinearNeeds{});
    const std::vector<int64_t> rows = inputs.unmasked(0, tokens);
    const auto total = static_cast<int64_t>(rows.size());
    for (int64_t begin = 0; begin < total; begin += head.capacity()) {
      const int64_t count = std::min(head.capacity(), total - begin);
      head.score(head.logits(rows.data() + begin, count, inputs.rows), out.stats(), count);
    }
    return std::make_tuple(out.logprobs, out.entropy, out.max, out.sum);
  });
#endif
}

std::tuple<Tensor, Tensor, Tensor> linear_token_logprobs_backward(
    OptionalTensor grad_logprobs, OptionalTensor grad_entropy, Tensor hidden, Tensor weight, OptionalTensor bias,
    Tensor ids, Tensor temperature, OptionalTensor mask, Tensor logprobs, Tensor entropy, Tensor max, Tensor sum,
    double logit_scale, double softcap, int64_t chunk_rows, bool rounded_logits, bool allow_sync, bool need_hidden,
    bool need_weight, bool need_bias) {
  // If there is only one chunk, its product is written directly in the dtype of the result.
  const ScalarType type = hidden.scalar_type(), accumulator = accumulator_of(type);
  TokenShape shape;
  const std::vector<int64_t> hidden_sizes = sizes_of(hidden);
  LinearArguments in =
      check_linear({hidden, weight, bias, logit_scale, softcap, chunk_rows, rounded_logits, false, allow_sync}, shape);
  const int64_t tokens = shape.count();
  const auto as_hidden = [&](const Tensor& gradient) {
    return need_hidden && shape.is_padded() ? torch::stable::view(gradient, hidden_sizes) : gradient;
  };
#ifdef KC_CUDA
  const CudaScope scope(hidden);
  const OptionalTensor counts = mask_on_device(hidden, mask, scope.stream());
  return with_head_types(in, [&](auto head_zero, auto logit_zero) {
    using T = decltype(head_zero);
    using L = decltype(logit_zero);
    using A = Accumulator<T>;
    check_tokens(ids, temperature, counts, "hidden", hidden, shape, weight.size(0), accumulator);
    check_saved(grad_logprobs, grad_entropy, logprobs, entropy, max, sum, shape, accumulator);
    const bool can_wait = allow_sync && !is_capturing(scope.stream());
    const Tensor flat_ids = dense(ids), temperatures = dense(temperature);
    const OptionalTensor g = contiguous_or_none(grad_logprobs), h = contiguous_or_none(grad_entropy);
    const auto saved = [](const Tensor& tensor) { return const_cast<A*>(data_of<A>(tensor)); };
    const TokenStats<A> stats{saved(logprobs), saved(entropy), saved(max), saved(sum)};
    TokenList list(hidden, tokens, mask, can_wait, scope.stream());
    if (can_wait) {  // rows without a gradient are not multiplied again
      const OptionalTensor host_g = g ? OptionalTensor(on_host(*g)) : std::nullopt;
      const OptionalTensor host_h = h ? OptionalTensor(on_host(*h)) : std::nullopt;
      const A* by_logprobs = host_g ? data_of<A>(*host_g) : nullptr;
      const A* by_entropy = host_h ? data_of<A>(*host_h) : nullptr;
      list.keep(
          [&](int64_t t) { return (by_logprobs && by_logprobs[t] != A(0)) || (by_entropy && by_entropy[t] != A(0)); });
    }
    list.upload(/*reordered=*/false);
    const LogitRows<L> rows = rows_without_logits<L>(flat_ids, temperatures, list, counts);
    const int64_t size = even_chunk(list.size(), workspace_rows<L>(in));
    in.rounded_weight_grad = list.size() <= size;
    DeviceHead<T, L> head(in, {need_hidden, need_weight, need_bias}, size, /*can_wait=*/false, scope.stream());
    for (int64_t begin = 0; begin < list.size(); begin += size) {
      const int64_t end = std::min(begin + size, list.size());
      const RowChunk chunk = list.chunk(begin, end, end - begin);
      const LogitRows<L> logits = head.logits(chunk, rows);
      head.add_gradient(chunk, logits, stats, g ? data_of<A>(*g) : nullptr, h ? data_of<A>(*h) : nullptr);
    }
    head.finish();
    return std::make_tuple(as_hidden(head.grad_hidden), torch::stable::to(head.grad_weight, type),
                           torch::stable::to(head.grad_bias, type));
  });
#else
  return with_float_type("hidden", hidden, [&](auto zero) {
    using A = Accumulator<decltype(zero)>;
    check_tokens(ids, temperature, mask, "hidden", hidden, shape, weight.size(0), accumulator);
    check_saved(grad_logprobs, grad_entropy, logprobs, entropy, max, sum, shape, accumulator);
    const TokenInputs<A> inputs(ids, temperature, mask);
    const OptionalTensor g = contiguous_or_none(grad_logprobs), h = contiguous_or_none(grad_entropy);
    const A* by_logprobs = g ? data_of<A>(*g) : nullptr;
    const A* by_entropy = h ? data_of<A>(*h) : nullptr;
    const auto saved = [](const Tensor& tensor) { return const_cast<A*>(data_of<A>(tensor)); };
    const TokenStats<A> stats{saved(logprobs), saved(entropy), saved(max), saved(sum)};
    LinearHead<decltype(zero)> head(in, {need_hidden, need_weight, need_bias});
    std::vector<int64_t> rows;  // those with a gradient: no other one is multiplied again
    for (const int64_t t : inputs.unmasked(0, tokens))
      if ((by_logprobs && by_logprobs[t] != 0) || (by_entropy && by_entropy[t] != 0)) rows.push_back(t);
    const auto total = static_cast<int64_t>(rows.size());
    for (int64_t begin = 0; begin < total; begin += head.capacity()) {
      const int64_t count = std::min(head.capacity(), total - begin);
      const LogitRows<A> logits = head.logits(rows.data() + begin, count, inputs.rows);
      head.add_gradient(logits, stats, by_logprobs, by_entropy, count);
    }
    return std::make_tuple(as_hidden(head.grad_hidden), torch::stable::to(head.grad_weight, type),
                           torch::stable::to(head.grad_bias, type));
  });
#endif
}

}  // namespace
}  // namespace kc

#ifdef KC_CUDA
STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CUDA, m) {
  m.impl("linear_token_logprobs", TORCH_BOX(&kc::linear_token_logprobs));
  m.impl("linear_token_logprobs_backward", TORCH_BOX(&kc::linear_token_logprobs_backward));
}
#else
STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CPU, m) {
  m.impl("linear_token_logprobs", TORCH_BOX(&kc::linear_token_logprobs));
  m.impl("linear_token_logprobs_backward", TORCH_BOX(&kc::linear_token_logprobs_backward));
}
#endif
