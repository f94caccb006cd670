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
  check(logits.dim() == 2, "logits must have shape [tokens, vocab]; got ", shape_of(logits));
  return with_float_type("logits", logits, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    const int64_t tokens = logits.size(0), vocab = logits.size(1);
    const ScalarType accumulator = accumulator_of(logits.scalar_type());
    check_tokens(ids, temperature, mask, "logits", logits, tokens, vocab, accumulator);
    const Tensor dense = with_dense_rows(logits), flat_ids = torch::stable::contiguous(ids);
    const Tensor temperatures = torch::stable::contiguous(temperature);
    const OptionalTensor counts = contiguous_or_none(mask);
    const auto output = [&] { return torch::stable::new_empty(logits, {tokens}, accumulator); };
    Tensor logprobs = output(), entropy = output(), max = output(), sum = output();
    const LogitRows<T> rows = rows_of<T>(dense, flat_ids, temperatures, counts);
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
    check(logits.dim() == 2, "logits must have shape [tokens, vocab]; got ", shape_of(logits));
    const int64_t tokens = logits.size(0), vocab = logits.size(1);
    const ScalarType accumulator = accumulator_of(logits.scalar_type());
    check_tokens(ids, temperature, mask, "logits", logits, tokens, vocab, accumulator);
    check_saved(grad_logprobs, grad_entropy, logprobs, entropy, max, sum, tokens, accumulator);
    const Tensor dense = with_dense_rows(logits), flat_ids = torch::stable::contiguous(ids);
    const Tensor temperatures = torch::stable::contiguous(temperature);
    const OptionalTensor counts = contiguous_or_none(mask);
    const OptionalTensor g = contiguous_or_none(grad_logprobs), h = contiguous_or_none(grad_entropy);
    const auto saved = [](const Tensor& tensor) { return const_cast<A*>(data_of<A>(tensor)); };
    Tensor grad_logits = torch::stable::new_empty(logits, {tokens, vocab});
    const LogitRows<T> rows = rows_of<T>(dense, flat_ids, temperatures, counts);
    const TokenStats<A> stats{saved(logprobs), saved(entropy), saved(max), saved(sum)};
    T* out = static_cast<T*>(grad_logits.mutable_data_ptr());
    const A* by_logprobs = g ? data_of<A>(*g) : nullptr;
    const A* by_entropy = h ? data_of<A>(*h) : nullptr;
#ifdef KC_CUDA
    const CudaScope scope(logits);
    check_launch("token_logprobs_backward", launch_token_logprobs_grad<T>(rows, tokens, stats, by_logprobs, by_entropy,
                                                                          nullptr, out, vocab, scope.stream()));
#else
    torch::stable::parallel_for(0, tokens, row_grain(vocab), [&](int64_t begin, int64_t end) {
      token_logprobs_grad_rows(rows, stats, by_logprobs, by_entropy, out, vocab, begin, end);
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
