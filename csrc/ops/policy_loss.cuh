// policy_loss on CUDA: the three steps of loss_math.h as four small launches, no wait for the device, the same bits
// every time. Knows no torch; the stream is a cudaStream_t, results are cudaError_t.
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

// What is known of the sequences, in device memory that the caller lends for the call.
struct PolicyLossScratch {
  unsigned long long* counts;     // [2]: unmasked tokens, sequences with one
  int32_t* sequence_of;           // [N]; right after counts: one memset clears both
  int64_t* lengths;               // [S]
  SequenceState<double>* states;  // [S]
  double* shared;                 // [S]: sum of grad_shared
  double* partials;               // [kPartials, kLossMetrics]

  static constexpr int64_t kPartials = 1024;
  static size_t cleared_bytes(int64_t tokens) { return 16 + 8 * static_cast<size_t>((tokens + 1) / 2); }
  static size_t bytes(int64_t tokens, int64_t sequences) {
    return cleared_bytes(tokens) + static_cast<size_t>(sequences) * (16 + sizeof(SequenceState<double>)) +
           sizeof(double) * static_cast<size_t>(kPartials * kLossMetrics);
  }
  static PolicyLossScratch in(void* memory, int64_t tokens, int64_t sequences) {
    PolicyLossScratch scratch;
    scratch.counts = static_cast<unsigned long long*>(memory);
    scratch.sequence_of = reinterpret_cast<int32_t*>(scratch.counts + 2);
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
                                              : own_denominator(spec.reduction, static_cast<int64_t>(scratch.counts[0]),
                                                                static_cast<int64_t>(scratch.counts[1]));
  return token_weight(spec, args.lengths ? args.lengths[s] : scratch.lengths[s], denominator);
}
#endif

// Fills counts, lengths and sequence_of; reads mask and cu_seqlens alone.
template <class T>
[[nodiscard]] int launch_count_sequences(const PolicyLossArgs<T>& args, const PolicyLossScratch& scratch, void* stream);

// The rest, after launch_count_sequences.
template <class T>
[[nodiscard]] int launch_policy_loss(const PolicyLossArgs<T>& args, const LossSpec& spec,
                                     const PolicyLossScratch& scratch, const PolicyLossDeviceResult<T>& result,
                                     void* stream);

struct SequenceRange {
  int64_t first, last;
};

// After launch_count_sequences: the gradients alone, as launch_policy_loss makes them, of the tokens that `tokens`
// lists. Where the spec is about sequences, they are tokens of `sequences`, whose log-probs are all known; the
// sequences are summed if sums_sequences, else have been.
template <class T>
[[nodiscard]] int launch_loss_gradient(const PolicyLossArgs<T>& args, const LossSpec& spec,
                                       const PolicyLossScratch& scratch, SequenceRange sequences, bool sums_sequences,
                                       const int64_t* tokens, int64_t count, T* grad_logprobs, T* grad_entropy,
                                       void* stream);

}  // namespace kc
