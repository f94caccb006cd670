// token_logprobs on CUDA: one sweep forward, one sweep backward, for any vocabulary, stride and alignment.
// The contract of token_logprobs.h holds here, too, except that ids and temperatures are not checked, because that
// would mean waiting for the device. A row whose id is outside [0, vocab) gives NaN. Includes no torch; the stream is a
// cudaStream_t, the result a cudaError_t.
#pragma once

#include "ops/token_logprobs.h"

namespace kc {

template <class T>
[[nodiscard]] int launch_token_logprobs(const LogitRows<T>& rows, int64_t count,
                                        const TokenStats<Accumulator<T>>& stats, void* stream);

// Each gradient may be null and is multiplied by `scale` (one number on the device; null: 1). grad_logits may be the
// logits themselves.
template <class T>
[[nodiscard]] int launch_token_logprobs_grad(const LogitRows<T>& rows, int64_t count,
                                             const TokenStats<Accumulator<T>>& stats,
                                             const Accumulator<T>* grad_logprobs, const Accumulator<T>* grad_entropy,
                                             const Accumulator<T>* scale, T* grad_logits, const RowPlaces& grad_places,
                                             void* stream);

}  // namespace kc
