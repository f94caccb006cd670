// One block for each row. Each thread loads 16 bytes at a time, with several loads in flight; the few elements before
// the first and after the last 16-byte boundary of the row are loaded one by one, so every stride and vocabulary uses
// wide loads.
#include "ops/token_logprobs.cuh"

#include <cuda_runtime.h>

#include <type_traits>

#include "common/rows.cuh"

namespace kc {
namespace {

constexpr int kWarp = 32;
constexpr int kUnroll = 4;  // packs of 16 bytes that a thread loads at the same time
// Number of threads of a multiprocessor for which these kernels leave enough registers: 64 each, or 128 each for
// double.
template <class T>
constexpr int kResidentThreads = sizeof(T) == 8 ? 512 : 1024;

// A row as elements before the first 16-byte boundary, 16-byte packs, and elements after them.
template <class T>
struct RowCut {
  static constexpr int kPack = Pack<T>::kCount;
  int64_t head, packs;

  __device__ RowCut(const T* row, int64_t vocab, bool wide) {
    const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
    head = past == 0 ? 0 : kPack - past;
    if (head > vocab || !wide) head = vocab;
    packs = (vocab - head) / kPack;
  }
  __device__ int64_t body_end() const { return head + packs * kPack; }
};

// The pack that holds the token, and its place in it; no pack if the token is before or after all packs.
struct Target {
  int64_t pack = -1;
  int place = 0;

  template <class T>
  __device__ Target(const RowCut<T>& cut, int64_t id) {
    if (id < cut.head || id >= cut.body_end()) return;
    pack = (id - cut.head) / RowCut<T>::kPack;
    place = static_cast<int>((id - cut.head) % RowCut<T>::kPack);
  }
};

// Calls one(j) for each of this thread's elements outside the packs.
template <int kThreads, class T, class One>
__device__ __forceinline__ void for_edges(const RowCut<T>& cut, int64_t vocab, const One& one) {
  for (int64_t j = threadIdx.x; j < cut.head; j += kThreads) one(j);
  for (int64_t j = cut.body_end() + threadIdx.x; j < vocab; j += kThreads) one(j);
}

template <class A>
__device__ __forceinline__ A nan_of() {
  return static_cast<A>(nan(""));
}

template <class T>
__device__ __forceinline__ int64_t token_of(const LogitRows<T>& rows, int64_t row) {
  return rows.tokens ? rows.tokens[row] : row;
}

template <class T, int kThreads>
__global__ void __launch_bounds__(kThreads, kResidentThreads<T> / kThreads)
    token_logprobs_kernel(LogitRows<T> rows, TokenStats<Accumulator<T>> stats) {
  using A = Accumulator<T>;
  constexpr A kFloor = static_cast<A>(Floor<T>::value);
  const int64_t row = blockIdx.x;
  const int64_t token = token_of(rows, row);
  if (rows.mask && !rows.mask[token]) {
    if (threadIdx.x == 0) stats.logprobs[token] = stats.entropy[token] = stats.max[token] = stats.sum[token] = A(0);
    return;
  }
  const T* x = rows.logits + rows.places.of(row);
  const int64_t vocab = rows.vocab, id = rows.ids[token];
  const A temperature = rows.temperature_of(token), c = log2_scale(temperature);
  const RowCut<T> cut(x, vocab, /*wide=*/true);
  const A target =
      id >= 0 && id < vocab ? load_wide(x + id) : nan_of<A>();  // loaded early, so that nothing waits for it at the end

  RowSums<A> mine{kFloor, 0, 0};
  for_edges<kThreads>(cut, vocab, [&](int64_t j) {
    const A value = load_wide(x + j);
    mine.add_one(j == id || value < kFloor ? kFloor : value, c);
  });
  const auto* body = reinterpret_cast<const uint4*>(x + cut.head);
  const Target target_at(cut, id);
  int64_t i = threadIdx.x;
  for (; i + (kUnroll - 1) * kThreads < cut.packs; i += kUnroll * kThreads) {
    uint4 raw[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) raw[k] = __ldcs(body + i + k * kThreads);
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      raw[k] = Pack<T>::floored(raw[k]);
      if (i + k * kThreads == target_at.pack) raw[k] = Pack<T>::replaced(raw[k], target_at.place, kFloor);
    }
    mine.template add<T>(raw, c);
  }
  if (i < cut.packs) {  // what is left of the row, again with all loads at once
    uint4 raw[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
      raw[k] = i + k * kThreads < cut.packs ? __ldcs(body + i + k * kThreads) : Pack<T>::all_floor();
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      raw[k] = Pack<T>::floored(raw[k]);
      if (i + k * kThreads == target_at.pack) raw[k] = Pack<T>::replaced(raw[k], target_at.place, kFloor);
    }
    mine.template add<T>(raw, c);
  }

  constexpr int kWarps = kThreads / kWarp;
  __shared__ RowSums<A> parts[kWarps];
  mine = warp_merge(mine, c);
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = mine;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  RowSums<A> all = threadIdx.x < kWarps ? parts[threadIdx.x] : RowSums<A>{kFloor, 0, 0};
  all = warp_merge(all, c);
  if (threadIdx.x != 0) return;
  const RowResult<A> out = finish_row(all, target, temperature, kFloor);
  stats.logprobs[token] = out.logprob;
  stats.entropy[token] = out.entropy;
  stats.max[token] = out.max;
  stats.sum[token] = out.sum;
}

template <class T, int kThreads>
__global__ void __launch_bounds__(kThreads, kResidentThreads<T> / kThreads)
    token_logprobs_grad_kernel(LogitRows<T> rows, TokenStats<Accumulator<T>> stats, const Accumulator<T>* grad_logprobs,
                               const Accumulator<T>* grad_entropy, const Accumulator<T>* scale, T* grad_logits,
                               RowPlaces grad_places) {
  using A = Accumulator<T>;
  constexpr int kPack = Pack<T>::kCount;
  const int64_t row = blockIdx.x;
  const int64_t token = token_of(rows, row);
  const bool counts = !rows.mask || rows.mask[token];
  const A factor = scale ? *scale : A(1);
  const A g = grad_logprobs && counts ? factor * grad_logprobs[token] : A(0);
  const A h = grad_entropy && counts ? factor * grad_entropy[token] : A(0);
  const int64_t vocab = rows.vocab, id = rows.ids[token];
  const T* x = rows.logits + rows.places.of(row);
  T* out = grad_logits + grad_places.of(row);
  const bool wide = reinterpret_cast<uintptr_t>(x) % 16 == reinterpret_cast<uintptr_t>(out) % 16;

  if (g == A(0) && h == A(0)) {  // not even read
    const RowCut<T> cut(out, vocab, true);
    for_edges<kThreads>(cut, vocab, [&](int64_t j) { store_narrow(out + j, A(0)); });
    auto* to = reinterpret_cast<uint4*>(out + cut.head);
    for (int64_t i = threadIdx.x; i < cut.packs; i += kThreads) __stcs(to + i, make_uint4(0, 0, 0, 0));
    return;
  }

  const A logprob = stats.logprobs[token];
  const RowResult<A> saved{logprob,          stats.entropy[token], stats.max[token],
                           stats.sum[token], exp(logprob),         -expm1(logprob)};
  const RowGradient<A> gradient = row_gradient(saved, g, h, rows.temperature_of(token));
  const RowCut<T> cut(x, vocab, wide);
  for_edges<kThreads>(cut, vocab, [&](int64_t j) {
    const A value = gradient.of(load_wide(x + j), static_cast<A>(Floor<T>::value));
    store_narrow(out + j, j == id ? gradient.own : value);
  });
  const Target target_at(cut, id);
  const auto* from = reinterpret_cast<const uint4*>(x + cut.head);
  auto* to = reinterpret_cast<uint4*>(out + cut.head);
  const auto convert = [&](uint4 raw, int64_t i) {
    A values[kPack];
    Pack<T>::unpack(raw, values);
#pragma unroll
    for (A& v : values) v = gradient.of(v, static_cast<A>(Floor<T>::value));
    uint4 packed = Pack<T>::pack(values);
    if (i == target_at.pack) packed = Pack<T>::replaced(packed, target_at.place, gradient.own);
    __stcs(to + i, packed);
  };
  int64_t i = threadIdx.x;
  for (; i + (kUnroll - 1) * kThreads < cut.packs; i += kUnroll * kThreads) {
    uint4 raw[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) raw[k] = __ldcs(from + i + k * kThreads);
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) convert(raw[k], i + k * kThreads);
  }
  if (i < cut.packs) {  // what is left of the row, again with all loads at once
    uint4 raw[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
      raw[k] = i + k * kThreads < cut.packs ? __ldcs(from + i + k * kThreads) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
      if (i + k * kThreads < cut.packs) convert(raw[k], i + k * kThreads);
  }
}

// Calls launch(number of threads of a block). Blocks for short rows are small, so that a multiprocessor handles many
// rows at the same time: while one row is reduced to its four numbers, others are loaded. The number depends only on
// the length of a row; if it depended on the number of rows, the bits of a row would, too.
template <class T, class Launch>
void with_threads(int64_t vocab, const Launch& launch) {
  constexpr int64_t kShortBytes = 160 * 1024;
  if (vocab * static_cast<int64_t>(sizeof(T)) <= kShortBytes)
    launch(std::integral_constant<int, 128>{});
  else
    launch(std::integral_constant<int, 256>{});
}

}  // namespace

template <class T>
int launch_token_logprobs(const LogitRows<T>& rows, int64_t count, const TokenStats<Accumulator<T>>& stats,
                          void* stream) {
  if (count == 0) return cudaSuccess;
  with_threads<T>(rows.vocab, [&](auto threads) {
    constexpr int kThreads = decltype(threads)::value;
    token_logprobs_kernel<T, kThreads>
        <<<static_cast<unsigned>(count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(rows, stats);
  });
  return cudaGetLastError();
}

template <class T>
int launch_token_logprobs_grad(const LogitRows<T>& rows, int64_t count, const TokenStats<Accumulator<T>>& stats,
                               const Accumulator<T>* grad_logprobs, const Accumulator<T>* grad_entropy,
                               const Accumulator<T>* scale, T* grad_logits, const RowPlaces& grad_places,
                               void* stream) {
  if (count == 0 || rows.vocab == 0) return cudaSuccess;
  // Measured on an H200: with fewer threads in a block this kernel is slower, for every vocabulary.
  constexpr int kThreads = 512;
  token_logprobs_grad_kernel<T, kThreads>
      <<<static_cast<unsigned>(count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
          rows, stats, grad_logprobs, grad_entropy, scale, grad_logits, grad_places);
  return cudaGetLastError();
}

#define KC_INSTANTIATE(T)                                                                                             \
  template int launch_token_logprobs<T>(const LogitRows<T>&, int64_t, const TokenStats<Accumulator<T>>&, void*);      \
  template int launch_token_logprobs_grad<T>(const LogitRows<T>&, int64_t, const TokenStats<Accumulator<T>>&,         \
                                             const Accumulator<T>*, const Accumulator<T>*, const Accumulator<T>*, T*, \
                                             const RowPlaces&, void*);
KC_INSTANTIATE(float)
KC_INSTANTIATE(double)
KC_INSTANTIATE(BFloat16)
KC_INSTANTIATE(Float16)
#undef KC_INSTANTIATE

}  // namespace kc
