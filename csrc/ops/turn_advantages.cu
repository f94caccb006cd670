// One block a group. A thread takes the returns of a rollout, backwards; then a warp takes turn k of all rollouts of
// the group, the next warp turn k + 1, ..., or the first warp takes all turns together where they are compared. Returns
// pass through memory, which the block's own barrier orders. Sums run in a fixed tree: the same bits every time.
#include "ops/group_advantages.cuh"
#include "ops/turn_advantages.h"

namespace kc {
namespace {

constexpr int kWarpsPerGroup = 8;

template <typename T>
__global__ void __launch_bounds__(kWarp* kWarpsPerGroup)
    turn_advantages_kernel(const T* rewards, RolloutGroups rollouts, TurnAdvantageSpec spec, double* returns,
                           T* advantages) {
  const int64_t g = blockIdx.x;
  const int64_t begin = rollouts.offsets[g], end = rollouts.offsets[g + 1];
  if (begin == end) return;  // the whole block leaves together
  for (int64_t i = begin + threadIdx.y * kWarp + threadIdx.x; i < end; i += kWarp * kWarpsPerGroup)
    fill_returns(rewards, rollouts, i, spec.gamma, returns);
  double most = 0;  // every warp counts for itself
  for (int64_t i = begin + threadIdx.x; i < end; i += kWarp)
    most = fmax(most, static_cast<double>(rollouts.end_turn(i) - rollouts.first_turn(i)));
  const int64_t longest = static_cast<int64_t>(warp_max(most));
  __syncthreads();
  for (int64_t k = threadIdx.y; k < num_compared(longest, spec.pooled); k += kWarpsPerGroup) {
    const ComparedTurns turns = compared_turns(returns, rollouts, g, k, longest, spec.pooled);
    const RewardStats stats = warp_stats(turns);
    for (int64_t i = turns.begin + threadIdx.x; i < turns.end; i += kWarp)
      if (const int64_t turn = turns.index(i); turn >= 0)
        advantages[turn] = static_cast<T>(member_advantage(turns, i, stats, RewardStats{}, spec.advantage));
  }
}

}  // namespace

template <typename T>
int launch_turn_advantages(const T* rewards, const RolloutGroups& rollouts, const TurnAdvantageSpec& spec,
                           double* returns, T* advantages, void* stream) {
  if (rollouts.num_groups == 0) return cudaSuccess;
  turn_advantages_kernel<T><<<static_cast<unsigned>(rollouts.num_groups), dim3(kWarp, kWarpsPerGroup), 0,
                              static_cast<cudaStream_t>(stream)>>>(rewards, rollouts, spec, returns, advantages);
  return cudaGetLastError();
}

template int launch_turn_advantages<float>(const float*, const RolloutGroups&, const TurnAdvantageSpec&, double*,
                                           float*, void*);
template int launch_turn_advantages<double>(const double*, const RolloutGroups&, const TurnAdvantageSpec&, double*,
                                            double*, void*);

}  // namespace kc
