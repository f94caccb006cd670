// Code that the CUDA kernels over rows of logits share: number formats, exponentials, and the running sums over the
// other tokens of a row (ops/token_logprobs.h has the formulas).
//
// Sums are kept in powers of two: with c = log2(e) / temperature, a term is 2^u, u = (x - m) c. The difference is
// computed first, so that u is exactly 0 for the largest logit. With x c - m c it would be the rounding error of m c,
// which can be larger than a small entropy.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "common/half.h"
#include "common/warp.cuh"

namespace kc {

// Replaces a logit of probability 0. It is not -inf, because 2^u u must be 0 for it, and 0 * -inf is NaN.
template <class T>
struct Floor {
  static constexpr float value = -0x1p99f;
};
template <>
struct Floor<Float16> {
  static constexpr float value = -65504.0f;
};

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ double exp2_fast(double x) {
  return exp2(x);
}

__device__ __forceinline__ float load_wide(const float* x) {
  return *x;
}
__device__ __forceinline__ double load_wide(const double* x) {
  return *x;
}
__device__ __forceinline__ float load_wide(const BFloat16* x) {
  return __uint_as_float(static_cast<uint32_t>(x->bits) << 16);
}
__device__ __forceinline__ float load_wide(const Float16* x) {
  return __half2float(__ushort_as_half(x->bits));
}
__device__ __forceinline__ void store_narrow(float* out, float value) {
  *out = value;
}
__device__ __forceinline__ void store_narrow(double* out, double value) {
  *out = value;
}
__device__ __forceinline__ void store_narrow(BFloat16* out, float value) {
  out->bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
__device__ __forceinline__ void store_narrow(Float16* out, float value) {
  out->bits = __half_as_ushort(__float2half_rn(value));
}

// 16 bytes of a row, unpacked and packed.
template <class T>
struct Pack {
  static constexpr int kCount = 16 / static_cast<int>(sizeof(T));
  using A = Accumulator<T>;
  __device__ __forceinline__ static void unpack(uint4 raw, A (&v)[kCount]) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    if constexpr (sizeof(T) == 8) {
      for (int i = 0; i < 2; ++i)
        v[i] = __hiloint2double(static_cast<int>(words[2 * i + 1]), static_cast<int>(words[2 * i]));
    } else if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = __uint_as_float(words[i]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack_pair(T{}, words[i]);
        v[2 * i] = pair.x;
        v[2 * i + 1] = pair.y;
      }
    }
  }
  __device__ __forceinline__ static uint4 pack(const A (&v)[kCount]) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 8) {
        const double d = v[i / 2];
        words[i] = static_cast<uint32_t>(i % 2 ? __double2hiint(d) : __double2loint(d));
      } else if constexpr (sizeof(T) == 4) {
        words[i] = __float_as_uint(v[i]);
      } else {
        words[i] = pack_pair(T{}, v[2 * i], v[2 * i + 1]);
      }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }

  // Raises every element to at least the floor; NaN stays NaN.
  __device__ __forceinline__ static uint4 floored(uint4 raw) {
    if constexpr (sizeof(T) == 2) {
      return make_uint4(floor_pair(T{}, raw.x), floor_pair(T{}, raw.y), floor_pair(T{}, raw.z), floor_pair(T{}, raw.w));
    } else {
      A v[kCount];
      unpack(raw, v);
#pragma unroll
      for (A& x : v) x = x < A(Floor<T>::value) ? A(Floor<T>::value) : x;
      return pack(v);
    }
  }
  __device__ __forceinline__ static uint4 all_floor() {
    A v[kCount];
#pragma unroll
    for (A& x : v) x = A(Floor<T>::value);
    return pack(v);
  }

  // The larger element of two packs at each position; a number is preferred to NaN.
  __device__ __forceinline__ static uint4 larger(uint4 a, uint4 b) {
    if constexpr (sizeof(T) == 2) {
      return make_uint4(larger_pair(T{}, a.x, b.x), larger_pair(T{}, a.y, b.y), larger_pair(T{}, a.z, b.z),
                        larger_pair(T{}, a.w, b.w));
    } else {
      A va[kCount], vb[kCount];
      unpack(a, va);
      unpack(b, vb);
#pragma unroll
      for (int i = 0; i < kCount; ++i) va[i] = fmax(va[i], vb[i]);
      return pack(va);
    }
  }
  __device__ __forceinline__ static A largest(uint4 raw) {
    A v[kCount];
    unpack(raw, v);
    A top = v[0];
#pragma unroll
    for (int i = 1; i < kCount; ++i) top = fmax(top, v[i]);
    return top;
  }

  __device__ __forceinline__ static A element(uint4 raw, int place) {
    A v[kCount];
    unpack(raw, v);
    A found = v[0];
#pragma unroll
    for (int i = 1; i < kCount; ++i) found = i == place ? v[i] : found;
    return found;
  }
  __device__ __forceinline__ static uint4 replaced(uint4 raw, int place, A value) {
    A v[kCount];
    unpack(raw, v);
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = i == place ? value : v[i];
    return pack(v);  // exact for the elements that stay
  }

 private:
  __device__ __forceinline__ static uint32_t floor_pair(BFloat16, uint32_t word) {
    uint32_t out;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(word), "r"(0xf100f100u));
    return out;
  }
  __device__ __forceinline__ static uint32_t floor_pair(Float16, uint32_t word) {
    uint32_t out;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(out) : "r"(word), "r"(0xfbfffbffu));
    return out;
  }
  __device__ __forceinline__ static uint32_t larger_pair(BFloat16, uint32_t a, uint32_t b) {
    uint32_t out;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
  }
  __device__ __forceinline__ static uint32_t larger_pair(Float16, uint32_t a, uint32_t b) {
    uint32_t out;
    asm("max.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
  }

  __device__ __forceinline__ static float2 unpack_pair(BFloat16, uint32_t word) {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
  }
  __device__ __forceinline__ static float2 unpack_pair(Float16, uint32_t word) {
    __half2 pair;
    memcpy(&pair, &word, sizeof pair);
    return __half22float2(pair);
  }
  __device__ __forceinline__ static uint32_t pack_pair(BFloat16, float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
  }
  __device__ __forceinline__ static uint32_t pack_pair(Float16, float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
  }
};

// Sums over some of the other tokens of a row, relative to the largest of them.
template <class A>
struct RowSums {
  A max;       // raw logit; the floor if there is no element yet
  A sum;       // of 2^u
  A weighted;  // of 2^u u

  // Makes `reference`, at least max, the new reference.
  __device__ __forceinline__ void raise(A reference, A c) {
    const A shift = (max - reference) * c;
    const A factor = exp2_fast(shift);
    weighted = factor > A(0) ? factor * (weighted + shift * sum) : A(0);
    sum = factor * sum;
    max = reference;
  }

  // The terms of floored packs.
  template <class T, int kPacks>
  __device__ __forceinline__ void add(const uint4 (&raw)[kPacks], A c) {
    uint4 tops = raw[0];
#pragma unroll
    for (int k = 1; k < kPacks; ++k) tops = Pack<T>::larger(tops, raw[k]);
    raise(fmax(max, Pack<T>::largest(tops)), c);
    // These terms are first summed separately, because adding hundreds of small terms one by one to a large one would
    // lose three bits. For 16-bit logits these bits do not matter, and their kernel has no time for it.
    constexpr bool kApart = sizeof(T) > 2;
    A apart = 0, apart_weighted = 0;
    A& to = kApart ? apart : sum;
    A& to_weighted = kApart ? apart_weighted : weighted;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      A x[Pack<T>::kCount];
      Pack<T>::unpack(raw[k], x);
#pragma unroll
      for (int i = 0; i < Pack<T>::kCount; ++i) {
        const A u = (x[i] - max) * c;
        const A e = exp2_fast(u);
        to += e;
        to_weighted = fma(e, u, to_weighted);
      }
    }
    if constexpr (kApart) {
      sum += apart;
      weighted += apart_weighted;
    }
  }
  __device__ __forceinline__ void add_one(A x, A c) {
    raise(fmax(max, x), c);
    const A u = (x - max) * c;
    const A e = exp2_fast(u);
    sum += e;
    weighted = fma(e, u, weighted);
  }

  __device__ __forceinline__ void merge(RowSums other, A c) {
    const A top = fmax(max, other.max);
    raise(top, c);
    other.raise(top, c);
    sum += other.sum;
    weighted += other.weighted;
  }
};

// Sums in a fixed tree, so the bits are the same in every lane and every time.
template <class A>
__device__ __forceinline__ RowSums<A> warp_merge(RowSums<A> mine, A c) {
  mine.raise(warp_max(mine.max), c);
  return {mine.max, warp_sum(mine.sum), warp_sum(mine.weighted)};
}

constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2 = 0.6931471805599453;

template <class A>
__device__ __forceinline__ A log2_scale(A temperature) {
  return static_cast<A>(kLog2E) / temperature;
}

// Functions that are computed once for each row while the kernel waits; in double they would take a microsecond
// together. The float versions keep float's relative precision of the result and the absolute precision of the
// argument.
__device__ __forceinline__ double log2_of(double x) {
  return log2(x);
}
__device__ __forceinline__ double log2_of(float x) {  // x >= 1 or NaN: the largest term of a sum is 1
  const int exponent = static_cast<int>(__float_as_uint(x) >> 23) - 127;
  return x < 3e38f
             ? exponent + static_cast<double>(log2f(x * __uint_as_float(static_cast<uint32_t>(127 - exponent) << 23)))
             : static_cast<double>(x);
}
template <class A>
__device__ __forceinline__ A exp_of(double x);  // x <= 0
template <>
__device__ __forceinline__ double exp_of<double>(double x) {
  return exp(x);
}
template <>
__device__ __forceinline__ float exp_of<float>(double x) {
  const double bounded = x < -200.0 ? -200.0 : x;  // NaN stays
  const double n = rint(bounded * kLog2E);
  return ldexpf(expf(static_cast<float>(fma(n, -kLn2, bounded))), static_cast<int>(n));
}

// The results of a row: the four numbers of ops/token_logprobs.h, and the probabilities of the token and of all others.
template <class A>
struct RowResult {
  A logprob, entropy, max, sum, p, q;
};

// The sums use log2_scale(temperature), which is rounded; for a margin of 80 nats this rounding would matter.
template <class A>
__device__ __forceinline__ RowResult<A> finish_row(RowSums<A> others, A target, A temperature, A floor) {
  if (target - target != A(0) && target > A(0)) {  // infinite: not a distribution, for any other logits
    const A none = target - target;
    return {none, none, others.max, others.sum, none, none};
  }
  if ((others.max <= floor && others.sum == others.sum) || others.sum == A(0)) {  // no other token has any probability
    const A certain = target - target;  // NaN where the target is not finite: no distribution
    return {certain, certain, A(0), A(0), A(1), A(0)};
  }
  const double log2_sum = log2_of(others.sum);
  const double c = temperature == A(1) ? kLog2E : kLog2E / static_cast<double>(temperature);
  const double ahead = (static_cast<double>(target) - static_cast<double>(others.max)) * c;
  const double margin = (ahead - log2_sum) * kLn2;
  const A t = exp_of<A>(-fabs(margin));
  const double rest = static_cast<double>(log1p(t));
  const double logprob = -((margin < 0 ? -margin : 0.0) + rest), log_others = -((margin > 0 ? margin : 0.0) + rest);
  const A likely = A(1) / (A(1) + t), unlikely = t / (A(1) + t);
  const A p = margin > 0 ? likely : unlikely, q = margin > 0 ? unlikely : likely;
  const double among = (log2_sum - static_cast<double>(others.weighted / others.sum)) * kLn2;
  const double entropy = (p == A(0) ? 0.0 : static_cast<double>(p) * -logprob) +
                         (q == A(0) ? 0.0 : static_cast<double>(q) * (among - log_others));
  return {static_cast<A>(logprob), static_cast<A>(entropy), others.max, others.sum, p, q};
}

// The gradient of another token's logit is 2^(u) scale (constant + slope u); of the target's, own.
template <class A>
struct RowGradient {
  A c, max, scale, constant, slope, own;

  __device__ __forceinline__ A of(A x, A floor) const {
    const A u = ((x < floor ? floor : x) - max) * c;
    const A e = exp2_fast(u);
    return e * scale * fma(slope, u, constant);
  }
};

template <class A>
__device__ __forceinline__ RowGradient<A> row_gradient(const RowResult<A>& row, A g, A h, A temperature) {
  const A density = row.sum == A(0) ? A(0) : row.q / row.sum;
  const A inverse = A(1) / temperature;
  RowGradient<A> out;
  out.c = log2_scale(temperature);
  out.max = row.max;
  out.scale = density * inverse;
  // The log of the density is about -15, and its sum with the entropy may be near 0, so float would keep few digits.
  const double log_density = static_cast<double>(log(row.q)) - log2_of(row.sum) * kLn2;
  const double bonus = h == A(0) || density == A(0) ? 0.0 : static_cast<double>(h) * (row.entropy + log_density);
  out.constant = static_cast<A>(-static_cast<double>(g) - bonus);
  out.slope = -h * static_cast<A>(kLn2);
  out.own = (g * row.q - (h == A(0) || row.p == A(0) ? A(0) : h * row.p * (row.logprob + row.entropy))) * inverse;
  return out;
}

}  // namespace kc
