// The steps around the matrix products of a language-model head on CUDA: gathering and scattering rows, finishing
// logits, turning logits into gradients, and leaving out rows without gradient. Includes no torch; streams are
// cudaStream_t, results are cudaError_t.
//
// T is the dtype of the head, L of the logits in the workspace (T, or float), A = Accumulator<T>.
#pragma once

#include <cstdint>

#include "ops/token_logprobs.h"

namespace kc {

// tokens[i] = first + i.
[[nodiscard]] int launch_count_up(int64_t* tokens, int64_t first, int64_t count, void* stream);

// to[i] = from[tokens[i]], or a row of zeros if the token is masked (mask may be null).
template <class T>
[[nodiscard]] int launch_gather_rows(const T* from, int64_t width, const int64_t* tokens, const bool* mask,
                                     int64_t count, T* to, void* stream);
// to[tokens[i]] = from[i].
template <class T>
[[nodiscard]] int launch_scatter_rows(const T* from, int64_t width, const int64_t* tokens, int64_t count, T* to,
                                      void* stream);

// x = softcap tanh((x + logit_scale bias) / softcap), in place; bias may be null, softcap 0 is none.
template <class T, class L>
[[nodiscard]] int launch_finish_logits(L* logits, int64_t count, int64_t vocab, int64_t stride, const T* bias,
                                       Accumulator<T> logit_scale, Accumulator<T> softcap, void* stream);

// d loss / d (x before the softcap) of each row. Rows begin at multiples of 16 bytes; row i is written to row slots[i]
// of `gradients`, nowhere if that is -1, and to row i without slots. A row may be in the bytes of its own logits, or of
// logits whose slot is -1. Both gradients by token may be null, and are multiplied by `scale` (one number on the
// device; null: 1).
template <class L, class O>
[[nodiscard]] int launch_head_gradient(const LogitRows<L>& rows, int64_t count, const TokenStats<Accumulator<L>>& stats,
                                       const Accumulator<L>* grad_logprobs, const Accumulator<L>* grad_entropy,
                                       const Accumulator<L>* scale, Accumulator<L> softcap, const int32_t* slots,
                                       O* gradients, int64_t gradient_stride, void* stream);

// The rows that have a gradient, moved to the front. A row before the `active`-th stays in place; one after it is moved
// to a row before it that has no gradient. So no row overwrites another one with a gradient, and all rows can move at
// the same time.
struct RowSelection {
  int32_t* slots;    // [count]: the new place of each row, -1 for one without gradient
  int64_t* order;    // [active]: the token in each slot
  int32_t* holes;    // [moved]: slots that were free
  int32_t* movers;   // [moved]: the rows that were moved there
  int64_t* numbers;  // [2]: active, moved

  static int64_t bytes(int64_t count) { return 16 + 20 * ((count + 1) / 2 * 2); }
  static RowSelection in(void* memory, int64_t count) {
    const int64_t even = (count + 1) / 2 * 2;
    RowSelection selection;
    selection.numbers = static_cast<int64_t*>(memory);
    selection.order = selection.numbers + 2;
    selection.slots = reinterpret_cast<int32_t*>(selection.order + even);
    selection.holes = selection.slots + even;
    selection.movers = selection.holes + even;
    return selection;
  }
};

template <class A>
[[nodiscard]] int launch_select_rows(const int64_t* tokens, const bool* mask, const A* grad_logprobs,
                                     const A* grad_entropy, int64_t count, const RowSelection& selection, void* stream);
// Moves rows that already hold gradients; `moved` is the number of the selection, or an upper limit of it.
template <class O>
[[nodiscard]] int launch_move_rows(O* gradients, int64_t vocab, int64_t stride, const RowSelection& selection,
                                   int64_t moved, void* stream);

// sum[j] += factor * sum over rows of gradients[., j]; if device_factor is not null, this number on the device replaces
// factor.
template <class O>
[[nodiscard]] int launch_add_columns(const O* gradients, int64_t count, int64_t vocab, int64_t stride,
                                     Accumulator<O> factor, const Accumulator<O>* device_factor, Accumulator<O>* sum,
                                     void* stream);

// out[i] = factor values[i], in one sweep; factor: one number on the device. V is T, or float.
template <class V, class T>
[[nodiscard]] int launch_scale(const V* values, int64_t count, const Accumulator<T>* factor, T* out, void* stream);

// Computes four numbers for gradients in float16: the power of two that scales the largest of these tokens' gradients
// to about 1, logit_scale divided by it, 0 and 1.
[[nodiscard]] int launch_gradient_scale(const int64_t* tokens, const float* grad_logprobs, const float* grad_entropy,
                                        int64_t count, float logit_scale, float* numbers, void* stream);

}  // namespace kc
