// The log-prob of one token of each row of logits, the entropy of the row, and the gradient of both.
//
// With z = x / temperature, y the token, m the largest of the other logits:
//   sum      = sum over j != y of exp((x_j - m) / temperature)
//   logprob  = -softplus(log sum - (x_y - m) / temperature)
//   entropy  = -p log p + q (H' - log q),  p = exp(logprob), q = 1 - p, H' the entropy of the others among themselves
// The token is left out of the sum: the usual z_y - logsumexp(z), and with it 1 - p and the token's gradient, rounds to
// 0 from a margin of about 17 nats on in float32. Every term of the entropy is at least 0, so there is no cancellation.
// The bits of a row depend on that row alone: not on the number of rows, its position, the threads or whether there is
// a gradient. Includes no torch.
#pragma once

#include <cstdint>

#include "common/half.h"
#include "common/host_device.h"

namespace kc {

// The offsets of rows, in elements from the first one. Rows are `stride` apart. With `inner` above 0 there are groups
// of `inner` rows, which are `outer_stride` apart, as in [sequences, length, vocab] cut out of a longer tensor.
struct RowPlaces {
  int64_t stride = 0, inner = 0, outer_stride = 0;

  KC_HOST_DEVICE int64_t of(int64_t row) const {
    return inner > 0 ? row / inner * outer_stride + row % inner * stride : row * stride;
  }
};

// T is float, double, BFloat16 or Float16. Row i of the logits belongs to token `tokens[i]` (without `tokens`: to token
// i); all other tensors are indexed by token.
template <class T>
struct LogitRows {
  const T* logits = nullptr;  // [rows, vocab], the elements of a row are adjacent
  RowPlaces places;
  int64_t vocab = 0;
  const int64_t* tokens = nullptr;  // [rows] or null
  const int64_t* ids = nullptr;     // [tokens], in [0, vocab) where unmasked
  // More than 0. [tokens], or [1]; null: temperature_value, a number on the host.
  const Accumulator<T>* temperature = nullptr;
  Accumulator<T> temperature_value = 1;
  bool temperature_per_token = false;
  const bool* mask = nullptr;  // [tokens] or null; a masked row is not read and gives 0

  KC_HOST_DEVICE Accumulator<T> temperature_of(int64_t token) const {
    return temperature ? temperature[temperature_per_token ? token : 0] : temperature_value;
  }
};

template <class A>
struct TokenStats {
  A* logprobs = nullptr;  // [tokens]
  A* entropy = nullptr;   // [tokens]
  A* max = nullptr;       // [tokens]: m
  A* sum = nullptr;       // [tokens]
};

// Rows [begin, end). A NaN or +inf makes the outputs of its own row NaN.
template <class T>
void token_logprobs_rows(const LogitRows<T>& rows, const TokenStats<Accumulator<T>>& stats, int64_t begin, int64_t end);

// grad_logits[i, j] = d(sum of grad_logprobs logprobs + grad_entropy entropy) / d logits[i, j]; either gradient may be
// null. It may overwrite the logits. A row without gradient is filled with 0 and not read.
template <class T>
void token_logprobs_grad_rows(const LogitRows<T>& rows, const TokenStats<Accumulator<T>>& stats,
                              const Accumulator<T>* grad_logprobs, const Accumulator<T>* grad_entropy, T* grad_logits,
                              const RowPlaces& grad_places, int64_t begin, int64_t end);

// The instruction set that is used for rows on this machine: "avx512", "avx2" or "generic". `limit_row_isa` forbids
// wider ones (for tests).
const char* row_isa();
void limit_row_isa(const char* widest);

}  // namespace kc
