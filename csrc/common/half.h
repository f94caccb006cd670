// The 16-bit floats as plain bits, so that files that do not include torch can read and write them.
#pragma once

#include <cstdint>
#include <cstring>

namespace kc {

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float widen(float value) {
  return value;
}
inline double widen(double value) {
  return value;
}
inline float widen(BFloat16 value) {
  return bits_to_float(static_cast<uint32_t>(value.bits) << 16);
}
// After the shift the exponent is 112 too small; a multiplication corrects it for normal and subnormal numbers.
inline float widen(Float16 value) {
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7fffu) << 13;
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const bool special = magnitude >= 0x0f800000u;  // infinity or NaN
  const uint32_t bits = special ? (magnitude | 0x7f800000u) : float_to_bits(bits_to_float(magnitude) * 0x1p112f);
  return bits_to_float(bits | sign);
}

// Round to nearest, ties to even.
inline void narrow(float value, float& out) {
  out = value;
}
inline void narrow(double value, double& out) {
  out = value;
}
inline void narrow(float value, BFloat16& out) {
  const uint32_t bits = float_to_bits(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  out.bits = static_cast<uint16_t>(is_nan ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline void narrow(float value, Float16& out) {
  const uint32_t bits = float_to_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    out.bits = static_cast<uint16_t>(sign | 0x7e00u);
  } else if (magnitude >= 0x477ff000u) {  // rounds to 65536 or more
    out.bits = static_cast<uint16_t>(sign | 0x7c00u);
  } else if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
    out.bits = static_cast<uint16_t>(sign | (float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000u));
  } else {
    out.bits = static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
  }
}

// The type in which the numbers of a row are computed and returned.
template <class T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

}  // namespace kc
