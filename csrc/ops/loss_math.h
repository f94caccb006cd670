// The policy loss of one token and its derivatives: the only definition, used by every form of the loss on CPU and
// CUDA.
//
// Three steps, because the ratio may be a sequence's:
// 1. `add_token` sums values over the tokens of a sequence; `finish_sequence` turns the sums into the sequence's state.
//   2. `token_terms` gives a token's loss and gradient. A gradient that runs through the sequence ratio comes back as
//      `grad_shared`, d loss_t / d log(ratio of the sequence).
//   3. The gradient of a token is w (grad_own + share * sum of grad_shared over its sequence), w from `token_weight`.
//      Where `couples_tokens(spec)` is false every grad_shared is 0, and steps 2 and 3 are one.
// T is float or double. Includes no torch, and uses no std:: function that device code lacks.
#pragma once

#include <math.h>

#include <cstdint>

#include "common/host_device.h"
#include "ops/loss_spec.h"
#include "ops/policy_loss.h"

namespace kc {

template <class T>
struct LossToken {
  T logprob, old, ref, rollout, advantage, entropy;  // ref and entropy are 0 where not given
  bool has_ref, has_rollout;                         // has_rollout: given, and not NaN
  bool unscored;                                     // given, but NaN: the sampler could not score it
};

template <class T>
struct SequenceSums {
  int64_t tokens = 0;
  T log_ratio = 0;                   // of the surrogate's token log-ratio
  T mismatch = 0;                    // old - rollout
  T drift = 0;                       // rollout (or old) - logprob
  T least_mismatch = T(kUnbounded);  // smallest old - rollout
};

template <class T>
struct SequenceState {
  T tokens = 1;
  T log_ratio = 0;  // log of the sequence ratio, as the level defines it
  T mismatch = 1;   // weight that the sequence gives its tokens; 0 rejects them
  bool vetoed = false;
  bool drifted = false;
};

template <class T>
struct TokenTerms {
  T policy = 0, kl = 0, entropy = 0;           // parts of loss_t: weighted surrogate, beta KL, -entropy_coef H
  T grad_own = 0, grad_shared = 0, share = 0;  // see step 3
  T grad_entropy = 0;                          // d loss_t / d entropy_t
  // For the metrics.
  T ratio = 1;                                   // at the spec's level
  T log_ratio = 0, token_ratio = 1;              // logp - old and its exp
  T mismatch_log_ratio = 0, mismatch_ratio = 1;  // old - rollout and its exp
  T weight = 1, kl_estimate = 0;
  bool clipped_low = false, clipped_high = false, rejected = false;
};

// A value and its derivative with respect to the log-prob or log-ratio from which it is computed.
template <class T>
struct Dual {
  T value, slope;
};

template <class T>
KC_HOST_DEVICE T clamp(T x, T low, T high) {
  return x < low ? low : (x > high ? high : x);  // NaN stays NaN
}

// The slope is 1 on the bounds, as in torch.clamp.
template <class T>
KC_HOST_DEVICE Dual<T> clamp_dual(T x, T low, T high) {
  return {clamp(x, low, high), x < low || x > high ? T(0) : T(1)};
}

// Whether a token's gradient depends on the loss of the other tokens of its sequence.
KC_HOST_DEVICE bool couples_tokens(const LossSpec& spec) {
  const bool through_ratio = spec.importance_sampling_level == RatioLevel::sequence ||
                             spec.importance_sampling_level == RatioLevel::sequence_sum;
  return through_ratio &&
         (spec.surrogate == Surrogate::clip || spec.surrogate == Surrogate::gmpo || spec.surrogate == Surrogate::sapo);
}

// Whether anything in the spec depends on sequences: then the caller must pass their bounds.
KC_HOST_DEVICE bool needs_sequences(const LossSpec& spec) {
  return spec.importance_sampling_level != RatioLevel::token || spec.reduction == Reduction::sequence_mean ||
         spec.reduction == Reduction::sequence_mean_token_sum || spec.mismatch >= Mismatch::sequence_truncate ||
         spec.token_veto > 0 || spec.off_policy_mask_threshold < kUnbounded;
}

// Whether each token's loss and gradient depend only on that token and the length of its sequence: then a sequence may
// be cut anywhere.
KC_HOST_DEVICE bool splits_sequences(const LossSpec& spec) {
  return spec.importance_sampling_level == RatioLevel::token && spec.mismatch < Mismatch::sequence_truncate &&
         spec.token_veto == 0 && spec.off_policy_mask_threshold == kUnbounded;
}

// Token t of sequence s, whose log-prob and entropy need not be in `args`. S is the stored type, T the type of the
// computation.
template <class T, class S>
KC_HOST_DEVICE LossToken<T> load_token(const PolicyLossArgs<S>& args, const LossSpec& spec, int64_t t, int64_t s,
                                       T logprob, T entropy) {
  LossToken<T> token;
  token.logprob = logprob;
  token.old = args.old_logprobs ? static_cast<T>(args.old_logprobs[t]) : token.logprob;
  token.has_ref = args.ref_logprobs != nullptr;
  token.ref = token.has_ref ? static_cast<T>(args.ref_logprobs[t]) : T(0);
  token.rollout = args.rollout_logprobs ? static_cast<T>(args.rollout_logprobs[t]) : T(0);
  token.has_rollout = args.rollout_logprobs != nullptr && token.rollout == token.rollout;
  token.unscored = args.rollout_logprobs != nullptr && !token.has_rollout;
  token.advantage = static_cast<T>(args.advantages[args.advantages_per_sequence ? s : t]);
  token.entropy = entropy;
  if (spec.ratio_to_rollout) token.old = token.has_rollout ? token.rollout : token.logprob;
  return token;
}

template <class T, class S>
KC_HOST_DEVICE LossToken<T> load_token(const PolicyLossArgs<S>& args, const LossSpec& spec, int64_t t, int64_t s) {
  return load_token<T>(args, spec, t, s, static_cast<T>(args.logprobs[t]),
                       args.entropy ? static_cast<T>(args.entropy[t]) : T(0));
}

template <class T>
KC_HOST_DEVICE T mismatch_log_ratio(const LossToken<T>& token) {
  return token.has_rollout ? token.old - token.rollout : T(0);
}

// log r_t as it enters the surrogate's ratio.
template <class T>
KC_HOST_DEVICE Dual<T> token_log_ratio(const LossSpec& spec, const LossToken<T>& token) {
  const T log_ratio = token.logprob - token.old;
  if (spec.surrogate == Surrogate::gmpo) {  // PPO's one-sided clip, in log space
    const bool moved = token.advantage > 0 ? log_ratio > T(spec.epsilon_high) : log_ratio < T(-spec.epsilon);
    return {moved ? (token.advantage > 0 ? T(spec.epsilon_high) : T(-spec.epsilon)) : log_ratio, T(moved ? 0 : 1)};
  }
  if (spec.surrogate == Surrogate::vespo) return clamp_dual(log_ratio, T(-20), T(20));
  return {log_ratio, T(1)};
}

template <class T>
KC_HOST_DEVICE void add_token(SequenceSums<T>& sums, const LossSpec& spec, const LossToken<T>& token) {
  const T mismatch = mismatch_log_ratio(token);
  ++sums.tokens;
  sums.log_ratio += token_log_ratio(spec, token).value;
  sums.mismatch += mismatch;
  if (mismatch < sums.least_mismatch) sums.least_mismatch = mismatch;
  // A token that the sampler could not score does not count as drift. Without a sampler's log-probs the old policy's
  // are used.
  if (token.has_rollout)
    sums.drift += token.rollout - token.logprob;
  else if (!token.unscored)
    sums.drift += token.old - token.logprob;
}

template <class T>
KC_HOST_DEVICE SequenceState<T> finish_sequence(const LossSpec& spec, const SequenceSums<T>& sums) {
  SequenceState<T> state;
  const T low = T(spec.mismatch_min), high = T(spec.mismatch_max);
  state.tokens = sums.tokens > 0 ? T(sums.tokens) : T(1);
  const bool sum_level = spec.importance_sampling_level == RatioLevel::sequence_sum;
  state.log_ratio = sum_level ? sums.log_ratio : sums.log_ratio / state.tokens;
  state.vetoed = exp(sums.least_mismatch) < T(spec.token_veto);
  state.drifted = sums.drift / state.tokens > T(spec.off_policy_mask_threshold);

  const bool geometric = spec.mismatch == Mismatch::geometric || spec.mismatch == Mismatch::geometric_mask;
  const T ratio = exp(geometric ? sums.mismatch / state.tokens : sums.mismatch);
  const bool outside = ratio < low || ratio > high;
  if (spec.mismatch == Mismatch::sequence_truncate) state.mismatch = clamp(ratio, low, high);
  if (spec.mismatch == Mismatch::sequence_mask) state.mismatch = outside ? T(0) : ratio;
  if (geometric) state.mismatch = outside ? T(0) : T(1);
  return state;
}

// The mismatch weight of a token with rho_t = `ratio`: 0 drops its surrogate.
template <class T>
KC_HOST_DEVICE T mismatch_weight(const LossSpec& spec, const LossToken<T>& token, const SequenceState<T>& sequence,
                                 T ratio) {
  if (token.unscored && spec.missing_rollout == MissingRollout::weight_zero) return T(0);
  if (sequence.mismatch == T(0)) return T(0);
  const T low = T(spec.mismatch_min), high = T(spec.mismatch_max);
  switch (spec.mismatch) {
    case Mismatch::token_truncate:
      return clamp(ratio, low, high);
    case Mismatch::token_mask:
      return ratio < low || ratio > high ? T(0) : ratio;
    case Mismatch::geometric:
      return ratio;
    default:
      return sequence.mismatch;
  }
}

template <class T>
struct SurrogateTerms {
  T loss = 0;
  T by_log_ratio = 0;    // d loss / d log r
  T by_logprob = 0;      // d loss / d logp of logp outside the ratio
  bool bounded = false;  // a bound on r changed the loss
};

// The surrogate of one token with ratio r = exp(log_r).
template <class T>
KC_HOST_DEVICE SurrogateTerms<T> surrogate_terms(const LossSpec& spec, const LossToken<T>& token, T r, T log_r) {
  SurrogateTerms<T> out;
  const T A = token.advantage;
  if (A == T(0)) return out;  // exactly nothing, even where the ratio overflows
  const T band_low = T(1 - spec.epsilon), band_high = T(1 + spec.epsilon_high);
  switch (spec.surrogate) {
    case Surrogate::clip: {
      const Dual<T> first = clamp_dual(r, T(0), T(spec.delta));
      const Dual<T> second = clamp_dual(r, band_low, band_high);
      const Dual<T> chosen = first.value * A <= second.value * A ? first : second;
      out.loss = -chosen.value * A;
      out.by_log_ratio = -chosen.slope * r * A;
      if (A < T(0) && out.loss > T(-spec.dual_clip) * A) {
        out.loss = T(-spec.dual_clip) * A;
        out.by_log_ratio = 0;
      }
      if (chosen.slope == T(0)) out.by_log_ratio = 0;  // not 0 * inf
      out.bounded = out.loss != -r * A;
      return out;
    }
    case Surrogate::cispo:
    case Surrogate::cispo_two_sided: {
      const bool raw = spec.surrogate == Surrogate::cispo;
      const T bound = raw ? clamp(r, T(0), T(spec.epsilon_high)) : clamp(r, band_low, band_high);
      out.loss = -bound * A * token.logprob;
      out.by_logprob = -bound * A;
      out.bounded = bound != r;
      return out;
    }
    case Surrogate::gmpo:
      out.loss = -r * A;
      out.by_log_ratio = -r * A;
      out.bounded = token_log_ratio(spec, token).slope == T(0);
      return out;
    case Surrogate::dppo: {
      const T change = exp(token.logprob) - exp(token.old);
      out.bounded = A > T(0) ? change > T(spec.epsilon_high) : change < T(-spec.epsilon);
      if (!out.bounded) out.loss = out.by_log_ratio = -r * A;
      return out;
    }
    case Surrogate::sapo: {
      const T tau = T(A > T(0) ? spec.sapo_temperature_pos : spec.sapo_temperature_neg);
      const T gate = T(1) / (T(1) + exp(-tau * (r - T(1))));
      out.loss = T(-4) / tau * gate * A;
      const T slope = gate * (T(1) - gate);
      out.by_log_ratio = slope == T(0) ? T(0) : T(-4) * slope * r * A;  // not 0 * inf
      return out;
    }
    case Surrogate::vespo: {
      const T k = T(A >= T(0) ? spec.vespo_k_pos : spec.vespo_k_neg);
      const T lambda = T(A >= T(0) ? spec.vespo_lambda_pos : spec.vespo_lambda_neg);
      const T log_w = clamp(log_r, T(-18.420680743952367), T(20));  // log 1e-8
      const T phi = exp(lambda + k * log_w - lambda * exp(log_w));
      out.loss = -phi * A * token.logprob;
      out.by_logprob = -phi * A;
      return out;
    }
    case Surrogate::reinforce:
      out.loss = -A * token.logprob;
      out.by_logprob = -A;
      return out;
  }
  return out;
}

// The estimate of KL(pi || ref), and its slope by logp.
template <class T>
KC_HOST_DEVICE Dual<T> kl_terms(const LossSpec& spec, const LossToken<T>& token) {
  const T bound_in = T(spec.kl_input_clamp), bound_out = T(spec.kl_output_clamp);
  const Dual<T> q = clamp_dual(token.ref - token.logprob, -bound_in, bound_in);
  Dual<T> kl{-q.value, T(1)};
  if (spec.kl_estimator == KlEstimator::k2) kl = {q.value * q.value / T(2), -q.value};
  if (spec.kl_estimator == KlEstimator::k3) {
    const T growth = expm1(q.value);
    kl = {growth - q.value, -growth};
  }
  const Dual<T> out = clamp_dual(kl.value, -bound_out, bound_out);
  return {out.value, out.slope == T(0) || q.slope == T(0) ? T(0) : kl.slope};
}

// Surrogate -> gates -> mismatch weight -> + beta KL -> - entropy_coef H, for one unmasked token.
template <class T>
KC_HOST_DEVICE TokenTerms<T> token_terms(const LossSpec& spec, const LossToken<T>& token,
                                         const SequenceState<T>& sequence) {
  TokenTerms<T> out;
  const T clamp_at = T(spec.log_ratio_clamp);
  const Dual<T> own = token_log_ratio(spec, token);
  const bool per_token = spec.importance_sampling_level == RatioLevel::token;
  const Dual<T> log_r = clamp_dual(per_token ? own.value : sequence.log_ratio, -clamp_at, clamp_at);
  out.log_ratio = token.logprob - token.old;
  out.token_ratio = exp(out.log_ratio);
  out.ratio = log_r.value == out.log_ratio ? out.token_ratio : exp(log_r.value);
  out.mismatch_log_ratio = mismatch_log_ratio(token);
  if (token.has_rollout) out.mismatch_ratio = exp(out.mismatch_log_ratio);

  out.weight = mismatch_weight(spec, token, sequence, out.mismatch_ratio);
  if (sequence.vetoed || (sequence.drifted && token.advantage < T(0))) out.weight = T(0);
  out.rejected = out.weight == T(0);
  if (!out.rejected) {
    const SurrogateTerms<T> surrogate = surrogate_terms(spec, token, out.ratio, log_r.value);
    out.policy = out.weight * surrogate.loss;
    out.grad_own = out.weight * surrogate.by_logprob;
    if (spec.ratio_penalty != 0) {
      const T penalty = out.weight * T(spec.ratio_penalty);
      out.policy += penalty * out.log_ratio * out.log_ratio;
      out.grad_own += T(2) * penalty * out.log_ratio;
    }
    const T through_ratio = log_r.slope == T(0) ? T(0) : out.weight * surrogate.by_log_ratio;
    if (couples_tokens(spec))
      out.grad_shared = through_ratio;
    else
      out.grad_own += through_ratio;
    const T bounded_log_ratio = spec.surrogate == Surrogate::gmpo ? out.log_ratio : log_r.value;
    out.clipped_low = surrogate.bounded && bounded_log_ratio < T(0);
    out.clipped_high = surrogate.bounded && !out.clipped_low;
  }
  out.share = spec.importance_sampling_level == RatioLevel::sequence_sum ? own.slope : own.slope / sequence.tokens;

  if (token.has_ref) {
    const Dual<T> kl = kl_terms(spec, token);
    out.kl_estimate = kl.value;
    if (spec.beta != 0 && !sequence.vetoed) {
      Dual<T> term = kl;
      if (spec.use_bias_correction_kl) {
        const Dual<T> r = clamp_dual(out.log_ratio, -clamp_at, clamp_at);
        const T ratio = r.slope == T(0) ? exp(r.value) : out.token_ratio;
        term = {ratio * kl.value, ratio * (kl.slope + r.slope * kl.value)};
      }
      out.kl = T(spec.beta) * term.value;
      out.grad_own += T(spec.beta) * term.slope;
    }
  }
  if (spec.entropy_coef != 0 && !sequence.vetoed) {
    out.entropy = T(-spec.entropy_coef) * token.entropy;
    out.grad_entropy = T(-spec.entropy_coef);
  }
  return out;
}

// The number that a reduction counts: the denominator of a call without a given one.
KC_HOST_DEVICE double own_denominator(Reduction reduction, int64_t tokens, int64_t sequences) {
  if (reduction == Reduction::sum) return 1.0;
  return static_cast<double>(reduction == Reduction::token_mean ? tokens : sequences);
}

// The weight w of each unmasked token of a sequence with `length` of them; 0 for the denominator 0 of an empty batch.
KC_HOST_DEVICE double token_weight(const LossSpec& spec, int64_t length, double denominator) {
  if (denominator == 0) return 0.0;
  if (spec.reduction == Reduction::sequence_mean) return 1.0 / (static_cast<double>(length) * denominator);
  if (spec.reduction == Reduction::sequence_mean_token_sum) return 1.0 / (spec.length_constant * denominator);
  return 1.0 / denominator;
}

}  // namespace kc
