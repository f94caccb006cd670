// One warp a group. Lane k takes rewards k, k + 32, ...; three sweeps (mean, squares, result), as on the CPU; group
// sizes are small and the rewards lie in cache, so a sweep costs nothing beside the launch. Warp sums run in a fixed
// tree: the same bits every time.
#include <cuda_runtime.h>

#include "ops/group_advantages.h"

namespace kc {
namespace {

constexpr int kWarp = 32;
constexpr int kWarpsPerBlock = 4;

template <typename V>
__device__ V warp_sum(V value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

template <typename T>
__global__ void group_advantages_kernel(const T* __restrict__ rewards, const int64_t* __restrict__ order,
                                        const int64_t* __restrict__ offsets, T* __restrict__ advantages,
                                        AdvantageSpec spec, int64_t num_groups) {
  const int64_t g = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.y;
  if (g >= num_groups) return;  // the whole warp leaves together
  const int64_t begin = offsets[g], end = offsets[g + 1];
  const auto index = [&](int64_t i) { return order ? order[i] : i; };

  double sum = 0;
  long long count = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kWarp) {
    const double r = static_cast<double>(rewards[index(i)]);
    if (!isnan(r)) sum += r, ++count;
  }
  GroupStats stats;
  stats.count = warp_sum(count);
  stats.mean = stats.count ? warp_sum(sum) / static_cast<double>(stats.count) : 0.0;
  double squares = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kWarp) {
    const double r = static_cast<double>(rewards[index(i)]);
    if (!isnan(r)) squares += (r - stats.mean) * (r - stats.mean);
  }
  stats.squares = warp_sum(squares);
  for (int64_t i = begin + threadIdx.x; i < end; i += kWarp) {
    const double r = static_cast<double>(rewards[index(i)]);
    advantages[index(i)] = isnan(r) ? T(0) : static_cast<T>(group_advantage(r, stats, spec));
  }
}

}  // namespace

template <typename T>
int launch_group_advantages(const T* rewards, const int64_t* order, const int64_t* offsets, T* advantages,
                            const AdvantageSpec& spec, int64_t num_groups, void* stream) {
  if (num_groups == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((num_groups + kWarpsPerBlock - 1) / kWarpsPerBlock);
  group_advantages_kernel<T><<<blocks, dim3(kWarp, kWarpsPerBlock), 0, static_cast<cudaStream_t>(stream)>>>(
      rewards, order, offsets, advantages, spec, num_groups);
  return cudaGetLastError();
}

template int launch_group_advantages<float>(const float*, const int64_t*, const int64_t*, float*, const AdvantageSpec&,
                                            int64_t, void*);
template int launch_group_advantages<double>(const double*, const int64_t*, const int64_t*, double*,
                                             const AdvantageSpec&, int64_t, void*);

}  // namespace kc
