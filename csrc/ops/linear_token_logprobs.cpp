#include "ops/linear_token_logprobs.h"

#include <cmath>

namespace kc {

template <class A>
void scale_logits_row(const HeadScaling<A>& scaling, A* row, int64_t vocab) {
  const A scale = static_cast<A>(scaling.logit_scale), cap = static_cast<A>(scaling.softcap);
  if (scaling.bias)
    for (int64_t j = 0; j < vocab; ++j) row[j] += scaling.bias[j];
  if (scaling.logit_scale != 1.0)
    for (int64_t j = 0; j < vocab; ++j) row[j] *= scale;
  if (scaling.softcap != 0.0)
    for (int64_t j = 0; j < vocab; ++j) row[j] = cap * std::tanh(row[j] / cap);
}

template <class A>
void scale_gradient_row(const HeadScaling<A>& scaling, const A* logits, A* gradient, int64_t vocab) {
  const A scale = static_cast<A>(scaling.logit_scale), cap = static_cast<A>(scaling.softcap);
  if (scaling.softcap != 0.0)
    for (int64_t j = 0; j < vocab; ++j) {
      const A t = logits[j] / cap;
      gradient[j] *= (A(1) - t) * (A(1) + t);
    }
  if (scaling.logit_scale != 1.0)
    for (int64_t j = 0; j < vocab; ++j) gradient[j] *= scale;
}

#define KC_INSTANTIATE(A)                                                \
  template void scale_logits_row<A>(const HeadScaling<A>&, A*, int64_t); \
  template void scale_gradient_row<A>(const HeadScaling<A>&, const A*, A*, int64_t);
KC_INSTANTIATE(float)
KC_INSTANTIATE(double)
#undef KC_INSTANTIATE

}  // namespace kc
