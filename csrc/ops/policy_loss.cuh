// policy_loss on CUDA: the three steps of loss_math.h as four small launches, without waiting for the device, with the
// same bits every time. Includes no torch; the stream is a cudaStream_t, results are cudaError_t.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/loss_math.h"
#include "ops/policy_loss.h"

namespace kc {

// PolicyLossResult with the loss on the device.
template <class T>
struct PolicyLossDeviceResult {
  T* loss = nullptr;
  T* grad_logprobs = nullptr;
  T* grad_entropy = nullptr;  // may be null
  double* metrics = nullptr;
};

// The state of the sequences, in device memory that the caller provides for the call.
struct PolicyLossScratch {
  unsigned long long* counts;     // [4]: unmasked tokens, sequences with such tokens, finished blocks, unused
  int32_t* sequence_of;           // [N]; right after counts: one memset clears both
  int64_t* lengths;               // [S]
  SequenceState<double>* states;  // [S]
  double* shared;                 // [S]: sum of grad_shared
  double* partials;               // [kPartials, kLossMetrics]

  static constexpr int64_t kPartials = 1024;
  static size_t cleared_bytes(int64_t tokens) { return 32 + 8 * static_cast<size_t>((tokens + 1) / 2); }
  static size_t bytes(int64_t tokens, int64_t sequences) {
    return cleared_bytes(tokens) + static_cast<size_t>(sequences) * (16 + sizeof(SequenceState<double>)) +
           sizeof(double) * static_cast<size_t>(kPartials * kLossMetrics);
  }
  static PolicyLossScratch in(void* memory, int64_t tokens, int64_t sequences) {
    PolicyLossScratch scratch;
    scratch.counts = static_cast<unsigned long long*>(memory);
    scratch.sequence_of = reinterpret_cast<int32_t*>(scratch.counts + 4);
    scratch.lengths = reinterpret_cast<int64_t*>(static_cast<char*>(memory) + cleared_bytes(tokens));
    scratch.states = reinterpret_cast<SequenceState<double>*>(scratch.lengths + sequences);
    scratch.shared = reinterpret_cast<double*>(scratch.states + sequences);
    scratch.partials = scratch.shared + sequences;
    return scratch;
  }
};
static_assert(sizeof(SequenceState<double>) % 8 == 0);

#ifdef __CUDACC__
// The weight of an unmasked token of sequence s, once the sequences have been counted.
template <class T>
__device__ __forceinline__ double weight_on_device(const PolicyLossArgs<T>& args, const LossSpec& spec,
                                                   const PolicyLossScratch& scratch, int64_t s) {
  const double denominator = args.denominator ? *args.denominator
                             : args.denominator_value >= 0
                                 ? args.denominator_value
                                 : own_denominator(spec.reduction, static_cast<int64_t>(scratch.counts[0]),
                                                   static_cast<int64_t>(scratch.counts[1]));
  return token_weight(spec, args.lengths ? args.lengths[s] : scratch.lengths[s], denominator);
}

// The values that one unmasked token adds to the metrics that are sums over tokens; the others get 0. `gradient` is d
// loss / d log-prob before it is rounded to T.
template <class T>
__device__ __forceinline__ void token_metrics(double* values, const LossToken<double>& token,
                                              const TokenTerms<double>& terms, double weight, double gradient) {
  const auto metric = [&](LossMetric name) -> double& { return values[static_cast<int>(name)]; };
  const auto is_finite = [](double x) { return x - x == 0; };
  const bool rolled = token.has_rollout;
  metric(LossMetric::tokens) = metric(LossMetric::sequences) = metric(LossMetric::loss) = 0;
  metric(LossMetric::vetoed_sequences) = 0;
  metric(LossMetric::policy_loss) = weight * terms.policy;
  metric(LossMetric::kl_loss) = weight * terms.kl;
  metric(LossMetric::entropy_loss) = weight * terms.entropy;
  metric(LossMetric::ratio) = terms.ratio;
  metric(LossMetric::ratio_sq) = terms.ratio * terms.ratio;
  metric(LossMetric::clipped_low) = terms.clipped_low;
  metric(LossMetric::clipped_high) = terms.clipped_high;
  metric(LossMetric::kl) = terms.kl_estimate;
  metric(LossMetric::entropy) = token.entropy;
  metric(LossMetric::logratio) = terms.log_ratio;
  metric(LossMetric::logratio_sq) = terms.log_ratio * terms.log_ratio;
  metric(LossMetric::approx_kl) = terms.token_ratio - 1.0 - terms.log_ratio;
  metric(LossMetric::is_weight) = terms.weight;
  metric(LossMetric::rejected) = terms.rejected;
  metric(LossMetric::nonfinite) =
      !(is_finite(terms.policy + terms.kl + terms.entropy) && is_finite(static_cast<double>(static_cast<T>(gradient))));
  metric(LossMetric::mismatch_logratio) = rolled ? terms.mismatch_log_ratio : 0;
  metric(LossMetric::mismatch_ratio) = rolled ? terms.mismatch_ratio : 0;
  metric(LossMetric::mismatch_ratio_sq) = rolled ? terms.mismatch_ratio * terms.mismatch_ratio : 0;
  metric(LossMetric::rollout_tokens) = rolled;
}

// Computes the loss and the metrics from the totals over all tokens, in one thread.
template <class T>
__device__ __forceinline__ void write_totals(double* totals, const PolicyLossScratch& scratch,
                                             const PolicyLossDeviceResult<T>& result) {
  const auto total = [&](LossMetric name) -> double& { return totals[static_cast<int>(name)]; };
  total(LossMetric::tokens) = static_cast<double>(scratch.counts[0]);
  total(LossMetric::sequences) = static_cast<double>(scratch.counts[1]);
  double loss = total(LossMetric::policy_loss) + total(LossMetric::kl_loss) + total(LossMetric::entropy_loss);
  if (total(LossMetric::nonfinite) > 0) loss = nan("");
  total(LossMetric::loss) = loss;
  for (int i = 0; i < kLossMetrics; ++i) result.metrics[i] = totals[i];
  *result.loss = static_cast<T>(loss);
}
#endif

// Fills counts, lengths and sequence_of; reads only mask and cu_seqlens.
template <class T>
[[nodiscard]] int launch_count_sequences(const PolicyLossArgs<T>& args, const PolicyLossScratch& scratch, void* stream);

// The remaining steps, after launch_count_sequences.
template <class T>
[[nodiscard]] int launch_policy_loss(const PolicyLossArgs<T>& args, const LossSpec& spec,
                                     const PolicyLossScratch& scratch, const PolicyLossDeviceResult<T>& result,
                                     void* stream);

struct SequenceRange {
  int64_t first, last;
};

// After launch_count_sequences: computes only the gradients, equal to those of launch_policy_loss, of the tokens in
// `tokens`. If the spec depends on sequences, these are tokens of `sequences`, whose log-probs must all be known; the
// sequences are summed here if sums_sequences, otherwise they must have been summed before.
template <class T>
[[nodiscard]] int launch_loss_gradient(const PolicyLossArgs<T>& args, const LossSpec& spec,
                                       const PolicyLossScratch& scratch, SequenceRange sequences, bool sums_sequences,
                                       const int64_t* tokens, int64_t count, T* grad_logprobs, T* grad_entropy,
                                       void* stream);

}  // namespace kc
