// linear_grpo_loss on the CPU. The gradient is formed in the forward, so three matrix products do instead of four: the
// loss is a scalar, so the backward only scales. It needs every token of a sequence to be scored before the first is
// differentiated, unless the loss looks at tokens one by one; so rows go through the workspace in whole sequences, and
// only a sequence longer than the workspace is multiplied a fourth time.
#ifndef KC_CUDA
#include <torch/csrc/stable/library.h>

#include <array>
#include <tuple>
#include <vector>

#include "ops/linear_head_torch.h"
#include "ops/loss_math.h"
#include "ops/policy_loss_torch.h"

namespace kc {
namespace {

using Outputs = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

template <class T>
class LinearLoss {
 public:
  using A = Accumulator<T>;

  LinearLoss(const LinearArguments& in, LinearNeeds needs, const TokenInputs<A>& inputs, PolicyLossArgs<A> args,
             const LossSpec& spec, const TokenOutputs<A>& out)
      : head_(in, needs), inputs_(inputs), args_(args), spec_(spec), stats_(out.stats()), differentiates_(needs.any()) {
    args_.logprobs = stats_.logprobs;
    args_.entropy = stats_.entropy;
    grad_logprobs_.resize(static_cast<size_t>(args_.tokens));
    grad_entropy_.resize(static_cast<size_t>(spec.entropy_coef != 0 ? args_.tokens : 0));
    whole_ = {0, args_.tokens};
    const int64_t* bounds = args_.cu_seqlens ? args_.cu_seqlens : whole_.data();
    bounds_.assign(bounds, bounds + args_.sequences + 1);
    count();
  }

  // Returns the loss; `metrics` is [kLossMetrics].
  double run(double* metrics) {
    totals_.fill(0.0);
    const bool splits = splits_sequences(spec_);
    for (int64_t s = 0; s < args_.sequences;) {
      // As many whole sequences as fit the workspace, at least one.
      int64_t last = s + 1, rows = lengths_[static_cast<size_t>(s)];
      while (last < args_.sequences && rows + lengths_[static_cast<size_t>(last)] <= head_.capacity())
        rows += lengths_[static_cast<size_t>(last++)];
      if (rows <= head_.capacity())
        in_one_piece(s, last, bound(s), bound(last));
      else if (splits)
        in_pieces(s);
      else
        scored_first(s);
      s = last;
    }
    totals_[static_cast<size_t>(LossMetric::sequences)] = static_cast<double>(sequences_);
    std::copy(totals_.begin(), totals_.end(), metrics);
    return totals_[static_cast<size_t>(LossMetric::loss)];
  }

  LinearHead<T>& head() { return head_; }

 private:
  int64_t bound(int64_t s) const { return bounds_[static_cast<size_t>(s)]; }

  void count() {
    int64_t tokens = 0;
    for (int64_t s = 0; s < args_.sequences; ++s) {
      const auto length = static_cast<int64_t>(inputs_.unmasked(bound(s), bound(s + 1)).size());
      lengths_.push_back(length);
      tokens += length;
      sequences_ += length > 0;
    }
    denominator_ = args_.denominator ? *args_.denominator : own_denominator(spec_.reduction, tokens, sequences_);
  }

  // Tokens [begin, end), which lie in sequences [first, last).
  void in_one_piece(int64_t first, int64_t last, int64_t begin, int64_t end) {
    const std::vector<int64_t> tokens = inputs_.unmasked(begin, end);
    const auto rows = static_cast<int64_t>(tokens.size());
    if (rows == 0) return;
    const LogitRows<A> logits = head_.logits(tokens.data(), rows, inputs_.rows);
    head_.score(logits, stats_, rows);
    add_loss(first, last, begin, end);
    add_gradient(logits, rows);
  }

  void in_pieces(int64_t s) {
    const std::vector<int64_t> tokens = inputs_.unmasked(bound(s), bound(s + 1));
    for_chunks(tokens,
               [&](const int64_t* chunk, int64_t rows) { in_one_piece(s, s + 1, chunk[0], chunk[rows - 1] + 1); });
  }

  void scored_first(int64_t s) {
    const std::vector<int64_t> tokens = inputs_.unmasked(bound(s), bound(s + 1));
    for_chunks(tokens, [&](const int64_t* chunk, int64_t rows) {
      head_.score(head_.logits(chunk, rows, inputs_.rows), stats_, rows);
    });
    add_loss(s, s + 1, bound(s), bound(s + 1));
    if (differentiates_)
      for_chunks(tokens, [&](const int64_t* chunk, int64_t rows) {
        add_gradient(head_.logits(chunk, rows, inputs_.rows), rows);
      });
  }

  template <class Visit>
  void for_chunks(const std::vector<int64_t>& tokens, const Visit& visit) {
    const auto total = static_cast<int64_t>(tokens.size());
    for (int64_t begin = 0; begin < total; begin += head_.capacity())
      visit(tokens.data() + begin, std::min(head_.capacity(), total - begin));
  }

  // The loss and its gradient by log-prob and entropy, of tokens [begin, end) in sequences [first, last).
  void add_loss(int64_t first, int64_t last, int64_t begin, int64_t end) {
    std::vector<int64_t> bounds;
    for (int64_t s = first; s <= last; ++s) bounds.push_back(std::clamp(bound(s), begin, end) - begin);
    const auto from = [&](const auto* pointer) { return pointer ? pointer + begin : nullptr; };
    PolicyLossArgs<A> part = args_;
    part.tokens = end - begin;
    part.sequences = last - first;
    part.cu_seqlens = bounds.data();
    part.lengths = lengths_.data() + first;
    part.logprobs = from(args_.logprobs);
    part.entropy = from(args_.entropy);
    part.old_logprobs = from(args_.old_logprobs);
    part.ref_logprobs = from(args_.ref_logprobs);
    part.rollout_logprobs = from(args_.rollout_logprobs);
    part.mask = from(args_.mask);
    part.advantages = args_.advantages + (args_.advantages_per_sequence ? first : begin);
    part.denominator = &denominator_;
    std::array<double, kLossMetrics> metrics;
    PolicyLossResult<A> result;
    result.grad_logprobs = grad_logprobs_.data() + begin;
    result.grad_entropy = grad_entropy_.empty() ? nullptr : grad_entropy_.data() + begin;
    result.metrics = metrics.data();
    policy_loss_forward(part, spec_, result, parallel_over_sequences);
    for (size_t i = 0; i < metrics.size(); ++i) totals_[i] += metrics[i];
  }

  void add_gradient(const LogitRows<A>& logits, int64_t rows) {
    if (differentiates_)
      head_.add_gradient(logits, stats_, grad_logprobs_.data(), grad_entropy_.empty() ? nullptr : grad_entropy_.data(),
                         rows);
  }

  LinearHead<T> head_;
  const TokenInputs<A>& inputs_;
  PolicyLossArgs<A> args_;
  const LossSpec& spec_;
  TokenStats<A> stats_;
  bool differentiates_;
  std::vector<A> grad_logprobs_, grad_entropy_;
  std::array<int64_t, 2> whole_{};
  std::vector<int64_t> bounds_, lengths_;  // of every sequence; lengths count unmasked tokens
  int64_t sequences_ = 0;                  // with an unmasked token
  double denominator_ = 0;
  std::array<double, kLossMetrics> totals_{};
};

Outputs linear_grpo_loss(Tensor hidden, Tensor weight, OptionalTensor bias, Tensor ids, Tensor temperature,
                         Tensor advantages, OptionalTensor old_logprobs, OptionalTensor ref_logprobs,
                         OptionalTensor rollout_logprobs, OptionalTensor mask, OptionalTensor cu_seqlens,
                         OptionalTensor denominator, std::vector<double> spec_numbers, double logit_scale,
                         double softcap, int64_t chunk_rows, bool need_hidden, bool need_weight, bool need_bias) {
  const LinearArguments in{hidden, weight, bias, logit_scale, softcap, chunk_rows};
  check_linear(in);
  const LossSpec spec = spec_of(spec_numbers);
  return with_float_type("hidden", hidden, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    const ScalarType type = accumulator_of(hidden.scalar_type());
    const int64_t tokens = hidden.size(0);
    check_tokens(ids, temperature, mask, "hidden", hidden, tokens, weight.size(0), type);
    const LossTensors tensors{advantages, old_logprobs, ref_logprobs, rollout_logprobs, mask, cu_seqlens, denominator};
    const LossInputs<A> loss_inputs(tensors, spec, "hidden", hidden, tokens, /*has_entropy=*/true);
    const TokenInputs<A> inputs(ids, temperature, mask);
    const TokenOutputs<A> out(hidden, tokens, type);
    LinearLoss<T> linear(in, {need_hidden, need_weight, need_bias}, inputs, loss_inputs.args, spec, out);
    Tensor loss = torch::stable::new_empty(hidden, {}, type);
    Tensor metrics = torch::stable::new_empty(hidden, {kLossMetrics}, ScalarType::Double);
    *loss.mutable_data_ptr<A>() = static_cast<A>(linear.run(metrics.mutable_data_ptr<double>()));
    return std::make_tuple(loss, metrics, out.logprobs, out.entropy, linear.head().grad_hidden,
                           torch::stable::to(linear.head().grad_weight, hidden.scalar_type()),
                           torch::stable::to(linear.head().grad_bias, hidden.scalar_type()));
  });
}

}  // namespace
}  // namespace kc

STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CPU, m) {
  m.impl("linear_grpo_loss", TORCH_BOX(&kc::linear_grpo_loss));
}
#endif
