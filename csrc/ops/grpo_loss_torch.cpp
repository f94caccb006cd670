// Checks, allocation and registration of grpo_loss; compiled once for the CPU library and once (KC_CUDA) for the CUDA
// library.
//
// grpo_loss computes log-probs of the rows, then the policy loss of the tokens; the gradient of the logits is one more
// sweep over them, in the backward (token_logprobs_backward). grpo_loss_inplace writes that gradient over the logits in
// the forward, on Hopper and newer in the sweep that reads them.
#include <torch/csrc/stable/library.h>

#include <tuple>
#include <vector>

#include "ops/policy_loss_torch.h"
#include "ops/token_logprobs_torch.h"
#ifdef KC_CUDA
#include "ops/grpo_loss.cuh"
#include "ops/token_logprobs.cuh"
#endif

namespace kc {
namespace {

using Outputs = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
using InplaceOutputs = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// Checks that the elements of a row are adjacent and that rows do not overlap.
void check_can_be_overwritten(const char* name, const Tensor& rows) {
  const int64_t last = rows.dim() - 1, vocab = rows.size(last);
  check(vocab <= 1 || rows.stride(last) == 1, name, " must have rows without gaps between their elements; got stride ",
        rows.stride(last));
  const int64_t length = rows.size(last - 1), stride = rows.stride(last - 1);
  const bool groups_overlap = rows.dim() == 3 && rows.size(0) > 1 && rows.stride(0) < (length - 1) * stride + vocab;
  check((length <= 1 || stride >= vocab) && !groups_overlap, name, " must have rows that do not overlap; got stride ",
        groups_overlap ? rows.stride(0) : stride);
}

Outputs grpo_loss(Tensor logits, Tensor ids, Tensor temperature, Tensor advantages, OptionalTensor old_logprobs,
                  OptionalTensor ref_logprobs, OptionalTensor rollout_logprobs, OptionalTensor mask,
                  OptionalTensor cu_seqlens, OptionalTensor denominator, std::vector<double> spec_numbers) {
  const TokenShape shape = tokens_with("logits", logits, "vocab");
  const LossSpec spec = spec_of(spec_numbers);
  return with_float_type("logits", logits, [&](auto zero) {
    using A = Accumulator<decltype(zero)>;
    const LossTensors tensors{advantages, old_logprobs, ref_logprobs, rollout_logprobs, mask, cu_seqlens, denominator};
    LossInputs<A> inputs(tensors, spec, "logits", logits, shape, /*has_entropy=*/true);
    auto [logprobs, entropy, max, sum] = token_logprobs(logits, ids, temperature, mask);
    inputs.args.logprobs = data_of<A>(logprobs);
    inputs.args.entropy = data_of<A>(entropy);

    Tensor loss = fresh(logprobs, {});
    Tensor metrics = fresh(logprobs, {kLossMetrics}, ScalarType::Double);
    Tensor grad_logprobs = fresh(logprobs, shape.sizes);
    Tensor grad_entropy = spec.entropy_coef != 0 ? fresh(logprobs, shape.sizes) : fresh(logprobs, {0});
    run_policy_loss(inputs.args, spec, loss, grad_logprobs.mutable_data_ptr<A>(),
                    spec.entropy_coef != 0 ? grad_entropy.mutable_data_ptr<A>() : nullptr, metrics);
    return std::make_tuple(loss, metrics, logprobs, entropy, max, sum, grad_logprobs, grad_entropy);
  });
}

InplaceOutputs grpo_loss_inplace(Tensor logits, Tensor ids, Tensor temperature, Tensor advantages,
                                 OptionalTensor old_logprobs, OptionalTensor ref_logprobs,
                                 OptionalTensor rollout_logprobs, OptionalTensor mask, OptionalTensor cu_seqlens,
                                 OptionalTensor denominator, std::vector<double> spec_numbers) {
  const TokenShape shape = tokens_with("logits", logits, "vocab");
  check_can_be_overwritten("logits that are overwritten", logits);
  const LossSpec spec = spec_of(spec_numbers);
  const int64_t tokens = shape.count(), vocab = logits.size(logits.dim() - 1);
  return with_float_type("logits", logits, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    const ScalarType accumulator = accumulator_of(logits.scalar_type());
    const LossTensors tensors{advantages, old_logprobs, ref_logprobs, rollout_logprobs, mask, cu_seqlens, denominator};
    LossInputs<A> inputs(tensors, spec, "logits", logits, shape, /*has_entropy=*/true);
    check_tokens(ids, temperature, mask, "logits", logits, shape, vocab, accumulator);
    const Tensor flat_ids = dense(ids), temperatures = dense(temperature);
    const OptionalTensor counts = contiguous_or_none(mask);
    const LogitRows<T> rows = rows_of<T>(logits, flat_ids, temperatures, counts);
    T* const out = static_cast<T*>(logits.mutable_data_ptr());

    const auto vector = [&] { return fresh(logits, shape.sizes, accumulator); };
    Tensor logprobs = vector(), entropy = vector(), max = vector(), sum = vector(), by_logprobs = vector();
    Tensor loss = fresh(logprobs, {});
    Tensor metrics = fresh(logprobs, {kLossMetrics}, ScalarType::Double);
    OptionalTensor by_entropy;
    if (spec.entropy_coef != 0) by_entropy = vector();
    A* const g = by_logprobs.mutable_data_ptr<A>();
    A* const h = by_entropy ? by_entropy->mutable_data_ptr<A>() : nullptr;
    const TokenStats<A> stats{logprobs.mutable_data_ptr<A>(), entropy.mutable_data_ptr<A>(), max.mutable_data_ptr<A>(),
                              sum.mutable_data_ptr<A>()};
    inputs.args.logprobs = data_of<A>(logprobs);
    inputs.args.entropy = data_of<A>(entropy);
#ifdef KC_CUDA
    const CudaScope scope(logits);
    const LossScratch<A> memory(loss, inputs.args);
    const PolicyLossDeviceResult<A> result{loss.mutable_data_ptr<A>(), g, h, metrics.mutable_data_ptr<double>()};
    const char* const name = "grpo_loss_inplace";
    check_launch(name, launch_count_sequences(inputs.args, memory.scratch, scope.stream()));
    GradientRows<T> gradients;
    gradients.data = out;
    gradients.places = rows.places;
    const bool fused = can_fuse_loss_gradient(rows, tokens, spec, gradients);
    if (fused) {
      check_launch(name, launch_fused_loss_gradient(rows, tokens, stats, inputs.args, spec, memory.scratch, gradients,
                                                    result, /*follows_count=*/true, scope.stream()));
    } else {
      check_launch(name, launch_token_logprobs<T>(rows, tokens, stats, scope.stream()));
      check_launch(name, launch_policy_loss(inputs.args, spec, memory.scratch, result, scope.stream()));
      check_launch(name,
                   launch_token_logprobs_grad<T>(rows, tokens, stats, g, h, nullptr, out, rows.places, scope.stream()));
    }
#else
    torch::stable::parallel_for(0, tokens, row_grain(vocab),
                                [&](int64_t begin, int64_t end) { token_logprobs_rows(rows, stats, begin, end); });
    run_policy_loss(inputs.args, spec, loss, g, h, metrics);
    torch::stable::parallel_for(0, tokens, row_grain(vocab), [&](int64_t begin, int64_t end) {
      token_logprobs_grad_rows(rows, stats, g, h, out, rows.places, begin, end);
    });
#endif
    return std::make_tuple(loss, metrics, logprobs, entropy);
  });
}

void scale_gradient(Tensor gradient, Tensor factor) {
  check((gradient.dim() == 2 || gradient.dim() == 3) && factor.dim() == 0,
        "gradient must be 2-D or 3-D and factor 0-D; got shapes ", shape_of(gradient), " and ", shape_of(factor));
  const int64_t last = gradient.dim() - 1;
  check(gradient.size(last) <= 1 || gradient.stride(last) == 1, "gradient must have dense rows; got stride ",
        gradient.stride(last));
  check_dtype("factor", factor, accumulator_of(gradient.scalar_type()));
  check_same_device("factor", factor, "gradient", gradient);
  with_float_type("gradient", gradient, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    const int64_t vocab = gradient.size(last), tokens = tokens_with("gradient", gradient, "vocab").count();
    const RowPlaces places = places_of(gradient);
    T* const data = static_cast<T*>(gradient.mutable_data_ptr());
    const A* const by = data_of<A>(factor);
#ifdef KC_CUDA
    const CudaScope scope(gradient);
    check_launch("scale_gradient", launch_scale_gradient<T>(data, tokens, vocab, places, by, scope.stream()));
#else
    if (*by == A(1)) return;
    torch::stable::parallel_for(0, tokens, row_grain(vocab), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        for (int64_t j = 0; j < vocab; ++j) {
          T& value = data[places.of(t) + j];
          narrow(widen(value) * *by, value);
        }
    });
#endif
  });
}

}  // namespace
}  // namespace kc

#ifdef KC_CUDA
STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CUDA, m) {
  m.impl("grpo_loss", TORCH_BOX(&kc::grpo_loss));
  m.impl("grpo_loss_inplace", TORCH_BOX(&kc::grpo_loss_inplace));
  m.impl("scale_gradient", TORCH_BOX(&kc::scale_gradient));
}
#else
STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CPU, m) {
  m.impl("grpo_loss", TORCH_BOX(&kc::grpo_loss));
  m.impl("grpo_loss_inplace", TORCH_BOX(&kc::grpo_loss_inplace));
  m.impl("scale_gradient", TORCH_BOX(&kc::scale_gradient));
}
#endif
