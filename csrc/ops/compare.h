// Compares every element of an output with the expected one, in one pass.
//
// Real numbers are compared in double, which holds every input exactly; integers and bools exactly, without a
// tolerance; complex numbers by the modulus of the difference. An element matches if both are NaN, both are the same
// infinity, or both are finite and error <= atol + rtol |expected|. If only one of them is finite, if they are
// different infinities, or if one is NaN, the error is infinite, so that the largest error is never small for such an
// output.
#pragma once

#include <math.h>

#include <cstdint>

#include "common/half.h"
#include "common/host_device.h"

namespace kc {

enum class ElementType : int32_t {
  float64,
  float32,
  bfloat16,
  float16,
  complex128,
  complex64,
  int64,
  int32,
  int16,
  int8,
  uint8,
  boolean,
};

// The kinds of elements.
#define KC_ELEMENT_KINDS(X) X(real) X(integer) X(complex)
#define KC_ENUMERATOR(name) name,
enum class ElementKind : int32_t { KC_ELEMENT_KINDS(KC_ENUMERATOR) };
#undef KC_ENUMERATOR

struct Complex {
  double re, im;
};
struct Complex64 {
  float re, im;
};

KC_HOST_DEVICE ElementKind kind_of(ElementType type) {
  if (type <= ElementType::float16) return ElementKind::real;
  return type <= ElementType::complex64 ? ElementKind::complex : ElementKind::integer;
}

// Upper limit for the dimensions. Dimensions that can be merged in both tensors count as one.
constexpr int kMaxDims = 16;

struct CompareArgs {
  const void* output;
  const void* expected;
  ElementType output_type, expected_type;  // of one kind; integers of one type
  int64_t count;                           // elements
  int32_t dims;                            // 1 with both strides 1: both are contiguous
  int64_t sizes[kMaxDims];
  int64_t output_strides[kMaxDims], expected_strides[kMaxDims];  // in elements
  double rtol, atol;                                             // 0 for integers
  double tiny;  // the smallest normal number of the output's type (integers: 1)

  bool is_contiguous() const { return dims == 1 && output_strides[0] == 1 && expected_strides[0] == 1; }
};

constexpr int64_t kNoElement = INT64_MAX;

// The results of some of the elements.
struct CompareTally {
  double max_abs = 0, max_rel = 0;
  double squared_error = 0, squared_expected = 0;  // of finite elements, but see the infinite errors above
  int64_t mismatches = 0;
  int64_t nan_added = 0, nan_missing = 0;  // NaN only in the output; only in the expected tensor
  int64_t inf_added = 0, inf_missing = 0;  // likewise infinity; one of another sign is added
  int64_t first = kNoElement;              // flat index of the first mismatch
};

KC_HOST_DEVICE void merge(CompareTally& tally, const CompareTally& other) {
  tally.max_abs = fmax(tally.max_abs, other.max_abs);
  tally.max_rel = fmax(tally.max_rel, other.max_rel);
  tally.squared_error += other.squared_error;
  tally.squared_expected += other.squared_expected;
  tally.mismatches += other.mismatches;
  tally.nan_added += other.nan_added;
  tally.nan_missing += other.nan_missing;
  tally.inf_added += other.inf_added;
  tally.inf_missing += other.inf_missing;
  if (other.first < tally.first) tally.first = other.first;
}

KC_HOST_DEVICE double distance(double x, double y) {
  return fabs(x - y);
}
// The difference of two int64 fits into uint64. Only 0 becomes 0.
KC_HOST_DEVICE double distance(int64_t x, int64_t y) {
  const uint64_t a = static_cast<uint64_t>(x), b = static_cast<uint64_t>(y);
  return static_cast<double>(x < y ? b - a : a - b);
}
KC_HOST_DEVICE double distance(Complex x, Complex y) {
  return hypot(x.re - y.re, x.im - y.im);
}
KC_HOST_DEVICE double magnitude(double y) {
  return fabs(y);
}
KC_HOST_DEVICE double magnitude(int64_t y) {
  return distance(y, static_cast<int64_t>(0));
}
KC_HOST_DEVICE double magnitude(Complex y) {
  return hypot(y.re, y.im);
}

KC_HOST_DEVICE bool is_nan(double x) {
  return x != x;
}
KC_HOST_DEVICE bool is_nan(int64_t) {
  return false;
}
KC_HOST_DEVICE bool is_nan(Complex x) {
  return is_nan(x.re) || is_nan(x.im);
}
KC_HOST_DEVICE bool is_equal(double x, double y) {
  return x == y;
}
KC_HOST_DEVICE bool is_equal(int64_t x, int64_t y) {
  return x == y;
}
KC_HOST_DEVICE bool is_equal(Complex x, Complex y) {
  return x.re == y.re && x.im == y.im;
}

// Adds a pair to the sums. Returns whether settle() must look at it, because it does not match, is not finite, or may
// have the largest absolute or relative error so far; this should be rare. Speed matters here: with 16-bit inputs a GPU
// reads an element in the time of twenty instructions.
template <class V>
KC_HOST_DEVICE bool add_errors(V x, V y, const CompareArgs& args, CompareTally& tally) {
  const double error = distance(x, y), size = magnitude(y);
  const bool finite = error < INFINITY;
  if (finite) {
    tally.squared_error += error * error;
    tally.squared_expected += size * size;
  }
  const bool is_miss = error > args.atol + args.rtol * size, is_far = error > tally.max_abs;
  const bool is_far_for_its_size = error > tally.max_rel * size;
  return !finite | is_miss | is_far | is_far_for_its_size;
}

// Called once for every pair for which add_errors returns true; has no effect on other pairs.
template <class V>
KC_HOST_DEVICE void settle(V x, V y, int64_t index, const CompareArgs& args, CompareTally& tally) {
  const double error = distance(x, y), size = magnitude(y);
  if (error < INFINITY) {
    tally.max_abs = fmax(tally.max_abs, error);
    tally.max_rel = fmax(tally.max_rel, error / fmax(size, args.tiny));
    if (error <= args.atol + args.rtol * size) return;
  } else {
    if (size < INFINITY) tally.squared_expected += size * size;
    if (is_equal(x, y) || (is_nan(x) && is_nan(y))) return;  // the same infinity, or both NaN
    if (is_nan(x)) {
      ++tally.nan_added;
    } else if (is_nan(y)) {
      ++tally.nan_missing;
    } else if (!(magnitude(x) < INFINITY)) {
      ++tally.inf_added;
    } else if (!(size < INFINITY)) {
      ++tally.inf_missing;
    }
    tally.max_abs = tally.max_rel = tally.squared_error = INFINITY;
  }
  ++tally.mismatches;
  if (index < tally.first) tally.first = index;
}

// A comparison in doubles, in the order in which ops/compare.py reads them. Numbers of elements are exact up to 2^53.
// An element takes two: real and imaginary part, or two parts that add up to an integer.
// X(name, value before anything was compared).
// clang-format off
#define KC_COMPARISON_FIELDS(X)                                                      \
  X(kind, 0) X(elements, 0) X(mismatches, 0)                                         \
  X(nan_added, 0) X(nan_missing, 0) X(inf_added, 0) X(inf_missing, 0)                \
  X(first, -1)                                                                       \
  X(got, 0) X(got_2, 0) X(expected, 0) X(expected_2, 0)                              \
  X(max_abs_error, 0) X(max_rel_error, 0) X(squared_error, 0) X(squared_expected, 0)
// clang-format on

struct Comparison {
#define KC_MEMBER(name, value) double name = value;
  KC_COMPARISON_FIELDS(KC_MEMBER)
#undef KC_MEMBER
};
constexpr int kComparisonFields = sizeof(Comparison) / sizeof(double);

KC_HOST_DEVICE void split(double value, double& first, double& second) {
  first = value;
  second = 0;
}
KC_HOST_DEVICE void split(Complex value, double& first, double& second) {
  first = value.re;
  second = value.im;
}
KC_HOST_DEVICE void split(int64_t value, double& first, double& second) {
  const int64_t low = value & 0xffffffff;
  first = static_cast<double>(value - low);
  second = static_cast<double>(low);
}

// `load(tensor, index)`: element `index`, in row-major order, of the output (0) or of the expected tensor (1).
template <class Load>
KC_HOST_DEVICE Comparison comparison_of(const CompareTally& tally, const CompareArgs& args, const Load& load) {
  Comparison result;
  result.kind = static_cast<double>(static_cast<int32_t>(kind_of(args.output_type)));
  result.elements = static_cast<double>(args.count);
  result.mismatches = static_cast<double>(tally.mismatches);
  result.nan_added = static_cast<double>(tally.nan_added);
  result.nan_missing = static_cast<double>(tally.nan_missing);
  result.inf_added = static_cast<double>(tally.inf_added);
  result.inf_missing = static_cast<double>(tally.inf_missing);
  if (tally.first != kNoElement) {
    result.first = static_cast<double>(tally.first);
    split(load(0, tally.first), result.got, result.got_2);
    split(load(1, tally.first), result.expected, result.expected_2);
  }
  result.max_abs_error = tally.max_abs;
  result.max_rel_error = tally.max_rel;
  result.squared_error = tally.squared_error;
  result.squared_expected = tally.squared_expected;
  return result;
}

// Returns the offset of element `index`.
template <class Index>
KC_HOST_DEVICE void element_offsets(const CompareArgs& args, Index index, int64_t& output, int64_t& expected) {
  output = expected = 0;
  for (int d = args.dims - 1; d > 0; --d) {
    const Index size = static_cast<Index>(args.sizes[d]), rest = index / size;
    const int64_t at = static_cast<int64_t>(index - rest * size);
    output += at * args.output_strides[d];
    expected += at * args.expected_strides[d];
    index = rest;
  }
  output += static_cast<int64_t>(index) * args.output_strides[0];
  expected += static_cast<int64_t>(index) * args.expected_strides[0];
}

// Upper limit for the parts into which the elements are divided. Each part has a tally, and tallies are merged in
// order, so the bits are the same for every number of threads.
constexpr int64_t kCompareParts = 1024;

// CPU. Elements [begin, end).
CompareTally compare_cpu(const CompareArgs& args, int64_t begin, int64_t end);
Comparison finish_comparison_cpu(const CompareTally& tally, const CompareArgs& args);

// CUDA: two kernels on the stream, one to tally and one to merge. `partials` holds kCompareParts tallies and `result` a
// comparison, both in device memory. Returns a cudaError_t.
[[nodiscard]] int launch_compare(const CompareArgs& args, CompareTally* partials, Comparison* result, void* stream);

}  // namespace kc
