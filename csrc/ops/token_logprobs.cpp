#include "ops/token_logprobs.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define KC_MANY_TARGETS 1
#include <immintrin.h>
#endif

// Functions with vectors wider than the target's registers are always inlined, so their calling convention does not
// matter.
#pragma GCC diagnostic ignored "-Wpsabi"
#define KC_INLINE static inline __attribute__((always_inline))

namespace kc {
namespace {

// The running sums over the other tokens of a row, relative to the largest logit so far.
struct RowState {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;       // of e^t, t = (x - max) / temperature
  double weighted = 0;  // of e^t t

  // If all logits so far are -inf, any finite number is correct, because e^t is 0.
  double reference() const { return max == -std::numeric_limits<double>::infinity() ? 0.0 : max; }

  void raise(double top, double inverse_temperature) {
    if (!(top > max)) return;
    if (max != -std::numeric_limits<double>::infinity()) {
      const double shift = (max - top) * inverse_temperature;
      const double factor = std::exp(shift);
      weighted = factor > 0 ? factor * (weighted + shift * sum) : 0.0;
      sum *= factor;
    }
    max = top;
  }
};

// The gradient of another token's logit is scale e^t (constant + slope t).
struct RowGradient {
  double max, inverse_temperature, scale, constant, slope;
};

// There is no vector code for double. It is used by gradcheck and for float64 inputs, not in training.
void accumulate(const double* x, int64_t count, double inverse_temperature, RowState& state) {
  double top = state.max;
  for (int64_t i = 0; i < count; ++i) top = x[i] > top ? x[i] : top;
  state.raise(top, inverse_temperature);
  const double max = state.reference();
  for (int64_t i = 0; i < count; ++i) {
    const double t = (x[i] - max) * inverse_temperature;
    const double e = std::exp(t);
    state.sum += e;
    if (e != 0) state.weighted += e * t;
  }
}

void write_gradient(const double* x, int64_t count, const RowGradient& row, double* out) {
  for (int64_t i = 0; i < count; ++i) {
    const double t = (x[i] - row.max) * row.inverse_temperature;
    const double p = row.scale * std::exp(t);
    out[i] = p == 0 ? 0.0 : p * (row.constant + row.slope * t);  // t may be -inf
  }
}

#define KC_LANES 4
namespace generic {
#include "ops/token_logprobs_simd.inc"
}
#undef KC_LANES

#ifdef KC_MANY_TARGETS
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define KC_LANES 8
namespace avx2 {
#include "ops/token_logprobs_simd.inc"
}
#undef KC_LANES
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
#define KC_LANES 16
namespace avx512 {
#include "ops/token_logprobs_simd.inc"
}
#undef KC_LANES
#pragma GCC pop_options
#endif

enum class Isa { generic, avx2, avx512 };

Isa widest_isa() {
#ifdef KC_MANY_TARGETS
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return Isa::avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#endif
  return Isa::generic;
}

Isa& chosen_isa() {
  static Isa isa = widest_isa();
  return isa;
}

template <class T>
void accumulate(const T* x, int64_t count, double inverse_temperature, RowState& state) {
  const float inverse = static_cast<float>(inverse_temperature);
#ifdef KC_MANY_TARGETS
  if (chosen_isa() == Isa::avx512) return avx512::accumulate(x, count, inverse, state);
  if (chosen_isa() == Isa::avx2) return avx2::accumulate(x, count, inverse, state);
#endif
  generic::accumulate(x, count, inverse, state);
}

template <class T>
void write_gradient(const T* x, int64_t count, const RowGradient& row, T* out) {
#ifdef KC_MANY_TARGETS
  if (chosen_isa() == Isa::avx512) return avx512::write_gradient(x, count, row, out);
  if (chosen_isa() == Isa::avx2) return avx2::write_gradient(x, count, row, out);
#endif
  generic::write_gradient(x, count, row, out);
}

double softplus(double x) {
  return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}

struct LogprobAndEntropy {
  double logprob, entropy;
};

LogprobAndEntropy finish_row(double target, const RowState& others, double inverse_temperature) {
  // If no other token has any probability, the token has probability 1. A row of -inf, or one with +inf, is not a
  // distribution.
  if (others.sum == 0 || target == std::numeric_limits<double>::infinity()) {
    const double certain = target - target;  // 0, or NaN where the target is not finite
    return {certain, certain};
  }
  const double log_sum = std::log(others.sum);
  const double margin = (target - others.max) * inverse_temperature - log_sum;
  const double logprob = -softplus(-margin), log_rest = -softplus(margin);
  const double p = std::exp(logprob), q = std::exp(log_rest);
  const double entropy_of_others = log_sum - others.weighted / others.sum;
  const double own = p == 0 ? 0.0 : -p * logprob;
  const double rest = q == 0 ? 0.0 : q * (entropy_of_others - log_rest);
  return {logprob, own + rest};
}

}  // namespace

template <class T>
void token_logprobs_rows(const LogitRows<T>& rows, const TokenStats<Accumulator<T>>& stats, int64_t begin,
                         int64_t end) {
  using A = Accumulator<T>;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t token = rows.tokens ? rows.tokens[i] : i;
    if (rows.mask && !rows.mask[token]) {
      stats.logprobs[token] = stats.entropy[token] = stats.max[token] = stats.sum[token] = A(0);
      continue;
    }
    const T* x = rows.logits + rows.places.of(i);
    const int64_t id = rows.ids[token];
    const double inverse = 1.0 / static_cast<double>(rows.temperature_of(token));
    RowState others;
    accumulate(x, id, inverse, others);
    accumulate(x + id + 1, rows.vocab - id - 1, inverse, others);
    const LogprobAndEntropy out = finish_row(static_cast<double>(widen(x[id])), others, inverse);
    stats.logprobs[token] = static_cast<A>(out.logprob);
    stats.entropy[token] = static_cast<A>(out.entropy);
    stats.max[token] = static_cast<A>(others.reference());
    stats.sum[token] = static_cast<A>(others.sum);
  }
}

template <class T>
void token_logprobs_grad_rows(const LogitRows<T>& rows, const TokenStats<Accumulator<T>>& stats,
                              const Accumulator<T>* grad_logprobs, const Accumulator<T>* grad_entropy, T* grad_logits,
                              const RowPlaces& grad_places, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t token = rows.tokens ? rows.tokens[i] : i;
    const bool counts = !rows.mask || rows.mask[token];
    const double g = grad_logprobs && counts ? static_cast<double>(grad_logprobs[token]) : 0.0;
    const double h = grad_entropy && counts ? static_cast<double>(grad_entropy[token]) : 0.0;
    T* out = grad_logits + grad_places.of(i);
    if (g == 0 && h == 0) {
      std::memset(static_cast<void*>(out), 0, sizeof(T) * static_cast<size_t>(rows.vocab));
      continue;
    }
    const T* x = rows.logits + rows.places.of(i);
    const int64_t id = rows.ids[token];
    const double inverse = 1.0 / static_cast<double>(rows.temperature_of(token));
    const double logprob = static_cast<double>(stats.logprobs[token]);
    const double entropy = static_cast<double>(stats.entropy[token]);
    const double sum = static_cast<double>(stats.sum[token]);
    const double p = std::exp(logprob), q = -std::expm1(logprob);
    // Another token has p_j = q e^t / sum and log p_j = t + log(q / sum), so
    // dz_j = p_j (-g - h (entropy + log p_j)); x = z temperature.
    const double density = sum == 0 ? 0.0 : q / sum;
    RowGradient row;
    row.max = static_cast<double>(stats.max[token]);
    row.inverse_temperature = inverse;
    row.scale = density * inverse;
    row.constant = -g - (h == 0 || density == 0 ? 0.0 : h * (entropy + std::log(density)));
    row.slope = -h;
    const double own = g * q - (h == 0 || p == 0 ? 0.0 : h * p * (logprob + entropy));
    write_gradient(x, id, row, out);
    write_gradient(x + id + 1, rows.vocab - id - 1, row, out + id + 1);
    narrow(static_cast<Accumulator<T>>(own * inverse), out[id]);
  }
}

const char* row_isa() {
  constexpr const char* kNames[] = {"generic", "avx2", "avx512"};
  return kNames[static_cast<int>(chosen_isa())];
}

void limit_row_isa(const char* widest) {
  const std::string_view name = widest;
  const Isa limit = name == "generic" ? Isa::generic : (name == "avx2" ? Isa::avx2 : Isa::avx512);
  const Isa available = widest_isa();
  chosen_isa() = limit < available ? limit : available;
}

#define KC_INSTANTIATE(T)                                                                                         \
  template void token_logprobs_rows<T>(const LogitRows<T>&, const TokenStats<Accumulator<T>>&, int64_t, int64_t); \
  template void token_logprobs_grad_rows<T>(const LogitRows<T>&, const TokenStats<Accumulator<T>>&,               \
                                            const Accumulator<T>*, const Accumulator<T>*, T*, const RowPlaces&,   \
                                            int64_t, int64_t);
KC_INSTANTIATE(float)
KC_INSTANTIATE(double)
KC_INSTANTIATE(BFloat16)
KC_INSTANTIATE(Float16)
#undef KC_INSTANTIATE

}  // namespace kc
