// LossSpec: the definition of a policy-gradient loss as plain numbers.
// This file is the only list of the fields. The struct below, the names by which Python packs a spec, and the metric
// vector are all made from the X-macros, so CPU, CUDA and Python always agree. Includes no torch; compiles with nvcc.
#pragma once

#include <limits>

namespace kc {

// How a token's loss is computed from its ratio r, advantage A and log-prob logp; sg[x] is x without gradient.
#define KC_SURROGATES(X)                                                                                    \
  X(clip)            /* -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A); PPO, GRPO, DAPO, GSPO */       \
  X(cispo)           /* -sg[min(r, epsilon_high)] A logp; TRL's meaning: a raw, one-sided bound */          \
  X(cispo_two_sided) /* -sg[clip(r, 1 - epsilon, 1 + epsilon_high)] A logp; verl's and NeMo's meaning */    \
  X(gmpo)            /* -A exp(mean of log r, each clipped to [-epsilon, epsilon_high] by the sign of A) */ \
  X(dppo)            /* -keep A r; keep by the change in probability, at most epsilon(_high) */             \
  X(sapo)            /* -(4 / tau) sigmoid(tau (r - 1)) A */                                                \
  X(vespo)           /* -sg[phi(w)] A logp, w the sequence ratio, phi(w) = w^k exp(lambda (1 - w)) */       \
  X(reinforce)       /* -A logp */

// The probabilities of which the ratio is taken.
#define KC_RATIO_LEVELS(X)                                                                            \
  X(token)          /* pi_t / old_t */                                                                \
  X(sequence)       /* exp(mean over the sequence of log ratios); gradient through the mean (GSPO) */ \
  X(sequence_token) /* the same value; gradient through token t alone (GSPO-token) */                 \
  X(sequence_sum)   /* exp(sum of log ratios): the exact sequence ratio (TRL's RLOO) */

// With len the unmasked tokens of a sequence and D the denominator.
#define KC_REDUCTIONS(X)                                                          \
  X(sequence_mean)           /* sum / (len D);             D = sequences */       \
  X(token_mean)              /* sum / D;                   D = unmasked tokens */ \
  X(sequence_mean_token_sum) /* sum / (length_constant D); D = sequences */       \
  X(sum)                     /* sum / D;                   D = 1 */

// Estimator of KL(pi || ref) from one sample; q = ref - logp.
#define KC_KL_ESTIMATORS(X) \
  X(k1) /* -q */            \
  X(k2) /* q^2 / 2 */       \
  X(k3) /* e^q - q - 1 */

// Correction for a sampler that is not exactly the trained model; rho = exp(old - rollout), bounds [mismatch_min,
// mismatch_max]. The weight multiplies the surrogate and carries no gradient.
#define KC_MISMATCH_MODES(X)                                                                                       \
  X(none)                                                                                                          \
  X(token_truncate)    /* weight clamp(rho_t) */                                                                   \
  X(token_mask)        /* weight rho_t inside the bounds, else 0 */                                                \
  X(sequence_truncate) /* weight clamp(exp(sum of log rho)) */                                                     \
  X(sequence_mask)     /* weight exp(sum of log rho) inside the bounds, else 0 */                                  \
  X(geometric)         /* weight rho_t, or 0 where exp(mean of log rho) leaves the bounds (NeMo's seq-mask-tis) */ \
  X(geometric_mask)    /* weight 1, or 0 where exp(mean of log rho) leaves the bounds (rejection alone) */

// The meaning of a NaN in rollout_logprobs (the sampler could not score the token).
#define KC_MISSING_ROLLOUTS(X)            \
  X(ratio_one)   /* no correction; TRL */ \
  X(weight_zero) /* the token is dropped; NeMo */

#define KC_ENUMERATOR(name) name,
enum class Surrogate { KC_SURROGATES(KC_ENUMERATOR) };
enum class RatioLevel { KC_RATIO_LEVELS(KC_ENUMERATOR) };
enum class Reduction { KC_REDUCTIONS(KC_ENUMERATOR) };
enum class KlEstimator { KC_KL_ESTIMATORS(KC_ENUMERATOR) };
enum class Mismatch { KC_MISMATCH_MODES(KC_ENUMERATOR) };
enum class MissingRollout { KC_MISSING_ROLLOUTS(KC_ENUMERATOR) };
#undef KC_ENUMERATOR

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

// X(type, name, default). A bound that is infinite is off, so no field needs a second "is it set" flag.
#define KC_LOSS_SPEC_FIELDS(X)                                                                       \
  X(Surrogate, surrogate, Surrogate::clip)                                                           \
  X(RatioLevel, importance_sampling_level, RatioLevel::token)                                        \
  X(Reduction, reduction, Reduction::token_mean)                                                     \
  X(double, length_constant, 1.0) /* of sequence_mean_token_sum */                                   \
  X(double, epsilon, 0.2)                                                                            \
  X(double, epsilon_high, 0.2)                                                                       \
  X(double, delta, kUnbounded)           /* r is at most delta, whatever the sign of A */            \
  X(double, dual_clip, kUnbounded)       /* where A < 0 the loss is at most -dual_clip A */          \
  X(double, log_ratio_clamp, kUnbounded) /* |log r| before exp; no gradient outside */               \
  X(double, ratio_penalty, 0.0)          /* adds ratio_penalty (log r_t)^2 to the surrogate */       \
  X(bool, ratio_to_rollout, false)       /* old log-probs are the sampler's own */                   \
  X(double, sapo_temperature_pos, 1.0)                                                               \
  X(double, sapo_temperature_neg, 1.05)                                                              \
  X(double, vespo_k_pos, 2.0)                                                                        \
  X(double, vespo_lambda_pos, 3.0)                                                                   \
  X(double, vespo_k_neg, 3.0)                                                                        \
  X(double, vespo_lambda_neg, 2.0)                                                                   \
  X(double, beta, 0.0) /* weight of the KL term */                                                   \
  X(KlEstimator, kl_estimator, KlEstimator::k3)                                                      \
  X(bool, use_bias_correction_kl, false) /* KL term times r_t, gradient included */                  \
  X(double, kl_input_clamp, kUnbounded)  /* |q| before the estimator */                              \
  X(double, kl_output_clamp, kUnbounded) /* |estimate| after it */                                   \
  X(double, entropy_coef, 0.0)           /* loss -= entropy_coef entropy_t */                        \
  X(Mismatch, mismatch, Mismatch::none)                                                              \
  X(double, mismatch_min, 0.0)                                                                       \
  X(double, mismatch_max, kUnbounded)                                                                \
  X(MissingRollout, missing_rollout, MissingRollout::ratio_one)                                      \
  X(double, token_veto, 0.0)                       /* any rho_t below it drops the whole sequence */ \
  X(double, off_policy_mask_threshold, kUnbounded) /* drops A < 0 where mean(rollout - logp) is above */

struct LossSpec {
#define KC_MEMBER(type, name, value) type name = value;
  KC_LOSS_SPEC_FIELDS(KC_MEMBER)
#undef KC_MEMBER
};

#define KC_COUNT(...) +1
constexpr int kLossSpecFields = 0 KC_LOSS_SPEC_FIELDS(KC_COUNT);

// A spec is passed through the dispatcher as `float[]` in the order of the fields; a choice is passed as its index.
inline LossSpec unpack_loss_spec(const double* values) {
  LossSpec spec;
#define KC_UNPACK(type, name, value) spec.name = static_cast<type>(*values++);
  KC_LOSS_SPEC_FIELDS(KC_UNPACK)
#undef KC_UNPACK
  return spec;
}

// Metrics are sums, not means, so they add up over micro-batches and ranks. Unless stated, they are over unmasked
// tokens.
#define KC_LOSS_METRICS(X)                                                                           \
  X(tokens)       /* unmasked tokens */                                                              \
  X(sequences)    /* sequences with an unmasked token */                                             \
  X(loss)         /* what the call returned: the next three together, reduced */                     \
  X(policy_loss)  /* reduced surrogate */                                                            \
  X(kl_loss)      /* reduced beta KL */                                                              \
  X(entropy_loss) /* reduced -entropy_coef H */                                                      \
  X(ratio)        /* r at the spec's level */                                                        \
  X(ratio_sq)                                                                                        \
  X(clipped_low)  /* tokens whose loss a lower bound on r changed */                                 \
  X(clipped_high) /* tokens whose loss an upper bound on r changed */                                \
  X(kl)           /* estimate of KL(pi || ref), before beta and bias correction */                   \
  X(entropy)                                                                                         \
  X(logratio)          /* logp - old: -k1 of KL(old || pi) */                                        \
  X(logratio_sq)       /* half of it is k2 of KL(old || pi) */                                       \
  X(approx_kl)         /* e^x - 1 - x of x = logp - old: k3 of KL(old || pi) */                      \
  X(is_weight)         /* the weight as used */                                                      \
  X(mismatch_logratio) /* old - rollout, over tokens with a rollout log-prob */                      \
  X(mismatch_ratio)    /* rho_t, likewise */                                                         \
  X(mismatch_ratio_sq) /* rho_t^2; chi^2 = mean - 1 */                                               \
  X(rollout_tokens)    /* tokens with a rollout log-prob: what the three above are divided by */     \
  X(rejected)          /* tokens whose surrogate was dropped by mismatch, veto or off-policy mask */ \
  X(vetoed_sequences)  /* sequences dropped by token_veto */                                         \
  X(nonfinite)         /* tokens whose loss or gradient is NaN or infinite; the loss is NaN if any */

enum class LossMetric {
#define KC_ENUMERATOR(name) name,
  KC_LOSS_METRICS(KC_ENUMERATOR)
#undef KC_ENUMERATOR
};
constexpr int kLossMetrics = 0 KC_LOSS_METRICS(KC_COUNT);
#undef KC_COUNT

}  // namespace kc
