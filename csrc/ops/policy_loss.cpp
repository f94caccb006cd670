#include "ops/policy_loss.h"

#include <cmath>
#include <limits>
#include <string>

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

// The metric vector, written by name.
class Metrics {
 public:
  explicit Metrics(double* sums) : sums_(sums) {
    for (int i = 0; i < kLossMetrics; ++i) sums_[i] = 0.0;
  }
  double& operator[](LossMetric metric) { return sums_[static_cast<int>(metric)]; }

 private:
  double* sums_;
};

template <class T>
class PolicyLoss {
 public:
  PolicyLoss(const PolicyLossArgs<T>& args, const LossSpec& spec, PolicyLossResult<T>& result)
      : args_(args), spec_(spec), result_(result), metrics_(result.metrics) {}

  void run() {
    int64_t tokens = 0, sequences = 0;
    for (int64_t s = 0; s < args_.sequences; ++s) {
      const int64_t length = clear_and_count(s);
      tokens += length;
      sequences += length > 0;
    }
    metrics_[LossMetric::tokens] = static_cast<double>(tokens);
    metrics_[LossMetric::sequences] = static_cast<double>(sequences);
    const double denominator =
        args_.denominator ? *args_.denominator : own_denominator(spec_.reduction, tokens, sequences);
    if (tokens > 0)
      for (int64_t s = 0; s < args_.sequences; ++s) add_sequence(s, denominator);

    metrics_[LossMetric::loss] =
        metrics_[LossMetric::policy_loss] + metrics_[LossMetric::kl_loss] + metrics_[LossMetric::entropy_loss];
    // One bad token is enough: an infinite loss that meets another of the opposite sign, or a gradient that is NaN
    // under a finite loss, must not look like a good step.
    if (metrics_[LossMetric::nonfinite] > 0) metrics_[LossMetric::loss] = std::numeric_limits<double>::quiet_NaN();
    result_.loss = metrics_[LossMetric::loss];
  }

 private:
  int64_t begin(int64_t s) const { return args_.cu_seqlens ? args_.cu_seqlens[s] : 0; }
  int64_t end(int64_t s) const { return args_.cu_seqlens ? args_.cu_seqlens[s + 1] : args_.tokens; }
  bool counts(int64_t t) const { return !args_.mask || args_.mask[t]; }

  int64_t clear_and_count(int64_t s) {
    int64_t length = 0;
    for (int64_t t = begin(s); t < end(s); ++t) {
      result_.grad_logprobs[t] = T(0);
      if (result_.grad_entropy) result_.grad_entropy[t] = T(0);
      length += counts(t);
    }
    return length;
  }

  void add_sequence(int64_t s, double denominator) {
    SequenceSums<double> sums;
    for (int64_t t = begin(s); t < end(s); ++t)
      if (counts(t)) add_token(sums, spec_, load_token<double>(args_, spec_, t, s));
    if (sums.tokens == 0) return;
    const SequenceState<double> state = finish_sequence(spec_, sums);
    metrics_[LossMetric::vetoed_sequences] += state.vetoed;

    double shared = 0.0;
    if (couples_tokens(spec_))
      for (int64_t t = begin(s); t < end(s); ++t)
        if (counts(t)) shared += token_terms(spec_, load_token<double>(args_, spec_, t, s), state).grad_shared;

    const double weight = token_weight(spec_, sums.tokens, denominator);
    for (int64_t t = begin(s); t < end(s); ++t) {
      if (!counts(t)) continue;
      const LossToken<double> token = load_token<double>(args_, spec_, t, s);
      const TokenTerms<double> terms = token_terms(spec_, token, state);
      // Without coupling `shared` is 0 and `share` may be anything finite.
      const double gradient = weight * (terms.grad_own + terms.share * shared);
      result_.grad_logprobs[t] = static_cast<T>(gradient);
      if (result_.grad_entropy) result_.grad_entropy[t] = static_cast<T>(weight * terms.grad_entropy);
      add_metrics(token, terms, weight, gradient);
    }
  }

  void add_metrics(const LossToken<double>& token, const TokenTerms<double>& terms, double weight, double gradient) {
    metrics_[LossMetric::policy_loss] += weight * terms.policy;
    metrics_[LossMetric::kl_loss] += weight * terms.kl;
    metrics_[LossMetric::entropy_loss] += weight * terms.entropy;
    metrics_[LossMetric::ratio] += terms.ratio;
    metrics_[LossMetric::ratio_sq] += terms.ratio * terms.ratio;
    metrics_[LossMetric::clipped_low] += terms.clipped_low;
    metrics_[LossMetric::clipped_high] += terms.clipped_high;
    metrics_[LossMetric::kl] += terms.kl_estimate;
    metrics_[LossMetric::entropy] += token.entropy;
    metrics_[LossMetric::logratio] += terms.log_ratio;
    metrics_[LossMetric::logratio_sq] += terms.log_ratio * terms.log_ratio;
    metrics_[LossMetric::approx_kl] += terms.token_ratio - 1.0 - terms.log_ratio;
    metrics_[LossMetric::is_weight] += terms.weight;
    metrics_[LossMetric::rejected] += terms.rejected;
    if (token.has_rollout) {
      metrics_[LossMetric::mismatch_logratio] += terms.mismatch_log_ratio;
      metrics_[LossMetric::mismatch_ratio] += terms.mismatch_ratio;
      metrics_[LossMetric::mismatch_ratio_sq] += terms.mismatch_ratio * terms.mismatch_ratio;
      metrics_[LossMetric::rollout_tokens] += 1.0;
    }
    const bool finite =
        std::isfinite(terms.policy + terms.kl + terms.entropy) && std::isfinite(static_cast<T>(gradient));
    metrics_[LossMetric::nonfinite] += !finite;
  }

  const PolicyLossArgs<T>& args_;
  const LossSpec& spec_;
  PolicyLossResult<T>& result_;
  Metrics metrics_;
};

}  // namespace

template <class T>
void policy_loss_forward(const PolicyLossArgs<T>& args, const LossSpec& spec, PolicyLossResult<T>& result) {
  PolicyLoss<T>(args, spec, result).run();
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
  require(args.cu_seqlens || !needs_sequences(spec),
          "cu_seqlens must be given: the spec's reduction, importance_sampling_level, mismatch, token_veto or "
          "off_policy_mask_threshold is about sequences");
  require(args.cu_seqlens || !args.advantages_per_sequence,
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

template void policy_loss_forward<float>(const PolicyLossArgs<float>&, const LossSpec&, PolicyLossResult<float>&);
template void policy_loss_forward<double>(const PolicyLossArgs<double>&, const LossSpec&, PolicyLossResult<double>&);
template void check_policy_loss<float>(const PolicyLossArgs<float>&, const LossSpec&);
template void check_policy_loss<double>(const PolicyLossArgs<double>&, const LossSpec&);

}  // namespace kc
