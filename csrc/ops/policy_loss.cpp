#include "ops/policy_loss.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ops/loss_math.h"

namespace kc {

[[noreturn]] void fail_check(const std::string& message);  // common/checks.cpp, whose header needs torch

namespace {

void require(bool holds, const std::string& sentence) {
  if (!holds) fail_check(sentence);
}

const char* name_of(Mismatch mode) {
#define KC_NAME(name) #name,
  static const char* const names[] = {KC_MISMATCH_MODES(KC_NAME)};
#undef KC_NAME
  return names[static_cast<int>(mode)];
}

// The metric vector, read and written by name.
struct Metrics {
  std::array<double, kLossMetrics> sums{};
  double& operator[](LossMetric metric) { return sums[static_cast<size_t>(metric)]; }
};

template <class T>
class PolicyLoss {
 public:
  PolicyLoss(const PolicyLossArgs<T>& args, const LossSpec& spec, PolicyLossResult<T>& result)
      : args_(args), spec_(spec), result_(result) {}

  void run(const ParallelFor& parallel_for) {
    Metrics total;
    std::vector<int64_t> lengths(static_cast<size_t>(args_.sequences));
    int64_t tokens = 0, sequences = 0;
    for (int64_t s = 0; s < args_.sequences; ++s) {
      const int64_t length = lengths[static_cast<size_t>(s)] = clear_and_count(s);
      tokens += length;
      sequences += length > 0;
    }
    total[LossMetric::tokens] = static_cast<double>(tokens);
    total[LossMetric::sequences] = static_cast<double>(sequences);

    const double denominator = args_.denominator              ? *args_.denominator
                               : args_.denominator_value >= 0 ? args_.denominator_value
                                                              : own_denominator(spec_.reduction, tokens, sequences);
    std::vector<Metrics> parts(lengths.size());
    parallel_for(args_.sequences, [&](int64_t first, int64_t last) {
      for (int64_t s = first; s < last; ++s) {
        const int64_t length = lengths[static_cast<size_t>(s)];
        if (length == 0) continue;
        const int64_t whole_length = args_.lengths ? args_.lengths[s] : length;
        parts[static_cast<size_t>(s)] = sequence(s, token_weight(spec_, whole_length, denominator));
      }
    });
    for (const Metrics& part : parts)
      for (size_t i = 0; i < part.sums.size(); ++i) total.sums[i] += part.sums[i];

    total[LossMetric::loss] =
        total[LossMetric::policy_loss] + total[LossMetric::kl_loss] + total[LossMetric::entropy_loss];
    // One such token makes the loss NaN, because infinities of opposite signs could cancel, and a gradient can be NaN
    // although the loss is finite.
    if (total[LossMetric::nonfinite] > 0) total[LossMetric::loss] = std::numeric_limits<double>::quiet_NaN();
    result_.loss = total[LossMetric::loss];
    std::copy(total.sums.begin(), total.sums.end(), result_.metrics);
  }

 private:
  int64_t begin(int64_t s) const { return args_.cu_seqlens ? args_.cu_seqlens[s] : s * args_.sequence_length; }
  int64_t end(int64_t s) const {
    if (args_.cu_seqlens) return args_.cu_seqlens[s + 1];
    return args_.sequence_length > 0 ? begin(s) + args_.sequence_length : args_.tokens;
  }

  int64_t clear_and_count(int64_t s) {
    int64_t length = 0;
    for (int64_t t = begin(s); t < end(s); ++t) {
      result_.grad_logprobs[t] = T(0);
      if (result_.grad_entropy) result_.grad_entropy[t] = T(0);
      length += !args_.mask || args_.mask[t];
    }
    return length;
  }

  // Calls visit(t, token) for each unmasked token of sequence s.
  template <class Visit>
  void for_tokens(int64_t s, const Visit& visit) const {
    for (int64_t t = begin(s); t < end(s); ++t)
      if (!args_.mask || args_.mask[t]) visit(t, load_token<double>(args_, spec_, t, s));
  }

  // The three steps of loss_math.h, for a sequence with an unmasked token.
  Metrics sequence(int64_t s, double weight) {
    SequenceSums<double> sums;
    for_tokens(s, [&](int64_t, const LossToken<double>& token) { add_token(sums, spec_, token); });
    const SequenceState<double> state = finish_sequence(spec_, sums);

    double shared = 0.0;
    if (couples_tokens(spec_))
      for_tokens(
          s, [&](int64_t, const LossToken<double>& token) { shared += token_terms(spec_, token, state).grad_shared; });

    Metrics metrics;
    metrics[LossMetric::vetoed_sequences] = state.vetoed;
    for_tokens(s, [&](int64_t t, const LossToken<double>& token) {
      const TokenTerms<double> terms = token_terms(spec_, token, state);
      const double gradient = weight * (terms.grad_own + terms.share * shared);
      result_.grad_logprobs[t] = static_cast<T>(gradient);
      if (result_.grad_entropy) result_.grad_entropy[t] = static_cast<T>(weight * terms.grad_entropy);
      add_metrics(metrics, token, terms, weight);
      const bool finite =
          std::isfinite(terms.policy + terms.kl + terms.entropy) && std::isfinite(static_cast<T>(gradient));
      metrics[LossMetric::nonfinite] += !finite;
    });
    return metrics;
  }

  static void add_metrics(Metrics& metrics, const LossToken<double>& token, const TokenTerms<double>& terms,
                          double weight) {
    metrics[LossMetric::policy_loss] += weight * terms.policy;
    metrics[LossMetric::kl_loss] += weight * terms.kl;
    metrics[LossMetric::entropy_loss] += weight * terms.entropy;
    metrics[LossMetric::ratio] += terms.ratio;
    metrics[LossMetric::ratio_sq] += terms.ratio * terms.ratio;
    metrics[LossMetric::clipped_low] += terms.clipped_low;
    metrics[LossMetric::clipped_high] += terms.clipped_high;
    metrics[LossMetric::kl] += terms.kl_estimate;
    metrics[LossMetric::entropy] += token.entropy;
    metrics[LossMetric::logratio] += terms.log_ratio;
    metrics[LossMetric::logratio_sq] += terms.log_ratio * terms.log_ratio;
    metrics[LossMetric::approx_kl] += terms.token_ratio - 1.0 - terms.log_ratio;
    metrics[LossMetric::is_weight] += terms.weight;
    metrics[LossMetric::rejected] += terms.rejected;
    if (!token.has_rollout) return;
    metrics[LossMetric::mismatch_logratio] += terms.mismatch_log_ratio;
    metrics[LossMetric::mismatch_ratio] += terms.mismatch_ratio;
    metrics[LossMetric::mismatch_ratio_sq] += terms.mismatch_ratio * terms.mismatch_ratio;
    metrics[LossMetric::rollout_tokens] += 1.0;
  }

  const PolicyLossArgs<T>& args_;
  const LossSpec& spec_;
  PolicyLossResult<T>& result_;
};

}  // namespace

template <class T>
void policy_loss_forward(const PolicyLossArgs<T>& args, const LossSpec& spec, PolicyLossResult<T>& result,
                         const ParallelFor& parallel_for) {
  PolicyLoss<T>(args, spec, result).run(parallel_for);
}

template <class T>
void check_policy_loss(const PolicyLossArgs<T>& args, const LossSpec& spec) {
  require(spec.beta == 0 || args.ref_logprobs,
          "ref_logprobs must be given when the spec's beta is not 0: the KL term needs them");
  require(spec.entropy_coef == 0 || args.entropy,
          "entropy must be given when the spec's entropy_coef is not 0: the bonus needs it");
  require(spec.mismatch == Mismatch::none || args.rollout_logprobs,
          std::string("rollout_logprobs must be given when the spec's mismatch is '") + name_of(spec.mismatch) +
              "', or set mismatch='none'");
  require(spec.token_veto == 0 || args.rollout_logprobs,
          "rollout_logprobs must be given when the spec's token_veto is not 0");
  require(!spec.ratio_to_rollout || args.rollout_logprobs,
          "rollout_logprobs must be given when the spec's ratio_to_rollout is set: the ratio is taken against them");
  require(args.has_sequences() || !needs_sequences(spec),
          "cu_seqlens must be given: the spec's reduction, importance_sampling_level, mismatch, token_veto or "
          "off_policy_mask_threshold is about sequences. Pass cu_seqlens, [sequences + 1], or tensors of shape "
          "[sequences, length, ...]");
  require(args.has_sequences() || !args.advantages_per_sequence,
          "cu_seqlens must be given when advantages has one value a sequence");
}

void check_cu_seqlens(const int64_t* cu_seqlens, int64_t sequences, int64_t tokens) {
  const std::string last = std::to_string(tokens);
  require(cu_seqlens[0] == 0, "cu_seqlens must begin with 0; got " + std::to_string(cu_seqlens[0]));
  require(cu_seqlens[sequences] == tokens,
          "cu_seqlens must end with the number of tokens, " + last + "; got " + std::to_string(cu_seqlens[sequences]));
  for (int64_t s = 0; s < sequences; ++s)
    require(cu_seqlens[s] <= cu_seqlens[s + 1], "cu_seqlens must not decrease; got " + std::to_string(cu_seqlens[s]) +
                                                    " before " + std::to_string(cu_seqlens[s + 1]));
}

template void policy_loss_forward<float>(const PolicyLossArgs<float>&, const LossSpec&, PolicyLossResult<float>&,
                                         const ParallelFor&);
template void policy_loss_forward<double>(const PolicyLossArgs<double>&, const LossSpec&, PolicyLossResult<double>&,
                                          const ParallelFor&);
template void check_policy_loss<float>(const PolicyLossArgs<float>&, const LossSpec&);
template void check_policy_loss<double>(const PolicyLossArgs<double>&, const LossSpec&);

}  // namespace kc
