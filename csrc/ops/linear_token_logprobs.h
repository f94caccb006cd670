// The steps between the head's matrix product and a row of logits, forward and backward, in place:
//   x = softcap tanh(logit_scale (product + bias) / softcap); without a softcap x = logit_scale (product + bias).
// Knows no torch.
#pragma once

#include <cstdint>

namespace kc {

template <class A>
struct HeadScaling {
  const A* bias = nullptr;  // [vocab] or null
  double logit_scale = 1.0;
  double softcap = 0.0;  // 0 is none

  bool is_identity() const { return !bias && logit_scale == 1.0 && softcap == 0.0; }
};

// One row, product -> logits. A is float or double.
template <class A>
void scale_logits_row(const HeadScaling<A>& scaling, A* row, int64_t vocab);

// One row, d loss / d logits -> d loss / d product. `logits` are read only with a softcap and may be null without one.
template <class A>
void scale_gradient_row(const HeadScaling<A>& scaling, const A* logits, A* gradient, int64_t vocab);

}  // namespace kc
