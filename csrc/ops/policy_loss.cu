// One block for each sequence if the loss depends on sequences, then one thread for each token. Sums use fixed trees,
// over a number of blocks that depends only on the number of tokens.
#include "ops/policy_loss.cuh"

#include <cuda_runtime.h>

#include <algorithm>

#include "common/dependent_launch.cuh"

namespace kc {
namespace {

constexpr int kWarp = 32;
constexpr int kSequenceThreads = 512;
constexpr int kTokenThreads = 128;
constexpr int64_t kMostSequenceBlocks = 65535;

struct Span {
  int64_t begin, end;
};

template <class T>
__device__ Span span_of(const PolicyLossArgs<T>& args, int64_t s) {
  if (!args.cu_seqlens && args.sequence_length > 0) return {s * args.sequence_length, (s + 1) * args.sequence_length};
  if (!args.cu_seqlens) return {0, args.tokens};
  // These numbers are not checked, so they are limited to the tensors.
  const int64_t begin = max(args.cu_seqlens[s], int64_t{0});
  return {begin, min(args.cu_seqlens[s + 1], args.tokens)};
}

template <class V, class Join>
__device__ V block_join(V value, V nothing, V* room, const Join& join) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    value = join(value, __shfl_xor_sync(0xffffffffu, value, offset));
  const int warp = static_cast<int>(threadIdx.x) / kWarp, warps = static_cast<int>(blockDim.x) / kWarp;
  __syncthreads();  // what the last call left has been read
  if (threadIdx.x % kWarp == 0) room[warp] = value;
  __syncthreads();
  value = nothing;
  for (int w = 0; w < warps; ++w) value = join(value, room[w]);
  return value;
}

// The same in every thread of the block.
template <class V>
__device__ V block_sum(V value) {
  __shared__ V room[kWarp];
  return block_join(value, V(0), room, [](V a, V b) { return a + b; });
}
__device__ double block_min(double value) {
  __shared__ double room[kWarp];
  return block_join(value, kUnbounded, room, [](double a, double b) { return b < a ? b : a; });
}

template <class T>
__global__ void __launch_bounds__(kSequenceThreads) count_kernel(PolicyLossArgs<T> args, PolicyLossScratch scratch) {
  let_next_kernel_start();
  for (int64_t s = blockIdx.x; s < args.sequences; s += gridDim.x) {
    const Span span = span_of(args, s);
    long long length = 0;
    for (int64_t t = span.begin + threadIdx.x; t < span.end; t += kSequenceThreads) {
      scratch.sequence_of[t] = static_cast<int32_t>(s);
      length += !args.mask || args.mask[t];
    }
    length = block_sum(length);
    if (threadIdx.x != 0) continue;
    scratch.lengths[s] = length;
    // These are integers, so every order gives the same sum.
    if (length > 0) {
      atomicAdd(&scratch.counts[0], static_cast<unsigned long long>(length));
      atomicAdd(&scratch.counts[1], 1ull);
    }
  }
}

// The state of sequences [first, last) and, if tokens are coupled, the sum of their grad_shared.
template <class T>
__global__ void __launch_bounds__(kSequenceThreads)
    sequence_kernel(PolicyLossArgs<T> args, LossSpec spec, PolicyLossScratch scratch, int64_t first, int64_t last) {
  for (int64_t s = first + blockIdx.x; s < last; s += gridDim.x) {
    const Span span = span_of(args, s);
    const auto for_tokens = [&](const auto& visit) {
      for (int64_t t = span.begin + threadIdx.x; t < span.end; t += kSequenceThreads)
        if (!args.mask || args.mask[t]) visit(load_token<double>(args, spec, t, s));
    };
    SequenceSums<double> sums;
    for_tokens([&](const LossToken<double>& token) { add_token(sums, spec, token); });
    sums.tokens = block_sum(static_cast<long long>(sums.tokens));
    sums.log_ratio = block_sum(sums.log_ratio);
    sums.mismatch = block_sum(sums.mismatch);
    sums.drift = block_sum(sums.drift);
    sums.least_mismatch = block_min(sums.least_mismatch);
    const SequenceState<double> state = finish_sequence(spec, sums);
    double shared = 0;
    if (couples_tokens(spec)) {
      for_tokens([&](const LossToken<double>& token) { shared += token_terms(spec, token, state).grad_shared; });
      shared = block_sum(shared);
    }
    if (threadIdx.x == 0) {
      scratch.states[s] = state;
      scratch.shared[s] = shared;
    }
  }
}

// The loss and gradient of an unmasked token; if the spec depends on sequences, its sequence must have been summed.
template <class T>
struct WeighedToken {
  LossToken<double> token;
  TokenTerms<double> terms;
  double weight, by_logprob;

  __device__ WeighedToken(const PolicyLossArgs<T>& args, const LossSpec& spec, const PolicyLossScratch& scratch,
                          int64_t t, bool has_states) {
    const int64_t s = scratch.sequence_of[t];
    const SequenceState<double> state = has_states ? scratch.states[s] : SequenceState<double>{};
    const double shared = has_states ? scratch.shared[s] : 0.0;
    weight = weight_on_device(args, spec, scratch, s);
    token = load_token<double>(args, spec, t, s);
    terms = token_terms(spec, token, state);
    by_logprob = weight * (terms.grad_own + terms.share * shared);
  }
};

template <class T>
__global__ void __launch_bounds__(kTokenThreads)
    gradient_kernel(PolicyLossArgs<T> args, LossSpec spec, PolicyLossScratch scratch, const int64_t* tokens,
                    int64_t count, T* grad_logprobs, T* grad_entropy, bool has_states) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kTokenThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t t = tokens[i];
  T by_logprob = 0, by_entropy = 0;
  if (!args.mask || args.mask[t]) {
    const WeighedToken<T> one(args, spec, scratch, t, has_states);
    by_logprob = static_cast<T>(one.by_logprob);
    by_entropy = static_cast<T>(one.weight * one.terms.grad_entropy);
  }
  grad_logprobs[t] = by_logprob;
  if (grad_entropy) grad_entropy[t] = by_entropy;
}

// Block b handles tokens [b chunk, (b + 1) chunk).
template <class T>
__global__ void __launch_bounds__(kTokenThreads)
    token_kernel(PolicyLossArgs<T> args, LossSpec spec, PolicyLossScratch scratch, PolicyLossDeviceResult<T> result,
                 int64_t chunk, bool has_states) {
  double sums[kLossMetrics] = {};
  const int64_t begin = blockIdx.x * chunk, end = min(begin + chunk, args.tokens);
  for (int64_t t = begin + threadIdx.x; t < end; t += kTokenThreads) {
    if (args.mask && !args.mask[t]) {
      result.grad_logprobs[t] = T(0);
      if (result.grad_entropy) result.grad_entropy[t] = T(0);
      continue;
    }
    const WeighedToken<T> one(args, spec, scratch, t, has_states);
    const double weight = one.weight, gradient = one.by_logprob;
    result.grad_logprobs[t] = static_cast<T>(gradient);
    if (result.grad_entropy) result.grad_entropy[t] = static_cast<T>(weight * one.terms.grad_entropy);
    double values[kLossMetrics];
    token_metrics<T>(values, one.token, one.terms, weight, gradient);
#pragma unroll
    for (int m = 0; m < kLossMetrics; ++m) sums[m] += values[m];
  }
  __shared__ double room[kTokenThreads / kWarp][kLossMetrics];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int m = 0; m < kLossMetrics; ++m) {
    double value = sums[m];
    for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    if (threadIdx.x % kWarp == 0) room[warp][m] = value;
  }
  __syncthreads();
  for (int m = static_cast<int>(threadIdx.x); m < kLossMetrics; m += kTokenThreads) {
    double value = 0;
    for (int w = 0; w < kTokenThreads / kWarp; ++w) value += room[w][m];
    scratch.partials[blockIdx.x * kLossMetrics + m] = value;
  }
}

// One block, warp m for metric m.
template <class T>
__global__ void __launch_bounds__(kWarp* kLossMetrics)
    total_kernel(PolicyLossScratch scratch, PolicyLossDeviceResult<T> result, int blocks, int64_t sequences,
                 bool has_states) {
  __shared__ double totals[kLossMetrics];
  const int m = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  double value = 0;
  if (m == static_cast<int>(LossMetric::vetoed_sequences)) {
    for (int64_t s = lane; has_states && s < sequences; s += kWarp)
      value += scratch.lengths[s] > 0 && scratch.states[s].vetoed;
  } else {
    for (int b = lane; b < blocks; b += kWarp) value += scratch.partials[b * kLossMetrics + m];
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  if (lane == 0) totals[m] = value;
  __syncthreads();
  if (threadIdx.x != 0) return;
  write_totals(totals, scratch, result);
}
static_assert(kWarp * kLossMetrics <= 1024);

unsigned sequence_blocks(int64_t sequences) {
  return static_cast<unsigned>(std::min(sequences, kMostSequenceBlocks));
}

template <class T>
cudaError_t launch_sequences(const PolicyLossArgs<T>& args, const LossSpec& spec, const PolicyLossScratch& scratch,
                             int64_t first, int64_t last, cudaStream_t on) {
  sequence_kernel<T><<<sequence_blocks(last - first), kSequenceThreads, 0, on>>>(args, spec, scratch, first, last);
  return cudaGetLastError();
}

}  // namespace

template <class T>
int launch_count_sequences(const PolicyLossArgs<T>& args, const PolicyLossScratch& scratch, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (const cudaError_t error = cudaMemsetAsync(scratch.counts, 0, PolicyLossScratch::cleared_bytes(args.tokens), on))
    return error;
  if (args.sequences == 0) return cudaSuccess;
  count_kernel<T><<<sequence_blocks(args.sequences), kSequenceThreads, 0, on>>>(args, scratch);
  return cudaGetLastError();
}

template <class T>
int launch_policy_loss(const PolicyLossArgs<T>& args, const LossSpec& spec, const PolicyLossScratch& scratch,
                       const PolicyLossDeviceResult<T>& result, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const bool has_states = !splits_sequences(spec) && args.sequences > 0;
  if (has_states)
    if (const cudaError_t error = launch_sequences(args, spec, scratch, 0, args.sequences, on)) return error;
  const int64_t groups = (args.tokens + kTokenThreads - 1) / kTokenThreads;
  const int64_t chunk = kTokenThreads * ((groups + PolicyLossScratch::kPartials - 1) / PolicyLossScratch::kPartials);
  const auto blocks = args.tokens == 0 ? 0 : static_cast<int>((args.tokens + chunk - 1) / chunk);
  if (blocks > 0) {
    token_kernel<T>
        <<<static_cast<unsigned>(blocks), kTokenThreads, 0, on>>>(args, spec, scratch, result, chunk, has_states);
    if (const cudaError_t error = cudaGetLastError()) return error;
  }
  total_kernel<T><<<1, kWarp * kLossMetrics, 0, on>>>(scratch, result, blocks, args.sequences, has_states);
  return cudaGetLastError();
}

template <class T>
int launch_loss_gradient(const PolicyLossArgs<T>& args, const LossSpec& spec, const PolicyLossScratch& scratch,
                         SequenceRange sequences, bool sums_sequences, const int64_t* tokens, int64_t count,
                         T* grad_logprobs, T* grad_entropy, void* stream) {
  if (count == 0) return cudaSuccess;
  const auto on = static_cast<cudaStream_t>(stream);
  const bool has_states = !splits_sequences(spec) && sequences.first < sequences.last;
  if (has_states && sums_sequences)
    if (const cudaError_t error = launch_sequences(args, spec, scratch, sequences.first, sequences.last, on))
      return error;
  const auto blocks = static_cast<unsigned>((count + kTokenThreads - 1) / kTokenThreads);
  gradient_kernel<T>
      <<<blocks, kTokenThreads, 0, on>>>(args, spec, scratch, tokens, count, grad_logprobs, grad_entropy, has_states);
  return cudaGetLastError();
}

#define KC_INSTANTIATE(T)                                                                                   \
  template int launch_count_sequences<T>(const PolicyLossArgs<T>&, const PolicyLossScratch&, void*);        \
  template int launch_policy_loss<T>(const PolicyLossArgs<T>&, const LossSpec&, const PolicyLossScratch&,   \
                                     const PolicyLossDeviceResult<T>&, void*);                              \
  template int launch_loss_gradient<T>(const PolicyLossArgs<T>&, const LossSpec&, const PolicyLossScratch&, \
                                       SequenceRange, bool, const int64_t*, int64_t, T*, T*, void*);
KC_INSTANTIATE(float)
KC_INSTANTIATE(double)
#undef KC_INSTANTIATE

}  // namespace kc
