// The policy loss from logits on CUDA, and its gradient in the same sweep.
//
// On sm_90 and newer a row is read from memory once and its gradient written once: a cluster of blocks holds the row in
// shared memory, forms the loss of its token in registers and turns the row into the gradient (grpo_loss.cu says how).
// It needs a loss whose token follows from that token alone (`splits_sequences`), and rows that are aligned to 16 bytes
// and neither too short nor too long. All else goes through token_logprobs, policy_loss and token_logprobs_grad: 6
// bytes an element of bfloat16 instead of 4. Knows no torch; results are cudaError_t.
#pragma once

#include "ops/policy_loss.cuh"
#include "ops/token_logprobs.h"

namespace kc {

// Where gradients go. O is the dtype of the logits, or a narrower one for logits of float.
template <class O>
struct GradientRows {
  O* data = nullptr;  // [rows, vocab], d loss / d logits; a row may lie in the bytes of its logits
  RowPlaces places;   // in elements of O
  // d loss / d log-prob and d loss / d entropy, [tokens] each; may be null.
  Accumulator<O>* by_logprobs = nullptr;
  Accumulator<O>* by_entropy = nullptr;
};

// Whether launch_fused_loss_gradient can serve this call on the current device; double never.
template <class T, class O>
[[nodiscard]] bool can_fuse_loss_gradient(const LogitRows<T>& rows, int64_t count, const LossSpec& spec,
                                          const GradientRows<O>& gradients);

// After launch_count_sequences: log-probs, entropies and what else `stats` holds, and the gradients. Where result.loss
// is given, also the loss and the metrics, of these rows alone; result's gradients are not written. args.logprobs and
// args.entropy are not read. follows_count says that launch_count_sequences was the last launch on the stream: then
// this kernel begins to read logits before that one has ended.
template <class T, class O>
[[nodiscard]] int launch_fused_loss_gradient(const LogitRows<T>& rows, int64_t count,
                                             const TokenStats<Accumulator<T>>& stats,
                                             const PolicyLossArgs<Accumulator<T>>& args, const LossSpec& spec,
                                             const PolicyLossScratch& scratch, const GradientRows<O>& gradients,
                                             const PolicyLossDeviceResult<Accumulator<T>>& result, bool follows_count,
                                             void* stream);

// Rows of `vocab` elements times one number on the device; reads and writes nothing where that is 1.
template <class T>
[[nodiscard]] int launch_scale_gradient(T* gradient, int64_t count, int64_t vocab, const RowPlaces& places,
                                        const Accumulator<T>* factor, void* stream);

}  // namespace kc
