// Checks, allocation and registration of grpo_loss; compiled once for the CPU library and once (KC_CUDA) for the CUDA
// library.
//
// grpo_loss computes log-probs of the rows, then the policy loss of the tokens; the gradient of the logits is one more
// sweep over them, in the backward (token_logprobs_backward). grpo_loss_inplace writes that gradient over the logits at
// once: on Hopper and newer in the sweep that reads them.
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

Outputs grpo_loss(Tensor logits, Tensor ids, Tensor temperature, Tensor advantages, OptionalTensor old_logprobs,
                  OptionalTensor ref_logprobs, OptionalTensor rollout_logprobs, OptionalTensor mask,
                  OptionalTensor cu_seqlens, OptionalTensor denominator, std::vector<double> spec_numbers) {
  check(logits.dim() == 2, "logits must have shape [tokens, vocab]; got ", shape_of(logits));
  const LossSpec spec = spec_of(spec_numbers);
  const int64_t tokens = logits.size(0);
  return with_float_type("logits", logits, [&](auto zero) {
    using A = Accumulator<decltype(zero)>;
    const LossTensors tensors{advantages, old_logprobs, ref_logprobs, rollout_logprobs, mask, cu_seqlens, denominator};
    LossInputs<A> inputs(tensors, spec, "logits", logits, tokens, /*has_entropy=*/true);
    auto [logprobs, entropy, max, sum] = token_logprobs(logits, ids, temperature, mask);
    inputs.args.logprobs = data_of<A>(logprobs);
    inputs.args.entropy = data_of<A>(entropy);

    Tensor loss = torch::stable::new_empty(logprobs, {});
    Tensor metrics = torch::stable::new_empty(logprobs, {kLossMetrics}, ScalarType::Double);
    Tensor grad_logprobs = torch::stable::empty_like(logprobs);
    Tensor grad_entropy = torch::stable::new_empty(logprobs, {spec.entropy_coef != 0 ? tokens : 0});
    run_policy_loss(inputs.args, spec, loss, grad_logprobs.mutable_data_ptr<A>(),
                    spec.entropy_coef != 0 ? grad_entropy.mutable_data_ptr<A>() : nullptr, metrics);
    return std::make_tuple(loss, metrics, logprobs, entropy, max, sum, grad_logprobs, grad_entropy);
  });
}

InplaceOutputs grpo_loss_inplace(Tensor logits, Tensor ids, Tensor temperature, Tensor advantages,
                                 OptionalTensor old_logprobs, OptionalTensor ref_logprobs,
                                 OptionalTensor rollout_logprobs, OptionalTensor mask, OptionalTensor cu_seqlens,
                                 OptionalTensor denominator, std::vector<double> spec_numbers) {
  check(logits.dim() == 2, "logits must have shape [tokens, vocab]; got ", shape_of(logits));
  check(logits.size(1) <= 1 || logits.stride(1) == 1,
        "logits that are overwritten must have rows without gaps between their elements; got stride ",
        logits.stride(1));
  check(logits.size(0) <= 1 || logits.stride(0) >= logits.size(1),
        "logits that are overwritten must have rows that do not overlap; got stride ", logits.stride(0));
  const LossSpec spec = spec_of(spec_numbers);
  const int64_t tokens = logits.size(0), vocab = logits.size(1);
  return with_float_type("logits", logits, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    const ScalarType accumulator = accumulator_of(logits.scalar_type());
    const LossTensors tensors{advantages, old_logprobs, ref_logprobs, rollout_logprobs, mask, cu_seqlens, denominator};
    LossInputs<A> inputs(tensors, spec, "logits", logits, tokens, /*has_entropy=*/true);
    check_tokens(ids, temperature, mask, "logits", logits, tokens, vocab, accumulator);
    const Tensor flat_ids = torch::stable::contiguous(ids), temperatures = torch::stable::contiguous(temperature);
    const OptionalTensor counts = contiguous_or_none(mask);
    const LogitRows<T> rows = rows_of<T>(logits, flat_ids, temperatures, counts);
    T* const out = static_cast<T*>(logits.mutable_data_ptr());

    const auto vector = [&] { return torch::stable::new_empty(logits, {tokens}, accumulator); };
    Tensor logprobs = vector(), entropy = vector(), max = vector(), sum = vector(), by_logprobs = vector();
    Tensor loss = torch::stable::new_empty(logprobs, {});
    Tensor metrics = torch::stable::new_empty(logprobs, {kLossMetrics}, ScalarType::Double);
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
    gradients.stride = rows.stride;
    const bool fused = can_fuse_loss_gradient(rows, tokens, spec, gradients);
    if (fused)
      check_launch(name, launch_fused_loss_gradient(rows, tokens, stats, inputs.args, spec, memory.scratch, gradients,
                                                    scope.stream()));
    else
      check_launch(name, launch_token_logprobs<T>(rows, tokens, stats, scope.stream()));
    check_launch(name, launch_policy_loss(inputs.args, spec, memory.scratch, result, scope.stream()));
    if (!fused)
      check_launch(name,
                   launch_token_logprobs_grad<T>(rows, tokens, stats, g, h, nullptr, out, rows.stride, scope.stream()));
#else
    torch::stable::parallel_for(0, tokens, row_grain(vocab),
                                [&](int64_t begin, int64_t end) { token_logprobs_rows(rows, stats, begin, end); });
    run_policy_loss(inputs.args, spec, loss, g, h, metrics);
    torch::stable::parallel_for(0, tokens, row_grain(vocab), [&](int64_t begin, int64_t end) {
      token_logprobs_grad_rows(rows, stats, g, h, out, rows.stride, begin, end);
    });
#endif
    return std::make_tuple(loss, metrics, logprobs, entropy);
  });
}

void scale_gradient(Tensor gradient, Tensor factor) {
  check(gradient.dim() == 2 && factor.dim() == 0, "gradient must be 2-D and factor 0-D; got shapes ",
        shape_of(gradient), " and ", shape_of(factor));
  check(gradient.size(1) <= 1 || gradient.stride(1) == 1, "gradient must have dense rows; got stride ",
        gradient.stride(1));
  check_dtype("factor", factor, accumulator_of(gradient.scalar_type()));
  check_same_device("factor", factor, "gradient", gradient);
  with_float_type("gradient", gradient, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    const int64_t tokens = gradient.size(0), vocab = gradient.size(1), stride = gradient.stride(0);
    T* const data = static_cast<T*>(gradient.mutable_data_ptr());
    const A* const by = data_of<A>(factor);
#ifdef KC_CUDA
    const CudaScope scope(gradient);
    check_launch("scale_gradient", launch_scale_gradient<T>(data, tokens, vocab, stride, by, scope.stream()));
#else
    if (*by == A(1)) return;
    torch::stable::parallel_for(0, tokens, row_grain(vocab), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        for (int64_t j = 0; j < vocab; ++j) narrow(widen(data[t * stride + j]) * *by, data[t * stride + j]);
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
