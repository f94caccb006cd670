// One block for each group. A thread computes the returns of a rollout, from the last turn to the first; then a warp
// handles turn k of all rollouts of the group, the next warp turn k + 1, and so on, or the first warp handles all turns
// if these are compared with each other. Returns are passed through memory, with a barrier of the block. Sums use a
// fixed tree, so the bits are the same every time.
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
  if (begin == end) return;  // the same for the whole block
  for (int64_t i = begin + threadIdx.y * kWarp + threadIdx.x; i < end; i += kWarp * kWarpsPerGroup)
    fill_returns(rewards, rollouts, i, spec.gamma, returns);
  double most = 0;  // each warp computes this itself
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
