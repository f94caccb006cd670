#include "ops/compare.h"

#include <algorithm>

namespace kc {
namespace {

// Elements are converted a block at a time; the sums over a block are in columns, which the compiler can vectorise
// without changing the order of additions.
constexpr int64_t kBlock = 512;
constexpr int64_t kColumns = 8;

inline double wide(double value) {
  return value;
}
inline double wide(float value) {
  return static_cast<double>(value);
}
inline double wide(BFloat16 value) {
  return static_cast<double>(widen(value));
}
inline double wide(Float16 value) {
  return static_cast<double>(widen(value));
}
inline Complex wide(Complex value) {
  return value;
}
inline Complex wide(Complex64 value) {
  return {static_cast<double>(value.re), static_cast<double>(value.im)};
}
template <class T>
int64_t wide(T value) {
  return static_cast<int64_t>(value);
}

// A bool as its byte: another process may have written other values than 0 and 1.
struct BoolByte {
  uint8_t byte;
};
inline int64_t wide(BoolByte value) {
  return value.byte != 0;
}

// visit(T{}) with the type of the elements, one of kind V.
template <class Visit>
void with_type(ElementType type, double, const Visit& visit) {
  if (type == ElementType::float64) return visit(double{});
  if (type == ElementType::float32) return visit(float{});
  if (type == ElementType::bfloat16) return visit(BFloat16{});
  return visit(Float16{});
}
template <class Visit>
void with_type(ElementType type, Complex, const Visit& visit) {
  if (type == ElementType::complex128) return visit(Complex{});
  return visit(Complex64{});
}
template <class Visit>
void with_type(ElementType type, int64_t, const Visit& visit) {
  if (type == ElementType::int64) return visit(int64_t{});
  if (type == ElementType::int32) return visit(int32_t{});
  if (type == ElementType::int16) return visit(int16_t{});
  if (type == ElementType::int8) return visit(int8_t{});
  if (type == ElementType::uint8) return visit(uint8_t{});
  return visit(BoolByte{});
}

// One of the two tensors.
struct Side {
  const void* data;
  ElementType type;
  const int64_t* strides;
};

// Elements [begin, begin + count) in row-major order.
template <class V>
void load(const CompareArgs& args, const Side& side, int64_t begin, int64_t count, V* out) {
  with_type(side.type, V{}, [&](auto zero) {
    using T = decltype(zero);
    const T* data = static_cast<const T*>(side.data);
    int64_t at[kMaxDims];
    int64_t rest = begin;
    for (int d = args.dims - 1; d >= 0; --d) {
      at[d] = rest % args.sizes[d];
      rest /= args.sizes[d];
    }
    const int last = args.dims - 1;
    const int64_t stride = side.strides[last];
    for (int64_t done = 0; done < count;) {
      const T* run = data;
      for (int d = 0; d <= last; ++d) run += at[d] * side.strides[d];
      const int64_t length = std::min(count - done, args.sizes[last] - at[last]);
      if (stride == 1) {
        for (int64_t i = 0; i < length; ++i) out[done + i] = wide(run[i]);
      } else {
        for (int64_t i = 0; i < length; ++i) out[done + i] = wide(run[i * stride]);
      }
      done += length;
      at[last] = 0;  // to the start of the next run
      for (int d = last - 1; d >= 0 && ++at[d] == args.sizes[d]; --d) at[d] = 0;
    }
  });
}

template <class V>
bool add_block(const V* x, const V* y, int64_t count, const CompareArgs& args, CompareTally& tally) {
  bool unsettled = false;
  for (int64_t i = 0; i < count; ++i) unsettled |= add_errors(x[i], y[i], args, tally);
  return unsettled;
}

// The same for a block, in columns, with the largest errors.
bool add_block(const double* x, const double* y, int64_t count, const CompareArgs& args, CompareTally& tally) {
  double max_abs[kColumns] = {}, max_rel[kColumns] = {}, squared_error[kColumns] = {}, squared_expected[kColumns] = {};
  double misses[kColumns] = {};
  const double rtol = args.rtol, atol = args.atol, tiny = args.tiny, infinity = INFINITY;
  const int64_t whole = count - count % kColumns;
  for (int64_t i = 0; i < whole; i += kColumns) {
    for (int64_t c = 0; c < kColumns; ++c) {
      const double distance = fabs(x[i + c] - y[i + c]), magnitude = fabs(y[i + c]);
      const bool finite = distance < infinity;
      const double error = finite ? distance : 0.0, size = finite ? magnitude : 0.0;
      const double ratio = error / (size > tiny ? size : tiny);
      max_abs[c] = error > max_abs[c] ? error : max_abs[c];
      max_rel[c] = ratio > max_rel[c] ? ratio : max_rel[c];
      squared_error[c] += error * error;
      squared_expected[c] += size * size;
      misses[c] += finite && distance <= atol + rtol * size ? 0.0 : 1.0;
    }
  }
  bool unsettled = false;
  for (int64_t c = 0; c < kColumns; ++c) {
    CompareTally column;
    column.max_abs = max_abs[c];
    column.max_rel = max_rel[c];
    column.squared_error = squared_error[c];
    column.squared_expected = squared_expected[c];
    merge(tally, column);
    unsettled |= misses[c] > 0;
  }
  for (int64_t i = whole; i < count; ++i) unsettled |= add_errors(x[i], y[i], args, tally);
  return unsettled;
}

template <class V>
CompareTally compare(const CompareArgs& args, int64_t begin, int64_t end) {
  CompareTally tally;
  V x[kBlock], y[kBlock];
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t count = std::min(kBlock, end - i);
    load(args, {args.output, args.output_type, args.output_strides}, i, count, x);
    load(args, {args.expected, args.expected_type, args.expected_strides}, i, count, y);
    if (!add_block(x, y, count, args, tally)) continue;
    for (int64_t k = 0; k < count; ++k) settle(x[k], y[k], i + k, args, tally);
  }
  return tally;
}

template <class V>
Comparison finish(const CompareTally& tally, const CompareArgs& args) {
  return comparison_of(tally, args, [&](int tensor, int64_t index) {
    V value{};
    if (tensor == 0)
      load(args, {args.output, args.output_type, args.output_strides}, index, 1, &value);
    else
      load(args, {args.expected, args.expected_type, args.expected_strides}, index, 1, &value);
    return value;
  });
}

}  // namespace

CompareTally compare_cpu(const CompareArgs& args, int64_t begin, int64_t end) {
  switch (kind_of(args.output_type)) {
    case ElementKind::real:
      return compare<double>(args, begin, end);
    case ElementKind::complex:
      return compare<Complex>(args, begin, end);
    default:
      return compare<int64_t>(args, begin, end);
  }
}

Comparison finish_comparison_cpu(const CompareTally& tally, const CompareArgs& args) {
  switch (kind_of(args.output_type)) {
    case ElementKind::real:
      return finish<double>(tally, args);
    case ElementKind::complex:
      return finish<Complex>(tally, args);
    default:
      return finish<int64_t>(tally, args);
  }
}

}  // namespace kc
