// A fixed number of blocks read the tensors; each writes a tally, and one block merges them. Tallies are merged in
// fixed trees, so the bits are the same every time on one kind of device.
// Contiguous tensors of common pairs of types are read in vectors, others element by element with types and strides
// determined at run time. Most pairs only add to the sums. A vector with a pair that needs more is read again, so that
// the loop does not contain the code for this once for every element.
#include "common/rows.cuh"
#include "ops/compare.h"

namespace kc {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kBlocksPerSm = 3;
constexpr int kUnroll = 2;

__device__ __forceinline__ double wide(double value) {
  return value;
}
__device__ __forceinline__ double wide(float value) {
  return static_cast<double>(value);
}
__device__ __forceinline__ double wide(BFloat16 value) {
  return static_cast<double>(load_wide(&value));
}
__device__ __forceinline__ double wide(Float16 value) {
  return static_cast<double>(load_wide(&value));
}
__device__ __forceinline__ Complex wide(Complex value) {
  return value;
}
__device__ __forceinline__ Complex wide(Complex64 value) {
  return {static_cast<double>(value.re), static_cast<double>(value.im)};
}
template <class T>
__device__ __forceinline__ int64_t wide(T value) {
  return static_cast<int64_t>(value);
}

// A bool as its byte: another process may have written other values than 0 and 1.
struct BoolByte {
  uint8_t byte;
};
__device__ __forceinline__ int64_t wide(BoolByte value) {
  return value.byte != 0;
}

template <class T>
__device__ __forceinline__ auto at(const void* data, int64_t offset) {
  return wide(static_cast<const T*>(data)[offset]);
}
__device__ __forceinline__ double load_element(const void* data, int64_t offset, ElementType type, double) {
  if (type == ElementType::float64) return at<double>(data, offset);
  if (type == ElementType::float32) return at<float>(data, offset);
  if (type == ElementType::bfloat16) return at<BFloat16>(data, offset);
  return at<Float16>(data, offset);
}
__device__ __forceinline__ Complex load_element(const void* data, int64_t offset, ElementType type, Complex) {
  if (type == ElementType::complex128) return at<Complex>(data, offset);
  return at<Complex64>(data, offset);
}
__device__ __forceinline__ int64_t load_element(const void* data, int64_t offset, ElementType type, int64_t) {
  if (type == ElementType::int64) return at<int64_t>(data, offset);
  if (type == ElementType::int32) return at<int32_t>(data, offset);
  if (type == ElementType::int16) return at<int16_t>(data, offset);
  if (type == ElementType::int8) return at<int8_t>(data, offset);
  if (type == ElementType::uint8) return at<uint8_t>(data, offset);
  return at<BoolByte>(data, offset);
}

__device__ __forceinline__ CompareTally from_lane(const CompareTally& tally, int offset) {
  constexpr unsigned kAll = 0xffffffffu;
  CompareTally other;
  other.max_abs = __shfl_xor_sync(kAll, tally.max_abs, offset);
  other.max_rel = __shfl_xor_sync(kAll, tally.max_rel, offset);
  other.squared_error = __shfl_xor_sync(kAll, tally.squared_error, offset);
  other.squared_expected = __shfl_xor_sync(kAll, tally.squared_expected, offset);
  other.mismatches = __shfl_xor_sync(kAll, tally.mismatches, offset);
  other.nan_added = __shfl_xor_sync(kAll, tally.nan_added, offset);
  other.nan_missing = __shfl_xor_sync(kAll, tally.nan_missing, offset);
  other.inf_added = __shfl_xor_sync(kAll, tally.inf_added, offset);
  other.inf_missing = __shfl_xor_sync(kAll, tally.inf_missing, offset);
  other.first = __shfl_xor_sync(kAll, tally.first, offset);
  return other;
}

// The tally of the block, in thread 0.
__device__ void merge_block(CompareTally& tally) {
  __shared__ CompareTally warps[kWarps];
#pragma unroll 1
  for (int offset = 16; offset > 0; offset /= 2) merge(tally, from_lane(tally, offset));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = tally;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll 1
  for (int w = 1; w < kWarps; ++w) merge(tally, warps[w]);
}

template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T values[kCount];
};

// Elements of one vector load: 16 bytes of the wider type.
template <class X, class Y>
constexpr int kWidth = 16 / static_cast<int>(sizeof(X) > sizeof(Y) ? sizeof(X) : sizeof(Y));

// The elements of vector v.
template <class X, class Y>
__device__ __forceinline__ void add_vector(const Vector<X, kWidth<X, Y>>& x, const Vector<Y, kWidth<X, Y>>& y,
                                           const X* __restrict__ output, const Y* __restrict__ expected, int64_t v,
                                           const CompareArgs& args, CompareTally& tally) {
  bool unsettled = false;
#pragma unroll
  for (int i = 0; i < kWidth<X, Y>; ++i) unsettled |= add_errors(wide(x.values[i]), wide(y.values[i]), args, tally);
  if (!unsettled) return;
#pragma unroll 1
  for (int64_t i = v * kWidth<X, Y>; i < (v + 1) * kWidth<X, Y>; ++i)
    settle(wide(output[i]), wide(expected[i]), i, args, tally);
}

template <class X, class Y>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    compare_vectors_kernel(const __grid_constant__ CompareArgs args, CompareTally* __restrict__ partials) {
  constexpr int kCount = kWidth<X, Y>;
  using XVector = Vector<X, kCount>;
  using YVector = Vector<Y, kCount>;
  const X* output = static_cast<const X*>(args.output);
  const Y* expected = static_cast<const Y*>(args.expected);
  const XVector* xs = reinterpret_cast<const XVector*>(output);
  const YVector* ys = reinterpret_cast<const YVector*>(expected);
  const int64_t vectors = args.count / kCount;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  CompareTally tally;
  int64_t v = thread;
  for (; v + (kUnroll - 1) * step < vectors; v += kUnroll * step) {
    XVector x[kUnroll];
    YVector y[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) x[u] = xs[v + u * step], y[u] = ys[v + u * step];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) add_vector<X, Y>(x[u], y[u], output, expected, v + u * step, args, tally);
  }
  for (; v < vectors; v += step) add_vector<X, Y>(xs[v], ys[v], output, expected, v, args, tally);
  if (const int64_t index = vectors * kCount + thread; index < args.count) {  // fewer than a vector
    if (add_errors(wide(output[index]), wide(expected[index]), args, tally))
      settle(wide(output[index]), wide(expected[index]), index, args, tally);
  }
  merge_block(tally);
  if (threadIdx.x == 0) partials[blockIdx.x] = tally;
}

template <class V, class Index>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    compare_elements_kernel(const __grid_constant__ CompareArgs args, CompareTally* __restrict__ partials) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  CompareTally tally;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < args.count; i += step) {
    int64_t output, expected;
    element_offsets(args, static_cast<Index>(i), output, expected);
    const V x = load_element(args.output, output, args.output_type, V{});
    const V y = load_element(args.expected, expected, args.expected_type, V{});
    if (add_errors(x, y, args, tally)) settle(x, y, i, args, tally);
  }
  merge_block(tally);
  if (threadIdx.x == 0) partials[blockIdx.x] = tally;
}

template <class V>
__global__ void __launch_bounds__(kThreads)
    finish_comparison_kernel(const __grid_constant__ CompareArgs args, const CompareTally* __restrict__ partials,
                             int count, Comparison* __restrict__ result) {
  CompareTally tally;
  for (int p = static_cast<int>(threadIdx.x); p < count; p += kThreads) merge(tally, partials[p]);
  merge_block(tally);
  if (threadIdx.x != 0) return;
  *result = comparison_of(tally, args, [&](int tensor, int64_t index) {
    int64_t output, expected;
    element_offsets(args, static_cast<uint64_t>(index), output, expected);
    return tensor == 0 ? load_element(args.output, output, args.output_type, V{})
                       : load_element(args.expected, expected, args.expected_type, V{});
  });
}

using Kernel = void (*)(CompareArgs, CompareTally*);

// A kernel and the number of elements that a thread reads at once.
struct Sweep {
  Kernel kernel = nullptr;
  int width = 1;
};

template <class X, class Y>
Sweep vectors_of(const CompareArgs& args) {
  constexpr uintptr_t kCount = kWidth<X, Y>;
  const bool aligned = reinterpret_cast<uintptr_t>(args.output) % (kCount * sizeof(X)) == 0 &&
                       reinterpret_cast<uintptr_t>(args.expected) % (kCount * sizeof(Y)) == 0;
  if (!aligned) return {};
  return {compare_vectors_kernel<X, Y>, kWidth<X, Y>};
}

// The vector kernel for this pair of types, if there is one: equal types, and a wider one expected.
Sweep vectors_for(const CompareArgs& args) {
  using E = ElementType;
  const E x = args.output_type, y = args.expected_type;
  if (x == y) switch (x) {
      case E::float64:
        return vectors_of<double, double>(args);
      case E::float32:
        return vectors_of<float, float>(args);
      case E::bfloat16:
        return vectors_of<BFloat16, BFloat16>(args);
      case E::float16:
        return vectors_of<Float16, Float16>(args);
      case E::complex128:
        return vectors_of<Complex, Complex>(args);
      case E::complex64:
        return vectors_of<Complex64, Complex64>(args);
      case E::int64:
        return vectors_of<int64_t, int64_t>(args);
      case E::int32:
        return vectors_of<int32_t, int32_t>(args);
      case E::int16:
        return vectors_of<int16_t, int16_t>(args);
      case E::int8:
        return vectors_of<int8_t, int8_t>(args);
      case E::uint8:
        return vectors_of<uint8_t, uint8_t>(args);
      case E::boolean:
        return vectors_of<BoolByte, BoolByte>(args);
    }
  if (y == E::float64 && x == E::float32) return vectors_of<float, double>(args);
  if (y == E::float64 && x == E::bfloat16) return vectors_of<BFloat16, double>(args);
  if (y == E::float64 && x == E::float16) return vectors_of<Float16, double>(args);
  if (y == E::float32 && x == E::bfloat16) return vectors_of<BFloat16, float>(args);
  if (y == E::float32 && x == E::float16) return vectors_of<Float16, float>(args);
  if (y == E::complex128 && x == E::complex64) return vectors_of<Complex64, Complex>(args);
  return {};
}

template <class V>
int launch(const CompareArgs& args, CompareTally* partials, Comparison* result, cudaStream_t stream) {
  int device = 0, sms = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
      error != cudaSuccess)
    return error;
  Sweep sweep;
  if (args.is_contiguous()) sweep = vectors_for(args);
  if (!sweep.kernel)
    sweep.kernel =
        args.count <= UINT32_MAX ? compare_elements_kernel<V, uint32_t> : compare_elements_kernel<V, uint64_t>;
  const int64_t most = kBlocksPerSm * sms < kCompareParts ? kBlocksPerSm * sms : kCompareParts;
  const int64_t per_block = static_cast<int64_t>(kThreads) * sweep.width;
  const int64_t wanted = (args.count + per_block - 1) / per_block;
  const int blocks = static_cast<int>(wanted < most ? wanted : most);
  if (blocks > 0) {
    sweep.kernel<<<blocks, kThreads, 0, stream>>>(args, partials);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  finish_comparison_kernel<V><<<1, kThreads, 0, stream>>>(args, partials, blocks, result);
  return cudaGetLastError();
}

}  // namespace

int launch_compare(const CompareArgs& args, CompareTally* partials, Comparison* result, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  switch (kind_of(args.output_type)) {
    case ElementKind::real:
      return launch<double>(args, partials, result, on);
    case ElementKind::complex:
      return launch<Complex>(args, partials, result, on);
    default:
      return launch<int64_t>(args, partials, result, on);
  }
}

}  // namespace kc
