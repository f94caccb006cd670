// The policy loss from logits on CUDA, and its gradient in the same sweep.
//
// On sm_90 and newer a row is read from memory once and its gradient written once: a cluster of blocks holds the row in
// shared memory, forms the loss of its token in registers and turns the row into the gradient (grpo_loss.cu says how).
// It needs a loss in which each token depends on that token alone (`splits_sequences`), and rows that are aligned to 16
// bytes and neither too short nor too long. Other calls use token_logprobs, policy_loss and token_logprobs_grad, which
// move 6 bytes for each element of bfloat16 instead of 4. Includes no torch; results are cudaError_t.
#pragma once

#include "ops/policy_loss.cuh"
#include "ops/token_logprobs.h"

namespace kc {

// The destination of gradients. O is the dtype of the logits, or a narrower one for logits of float.
template <class O>
struct GradientRows {
  O* data = nullptr;  // [rows, vocab], d loss / d logits; a row may lie in the bytes of its logits
  RowPlaces places;   // in elements of O
  // d loss / d log-prob and d loss / d entropy, [tokens] each; may be null.
  Accumulator<O>* by_logprobs = nullptr;
  Accumulator<O>* by_entropy = nullptr;
};

// Whether launch_fused_loss_gradient supports this call on the current device; it never supports double.
template <class T, class O>
[[nodiscard]] bool can_fuse_loss_gradient(const LogitRows<T>& rows, int64_t count, const LossSpec& spec,
                                          const GradientRows<O>& gradients);

// After launch_count_sequences: computes log-probs, entropies, the other fields of `stats`, and the gradients. If
// result.loss is given, it also computes the loss and the metrics of these rows; result's gradients are not written.
// args.logprobs and args.entropy are not read. follows_count: launch_count_sequences was the last launch on the stream;
// this kernel then begins to read logits before that one has ended.
template <class T, class O>
[[nodiscard]] int launch_fused_loss_gradient(const LogitRows<T>& rows, int64_t count,
                                             const TokenStats<Accumulator<T>>& stats,
                                             const PolicyLossArgs<Accumulator<T>>& args, const LossSpec& spec,
                                             const PolicyLossScratch& scratch, const GradientRows<O>& gradients,
                                             const PolicyLossDeviceResult<Accumulator<T>>& result, bool follows_count,
                                             void* stream);

// Multiplies rows of `vocab` elements by one number on the device; if that is 1, it reads and writes nothing.
template <class T>
[[nodiscard]] int launch_scale_gradient(T* gradient, int64_t count, int64_t vocab, const RowPlaces& places,
                                        const Accumulator<T>* factor, void* stream);

}  // namespace kc
