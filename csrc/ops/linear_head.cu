#include "ops/linear_head.cuh"

#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "common/rows.cuh"

namespace kc {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 512;
constexpr int kCopyThreads = 128;
constexpr int kSelectThreads = 1024;
constexpr int kUnroll = 4;

__global__ void count_up_kernel(int64_t* tokens, int64_t first, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) tokens[i] = first + i;
}

// Unit is uint4 if rows consist of whole ones, otherwise T.
template <class Unit>
__device__ __forceinline__ void copy_row(const Unit* from, Unit* to, int64_t units) {
  for (int64_t j = threadIdx.x; j < units; j += kCopyThreads) to[j] = from[j];
}

template <class Unit>
__global__ void __launch_bounds__(kCopyThreads)
    gather_kernel(const Unit* from, int64_t units, const int64_t* tokens, const bool* mask, Unit* to) {
  const int64_t row = blockIdx.x, token = tokens[row];
  if (mask && !mask[token]) {
    for (int64_t j = threadIdx.x; j < units; j += kCopyThreads) to[row * units + j] = Unit{};
    return;
  }
  copy_row(from + token * units, to + row * units, units);
}

template <class Unit>
__global__ void __launch_bounds__(kCopyThreads)
    scatter_kernel(const Unit* from, int64_t units, const int64_t* tokens, Unit* to) {
  copy_row(from + static_cast<int64_t>(blockIdx.x) * units, to + tokens[blockIdx.x] * units, units);
}

template <class Unit>
__global__ void __launch_bounds__(kThreads) move_kernel(Unit* rows, int64_t units, int64_t stride, const int32_t* holes,
                                                        const int32_t* movers, const int64_t* moved) {
  if (static_cast<int64_t>(blockIdx.x) >= *moved) return;
  const Unit* from = rows + movers[blockIdx.x] * stride;
  Unit* to = rows + holes[blockIdx.x] * stride;
  for (int64_t j = threadIdx.x; j < units; j += kThreads) to[j] = from[j];
}

// Calls launch(pointer..., units, stride in units) with the widest unit that divides all of these.
template <class T, class Launch>
void with_unit(int64_t width, int64_t stride, const void* a, const void* b, const Launch& launch) {
  constexpr int64_t kPack = Pack<T>::kCount;
  const bool wide = width % kPack == 0 && stride % kPack == 0 && reinterpret_cast<uintptr_t>(a) % 16 == 0 &&
                    reinterpret_cast<uintptr_t>(b) % 16 == 0;
  if (wide)
    launch(uint4{}, width / kPack, stride / kPack);
  else
    launch(T{}, width, stride);
}

template <class T, class L>
__global__ void __launch_bounds__(kThreads) finish_kernel(L* logits, int64_t vocab, int64_t stride, const T* bias,
                                                          Accumulator<T> logit_scale, Accumulator<T> softcap) {
  using A = Accumulator<T>;
  L* row = logits + static_cast<int64_t>(blockIdx.x) * stride;
  for (int64_t j = threadIdx.x; j < vocab; j += kThreads) {
    A x = load_wide(row + j);
    if (bias) x += logit_scale * load_wide(bias + j);
    if (softcap != A(0)) x = softcap * tanh(x / softcap);
    store_narrow(row + j, x);
  }
}

// As many adjacent elements of O as a pack of L has.
template <class L, class O>
__device__ __forceinline__ void store_pack(O* to, const Accumulator<L> (&v)[Pack<L>::kCount]) {
  if constexpr (sizeof(O) == sizeof(L)) {
    __stcs(reinterpret_cast<uint4*>(to), Pack<O>::pack(v));
  } else {
    const float wide[8] = {v[0], v[1], v[2], v[3], 0, 0, 0, 0};
    const uint4 packed = Pack<O>::pack(wide);
    __stcs(reinterpret_cast<uint2*>(to), make_uint2(packed.x, packed.y));
  }
}

// A gradient narrower than its logits is written to the bytes before them: the block has read the bytes that an
// iteration of the loop writes before the barrier of that iteration.
template <class L, class O>
__global__ void __launch_bounds__(kThreads, sizeof(L) == 8 ? 1 : 2)
    head_gradient_kernel(LogitRows<L> rows, TokenStats<Accumulator<L>> stats, const Accumulator<L>* grad_logprobs,
                         const Accumulator<L>* grad_entropy, const Accumulator<L>* scale, Accumulator<L> softcap,
                         const int32_t* slots, O* gradients, int64_t gradient_stride) {
  using A = Accumulator<L>;
  constexpr int kPack = Pack<L>::kCount;
  constexpr A kFloor = static_cast<A>(Floor<L>::value);
  constexpr bool kNarrows = sizeof(O) < sizeof(L);
  const int64_t row = blockIdx.x;
  const int64_t slot = slots ? slots[row] : row;
  if (slot < 0) return;
  const int64_t token = rows.tokens[row], vocab = rows.vocab;
  O* out = gradients + slot * gradient_stride;
  const A by = scale ? *scale : A(1);
  const bool masked = rows.mask && !rows.mask[token];
  const A g = grad_logprobs && !masked ? grad_logprobs[token] * by : A(0);
  const A h = grad_entropy && !masked ? grad_entropy[token] * by : A(0);
  if (g == A(0) && h == A(0)) {
    for (int64_t j = threadIdx.x; j < vocab; j += kThreads) store_narrow(out + j, A(0));
    return;
  }

  const L* x = rows.logits + rows.places.of(row);
  const int64_t id = rows.ids[token];
  const A logprob = stats.logprobs[token];
  const RowResult<A> saved{logprob,          stats.entropy[token], stats.max[token],
                           stats.sum[token], exp(logprob),         -expm1(logprob)};
  RowGradient<A> gradient = row_gradient(saved, g, h, rows.temperature_of(token));
  const auto through_cap = [&](A value, A logit) {
    const A t = logit / softcap;
    return value * (A(1) - t) * (A(1) + t);
  };
  if (softcap != A(0) && id >= 0 && id < vocab) gradient.own = through_cap(gradient.own, load_wide(x + id));
  const auto convert = [&](A logit, int64_t j) {
    if (j == id) return gradient.own;
    const A value = gradient.of(logit, kFloor);
    return softcap != A(0) ? through_cap(value, logit) : value;
  };

  const int64_t packs = vocab / kPack;
  const int64_t last = packs * kPack + threadIdx.x;  // fewer elements than threads are left
  const A tail = last < vocab ? load_wide(x + last) : A(0);
  const auto* from = reinterpret_cast<const uint4*>(x);
  for (int64_t begin = 0; begin < packs; begin += kUnroll * kThreads) {
    uint4 raw[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const int64_t i = begin + threadIdx.x + k * kThreads;
      raw[k] = i < packs ? __ldcs(from + i) : make_uint4(0, 0, 0, 0);
    }
    if (kNarrows || begin == 0) __syncthreads();  // the first one also waits for the tail and the token's logit
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const int64_t i = begin + threadIdx.x + k * kThreads;
      A v[kPack];
      Pack<L>::unpack(raw[k], v);
#pragma unroll
      for (int e = 0; e < kPack; ++e) v[e] = convert(v[e], i * kPack + e);
      if (i < packs) store_pack<L, O>(out + i * kPack, v);
    }
  }
  __syncthreads();
  if (last < vocab) store_narrow(out + last, convert(tail, last));
}

// Returns the sum of `value` over the threads before this one; *total gets the sum over all of them.
__device__ int block_scan(int value, int* total) {
  __shared__ int sums[kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  int upto = value;
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, upto, offset);
    if (lane >= offset) upto += other;
  }
  __syncthreads();  // what the last call left has been read
  if (lane == kWarp - 1) sums[warp] = upto;
  __syncthreads();
  int before = 0, all = 0;
  for (int w = 0; w < kSelectThreads / kWarp; ++w) {
    before += w < warp ? sums[w] : 0;
    all += sums[w];
  }
  *total = all;
  return before + upto - value;
}

// Each thread handles consecutive rows, at most 64 in an iteration. One bit for each row says whether it has a
// gradient, so memory is read once and an iteration needs two scans.
template <class A>
__global__ void __launch_bounds__(kSelectThreads)
    select_kernel(const int64_t* tokens, const bool* mask, const A* grad_logprobs, const A* grad_entropy, int64_t count,
                  RowSelection selection) {
  const auto is_active = [&](int64_t i) {
    const int64_t t = tokens[i];
    if (mask && !mask[t]) return false;
    return (grad_logprobs && grad_logprobs[t] != A(0)) || (grad_entropy && grad_entropy[t] != A(0));
  };
  constexpr int kMostRun = 64;
  const int run = static_cast<int>(min((count + kSelectThreads - 1) / kSelectThreads, static_cast<int64_t>(kMostRun)));
  const int64_t turn = static_cast<int64_t>(run) * kSelectThreads;
  const auto bits_of = [&](int64_t first) {
    uint64_t bits = 0;
    for (int k = 0; k < run; ++k) bits |= static_cast<uint64_t>(first + k < count && is_active(first + k)) << k;
    return bits;
  };
  const int64_t own = static_cast<int64_t>(threadIdx.x) * run;
  const uint64_t first_bits = bits_of(own);
  int64_t active = 0;
  for (int64_t begin = 0; begin < count; begin += turn) {
    int found;
    block_scan(__popcll(begin == 0 ? first_bits : bits_of(begin + own)), &found);
    active += found;
  }
  int64_t holes = 0, movers = 0;
  for (int64_t begin = 0; begin < count; begin += turn) {
    const int64_t first = begin + own;
    const uint64_t bits = begin == 0 ? first_bits : bits_of(first);
    int own_holes = 0, own_movers = 0;
    for (int k = 0; k < run && first + k < count; ++k) {
      const bool here = bits >> k & 1;
      own_holes += first + k < active && !here;
      own_movers += first + k >= active && here;
    }
    int more_holes, more_movers;
    int64_t hole = holes + block_scan(own_holes, &more_holes), mover = movers + block_scan(own_movers, &more_movers);
    for (int k = 0; k < run && first + k < count; ++k) {
      const int64_t i = first + k;
      const bool here = bits >> k & 1, is_mover = i >= active && here;
      if (i < active && !here) selection.holes[hole++] = static_cast<int32_t>(i);
      if (is_mover) selection.movers[mover++] = static_cast<int32_t>(i);
      if (!is_mover) selection.slots[i] = here ? static_cast<int32_t>(i) : -1;
      if (here && !is_mover) selection.order[i] = tokens[i];
    }
    holes += more_holes;
    movers += more_movers;
  }
  __syncthreads();  // all holes and movers are visible to the block; their numbers are equal
  for (int64_t k = threadIdx.x; k < movers; k += kSelectThreads) {
    const int32_t from = selection.movers[k], to = selection.holes[k];
    selection.slots[from] = to;
    selection.order[to] = tokens[from];
  }
  if (threadIdx.x == 0) {
    selection.numbers[0] = active;
    selection.numbers[1] = movers;
  }
}

constexpr int kColumns = 256;

template <class O>
__global__ void __launch_bounds__(kColumns)
    columns_kernel(const O* gradients, int64_t count, int64_t vocab, int64_t stride, Accumulator<O> factor,
                   const Accumulator<O>* device_factor, Accumulator<O>* sum) {
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  if (j >= vocab) return;
  Accumulator<O> total = 0;
  for (int64_t i = 0; i < count; ++i) total += load_wide(gradients + i * stride + j);
  sum[j] += (device_factor ? *device_factor : factor) * total;
}

__global__ void __launch_bounds__(kSelectThreads)
    gradient_scale_kernel(const int64_t* tokens, const float* grad_logprobs, const float* grad_entropy, int64_t count,
                          float logit_scale, float* numbers) {
  __shared__ float tops[kWarp];
  float top = 0;
  for (int64_t i = threadIdx.x; i < count; i += kSelectThreads) {
    const int64_t t = tokens[i];
    if (grad_logprobs) top = fmaxf(top, fabsf(grad_logprobs[t]));
    if (grad_entropy) top = fmaxf(top, fabsf(grad_entropy[t]));
  }
  top = warp_max(top);
  if (threadIdx.x % kWarp == 0) tops[threadIdx.x / kWarp] = top;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  top = warp_max(tops[threadIdx.x]);
  if (threadIdx.x != 0) return;
  const bool usable = top > 0 && top < 0x1p100f;  // infinity must not be scaled away
  const float scale = usable ? ldexpf(1.0f, -min(ilogbf(top), 100)) : 1.0f;
  numbers[0] = scale;
  numbers[1] = logit_scale / scale;
  numbers[2] = 0.0f;
  numbers[3] = 1.0f;
}

template <class V, class T>
__global__ void __launch_bounds__(kThreads)
    scale_kernel(const V* values, int64_t count, const Accumulator<T>* factor, T* out, bool wide) {
  constexpr int kPack = Pack<V>::kCount;
  const Accumulator<T> by = *factor;
  const int64_t packs = wide ? count / kPack : 0;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t i = first; i < packs; i += kUnroll * threads) {
    uint4 raw[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
      if (i + k * threads < packs) raw[k] = __ldcs(reinterpret_cast<const uint4*>(values) + i + k * threads);
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      if (i + k * threads >= packs) break;
      Accumulator<V> v[kPack];
      Pack<V>::unpack(raw[k], v);
#pragma unroll
      for (auto& value : v) value *= by;
      store_pack<V, T>(out + (i + k * threads) * kPack, v);
    }
  }
  for (int64_t i = packs * kPack + first; i < count; i += threads) store_narrow(out + i, load_wide(values + i) * by);
}

unsigned blocks_for(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

}  // namespace

int launch_count_up(int64_t* tokens, int64_t first, int64_t count, void* stream) {
  if (count == 0) return cudaSuccess;
  count_up_kernel<<<blocks_for(count, 256), 256, 0, static_cast<cudaStream_t>(stream)>>>(tokens, first, count);
  return cudaGetLastError();
}

template <class T>
int launch_gather_rows(const T* from, int64_t width, const int64_t* tokens, const bool* mask, int64_t count, T* to,
                       void* stream) {
  if (count == 0 || width == 0) return cudaSuccess;
  with_unit<T>(width, width, from, to, [&](auto unit, int64_t units, int64_t) {
    using Unit = decltype(unit);
    gather_kernel<Unit><<<static_cast<unsigned>(count), kCopyThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        reinterpret_cast<const Unit*>(from), units, tokens, mask, reinterpret_cast<Unit*>(to));
  });
  return cudaGetLastError();
}

template <class T>
int launch_scatter_rows(const T* from, int64_t width, const int64_t* tokens, int64_t count, T* to, void* stream) {
  if (count == 0 || width == 0) return cudaSuccess;
  with_unit<T>(width, width, from, to, [&](auto unit, int64_t units, int64_t) {
    using Unit = decltype(unit);
    scatter_kernel<Unit><<<static_cast<unsigned>(count), kCopyThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        reinterpret_cast<const Unit*>(from), units, tokens, reinterpret_cast<Unit*>(to));
  });
  return cudaGetLastError();
}

template <class T, class L>
int launch_finish_logits(L* logits, int64_t count, int64_t vocab, int64_t stride, const T* bias,
                         Accumulator<T> logit_scale, Accumulator<T> softcap, void* stream) {
  if (count == 0 || vocab == 0 || (!bias && softcap == Accumulator<T>(0))) return cudaSuccess;
  finish_kernel<T, L><<<static_cast<unsigned>(count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      logits, vocab, stride, bias, logit_scale, softcap);
  return cudaGetLastError();
}

template <class L, class O>
int launch_head_gradient(const LogitRows<L>& rows, int64_t count, const TokenStats<Accumulator<L>>& stats,
                         const Accumulator<L>* grad_logprobs, const Accumulator<L>* grad_entropy,
                         const Accumulator<L>* scale, Accumulator<L> softcap, const int32_t* slots, O* gradients,
                         int64_t gradient_stride, void* stream) {
  if (count == 0 || rows.vocab == 0) return cudaSuccess;
  head_gradient_kernel<L, O><<<static_cast<unsigned>(count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      rows, stats, grad_logprobs, grad_entropy, scale, softcap, slots, gradients, gradient_stride);
  return cudaGetLastError();
}

template <class A>
int launch_select_rows(const int64_t* tokens, const bool* mask, const A* grad_logprobs, const A* grad_entropy,
                       int64_t count, const RowSelection& selection, void* stream) {
  select_kernel<A><<<1, kSelectThreads, 0, static_cast<cudaStream_t>(stream)>>>(tokens, mask, grad_logprobs,
                                                                                grad_entropy, count, selection);
  return cudaGetLastError();
}

template <class O>
int launch_move_rows(O* gradients, int64_t vocab, int64_t stride, const RowSelection& selection, int64_t moved,
                     void* stream) {
  if (moved == 0 || vocab == 0) return cudaSuccess;
  // The rows of the workspace are padded to whole packs, and the padding is moved, too.
  const int64_t width = std::min(stride, (vocab + Pack<O>::kCount - 1) / Pack<O>::kCount * Pack<O>::kCount);
  with_unit<O>(width, stride, gradients, gradients, [&](auto unit, int64_t units, int64_t unit_stride) {
    using Unit = decltype(unit);
    move_kernel<Unit><<<static_cast<unsigned>(moved), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        reinterpret_cast<Unit*>(gradients), units, unit_stride, selection.holes, selection.movers,
        selection.numbers + 1);
  });
  return cudaGetLastError();
}

template <class O>
int launch_add_columns(const O* gradients, int64_t count, int64_t vocab, int64_t stride, Accumulator<O> factor,
                       const Accumulator<O>* device_factor, Accumulator<O>* sum, void* stream) {
  if (vocab == 0) return cudaSuccess;
  columns_kernel<O><<<blocks_for(vocab, kColumns), kColumns, 0, static_cast<cudaStream_t>(stream)>>>(
      gradients, count, vocab, stride, factor, device_factor, sum);
  return cudaGetLastError();
}

template <class V, class T>
int launch_scale(const V* values, int64_t count, const Accumulator<T>* factor, T* out, void* stream) {
  if (count == 0) return cudaSuccess;
  const bool wide = reinterpret_cast<uintptr_t>(values) % 16 == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0;
  const int64_t each = static_cast<int64_t>(kThreads) * kUnroll * (wide ? Pack<V>::kCount : 1);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((count + each - 1) / each, int64_t{1} << 20));
  scale_kernel<V, T><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(values, count, factor, out, wide);
  return cudaGetLastError();
}

int launch_gradient_scale(const int64_t* tokens, const float* grad_logprobs, const float* grad_entropy, int64_t count,
                          float logit_scale, float* numbers, void* stream) {
  gradient_scale_kernel<<<1, kSelectThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      tokens, grad_logprobs, grad_entropy, count, logit_scale, numbers);
  return cudaGetLastError();
}

#define KC_INSTANTIATE_LOGITS(T, L)                                                                                \
  template int launch_finish_logits<T, L>(L*, int64_t, int64_t, int64_t, const T*, Accumulator<T>, Accumulator<T>, \
                                          void*);                                                                  \
  template int launch_head_gradient<L, T>(const LogitRows<L>&, int64_t, const TokenStats<Accumulator<L>>&,         \
                                          const Accumulator<L>*, const Accumulator<L>*, const Accumulator<L>*,     \
                                          Accumulator<L>, const int32_t*, T*, int64_t, void*);
#define KC_INSTANTIATE(T)                                                                                        \
  KC_INSTANTIATE_LOGITS(T, T)                                                                                    \
  template int launch_gather_rows<T>(const T*, int64_t, const int64_t*, const bool*, int64_t, T*, void*);        \
  template int launch_scatter_rows<T>(const T*, int64_t, const int64_t*, int64_t, T*, void*);                    \
  template int launch_move_rows<T>(T*, int64_t, int64_t, const RowSelection&, int64_t, void*);                   \
  template int launch_add_columns<T>(const T*, int64_t, int64_t, int64_t, Accumulator<T>, const Accumulator<T>*, \
                                     Accumulator<T>*, void*);
KC_INSTANTIATE(float)
KC_INSTANTIATE(double)
KC_INSTANTIATE(BFloat16)
KC_INSTANTIATE(Float16)
template int launch_scale<float, BFloat16>(const float*, int64_t, const float*, BFloat16*, void*);
template int launch_scale<float, Float16>(const float*, int64_t, const float*, Float16*, void*);
template int launch_scale<float, float>(const float*, int64_t, const float*, float*, void*);
template int launch_scale<double, double>(const double*, int64_t, const double*, double*, void*);
template int launch_scale<BFloat16, BFloat16>(const BFloat16*, int64_t, const float*, BFloat16*, void*);
template int launch_scale<Float16, Float16>(const Float16*, int64_t, const float*, Float16*, void*);
KC_INSTANTIATE_LOGITS(BFloat16, float)
KC_INSTANTIATE_LOGITS(Float16, float)
template int launch_select_rows<float>(const int64_t*, const bool*, const float*, const float*, int64_t,
                                       const RowSelection&, void*);
template int launch_select_rows<double>(const int64_t*, const bool*, const double*, const double*, int64_t,
                                        const RowSelection&, void*);
#undef KC_INSTANTIATE
#undef KC_INSTANTIATE_LOGITS

}  // namespace kc
