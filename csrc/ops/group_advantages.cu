// One warp for each group. Lane k has rewards k, k + 32, ...; there are a few sweeps over them, as on the CPU: groups
// are small and their rewards are in the cache, so a sweep takes little time compared with the launch. For modes with
// statistics over the batch, one block computes these first. Sums use a fixed tree, so the bits are the same every
// time.
#include "ops/group_advantages.cuh"

namespace kc {
namespace {

constexpr int kWarpsPerBlock = 4;
constexpr int kBatchWarps = 32;

// Sum over the block, the same in every thread.
template <typename V>
__device__ V block_sum(V value) {
  __shared__ V sums[kBatchWarps];
  value = warp_sum(value);
  __syncthreads();  // until then the sums of the last call may still be read
  if (threadIdx.x == 0) sums[threadIdx.y] = value;
  __syncthreads();
  V total = 0;
  for (int w = 0; w < kBatchWarps; ++w) total += sums[w];
  return total;
}

// For one block: calls visit(value, weight) for every reward in the batch's statistics.
template <typename T, typename Visit>
__device__ void for_batch_values(const RewardGroups<T>& groups, const AdvantageSpec& spec, const Visit& visit) {
  for (int64_t g = threadIdx.y; g < groups.num_groups; g += kBatchWarps) {
    const GroupMembers<T> group = groups.members(g);
    const RewardStats stats = warp_stats(group);
    if (left_out_of_batch(stats, spec)) continue;
    for_scored(group, [&](int64_t i, double r) { visit(batch_value(r, stats, spec), groups.length(i)); });
  }
}

template <typename T>
__global__ void __launch_bounds__(kWarp* kBatchWarps)
    batch_stats_kernel(RewardGroups<T> groups, AdvantageSpec spec, RewardStats* batch) {
  long long count = 0;
  double sum = 0, rest = 0, squares = 0;
  for_batch_values(groups, spec, [&](double value, int64_t weight) {
    count += weight;
    sum += static_cast<double>(weight) * value;
  });
  RewardStats stats;
  stats.count = block_sum(count);
  const double total = block_sum(sum);
  if (stats.count > 0) {
    // The first mean is the anchor for the second.
    const double anchor = total / static_cast<double>(stats.count);
    for_batch_values(groups, spec,
                     [&](double value, int64_t weight) { rest += static_cast<double>(weight) * (value - anchor); });
    stats.mean = anchor + block_sum(rest) / static_cast<double>(stats.count);
    for_batch_values(groups, spec, [&](double value, int64_t weight) {
      squares += static_cast<double>(weight) * (value - stats.mean) * (value - stats.mean);
    });
    stats.squares = block_sum(squares);
  }
  if (threadIdx.x == 0 && threadIdx.y == 0) *batch = stats;
}

template <typename T>
__global__ void group_advantages_kernel(RewardGroups<T> groups, AdvantageSpec spec, const RewardStats* batch,
                                        T* __restrict__ advantages) {
  const int64_t g = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.y;
  if (g >= groups.num_groups) return;  // the same for the whole warp
  const GroupMembers<T> group = groups.members(g);
  const RewardStats stats = warp_stats(group);
  const RewardStats over_batch = uses_batch(spec.mode) ? *batch : RewardStats{};
  for (int64_t i = group.begin + threadIdx.x; i < group.end; i += kWarp)
    advantages[group.index(i)] = static_cast<T>(member_advantage(group, i, stats, over_batch, spec));
}

}  // namespace

template <typename T>
int launch_group_advantages(const RewardGroups<T>& groups, const AdvantageSpec& spec, RewardStats* batch, T* advantages,
                            void* stream) {
  if (groups.num_groups == 0) return cudaSuccess;
  const auto on = static_cast<cudaStream_t>(stream);
  if (uses_batch(spec.mode)) {
    batch_stats_kernel<T><<<1, dim3(kWarp, kBatchWarps), 0, on>>>(groups, spec, batch);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  const auto blocks = static_cast<unsigned>((groups.num_groups + kWarpsPerBlock - 1) / kWarpsPerBlock);
  group_advantages_kernel<T><<<blocks, dim3(kWarp, kWarpsPerBlock), 0, on>>>(groups, spec, batch, advantages);
  return cudaGetLastError();
}

template int launch_group_advantages<float>(const RewardGroups<float>&, const AdvantageSpec&, RewardStats*, float*,
                                            void*);
template int launch_group_advantages<double>(const RewardGroups<double>&, const AdvantageSpec&, RewardStats*, double*,
                                             void*);

}  // namespace kc
