// Checks, allocation and registration of token_logprobs; compiled once for the CPU library and once (KC_CUDA) for the
// CUDA library.
#include "ops/token_logprobs_torch.h"

#include <torch/csrc/stable/library.h>

#include <string>

#ifdef KC_CUDA
#include "common/cuda_torch.h"
#include "ops/token_logprobs.cuh"
#endif

namespace kc {

std::tuple<Tensor, Tensor, Tensor, Tensor> token_logprobs(Tensor logits, Tensor ids, Tensor temperature,
                                                          OptionalTensor mask) {
  const TokenShape shape = tokens_with("logits", logits, "vocab");
  return with_float_type("logits", logits, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    const int64_t tokens = shape.count(), vocab = logits.size(logits.dim() - 1);
    const ScalarType accumulator = accumulator_of(logits.scalar_type());
    check_tokens(ids, temperature, mask, "logits", logits, shape, vocab, accumulator);
    const Tensor dense_rows = with_dense_rows(logits), flat_ids = dense(ids);
    const Tensor temperatures = dense(temperature);
    const OptionalTensor counts = contiguous_or_none(mask);
    const auto output = [&] { return fresh(logits, shape.sizes, accumulator); };
    Tensor logprobs = output(), entropy = output(), max = output(), sum = output();
    const LogitRows<T> rows = rows_of<T>(dense_rows, flat_ids, temperatures, counts);
    const TokenStats<A> stats{logprobs.mutable_data_ptr<A>(), entropy.mutable_data_ptr<A>(), max.mutable_data_ptr<A>(),
                              sum.mutable_data_ptr<A>()};
#ifdef KC_CUDA
    const CudaScope scope(logits);
    check_launch("token_logprobs", launch_token_logprobs<T>(rows, tokens, stats, scope.stream()));
#else
    torch::stable::parallel_for(0, tokens, row_grain(vocab),
                                [&](int64_t begin, int64_t end) { token_logprobs_rows(rows, stats, begin, end); });
#endif
    return std::make_tuple(logprobs, entropy, max, sum);
  });
}

namespace {

Tensor token_logprobs_backward(OptionalTensor grad_logprobs, OptionalTensor grad_entropy, Tensor logits, Tensor ids,
                               Tensor temperature, OptionalTensor mask, Tensor logprobs, Tensor entropy, Tensor max,
                               Tensor sum) {
  return with_float_type("logits", logits, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    const TokenShape shape = tokens_with("logits", logits, "vocab");
    const int64_t tokens = shape.count(), vocab = logits.size(logits.dim() - 1);
    const ScalarType accumulator = accumulator_of(logits.scalar_type());
    check_tokens(ids, temperature, mask, "logits", logits, shape, vocab, accumulator);
    check_saved(grad_logprobs, grad_entropy, logprobs, entropy, max, sum, shape, accumulator);
    const Tensor dense_rows = with_dense_rows(logits), flat_ids = dense(ids);
    const Tensor temperatures = dense(temperature);
    const OptionalTensor counts = contiguous_or_none(mask);
    const OptionalTensor g = contiguous_or_none(grad_logprobs), h = contiguous_or_none(grad_entropy);
    const auto saved = [](const Tensor& tensor) { return const_cast<A*>(data_of<A>(tensor)); };
    Tensor grad_logits = fresh(logits, sizes_of(logits));
    RowPlaces places;
    places.stride = vocab;
    const LogitRows<T> rows = rows_of<T>(dense_rows, flat_ids, temperatures, counts);
    const TokenStats<A> stats{saved(logprobs), saved(entropy), saved(max), saved(sum)};
    T* out = static_cast<T*>(grad_logits.mutable_data_ptr());
    const A* by_logprobs = g ? data_of<A>(*g) : nullptr;
    const A* by_entropy = h ? data_of<A>(*h) : nullptr;
#ifdef KC_CUDA
    const CudaScope scope(logits);
    check_launch("token_logprobs_backward", launch_token_logprobs_grad<T>(rows, tokens, stats, by_logprobs, by_entropy,
                                                                          nullptr, out, places, scope.stream()));
#else
    torch::stable::parallel_for(0, tokens, row_grain(vocab), [&](int64_t begin, int64_t end) {
      token_logprobs_grad_rows(rows, stats, by_logprobs, by_entropy, out, places, begin, end);
    });
#endif
    return grad_logits;
  });
}

#ifndef KC_CUDA
// For tests: the rows on narrower vectors than this machine has. Returns what is in use.
std::string row_isa_limit(std::string widest) {
  limit_row_isa(widest.c_str());
  return row_isa();
}
#endif

}  // namespace
}  // namespace kc

#ifdef KC_CUDA
STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CUDA, m) {
  m.impl("token_logprobs", TORCH_BOX(&kc::token_logprobs));
  m.impl("token_logprobs_backward", TORCH_BOX(&kc::token_logprobs_backward));
}
#else
STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CPU, m) {
  m.impl("token_logprobs", TORCH_BOX(&kc::token_logprobs));
  m.impl("token_logprobs_backward", TORCH_BOX(&kc::token_logprobs_backward));
}
STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CompositeExplicitAutograd, m) {
  m.impl("row_isa_limit", TORCH_BOX(&kc::row_isa_limit));
}
#endif
