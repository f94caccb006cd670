// The statistics of a group, computed by one warp: lane k has members k, k + 32, ...; there are a few sweeps, as on the
// CPU.
#pragma once

#include <math.h>

#include "common/warp.cuh"
#include "ops/group_advantages.h"

namespace kc {

constexpr int kWarp = 32;

// visit(i, reward) for this lane's scored members of a group. threadIdx.x is the lane.
template <typename Members, typename Visit>
__device__ __forceinline__ void for_scored(const Members& group, const Visit& visit) {
  for (int64_t i = group.begin + threadIdx.x; i < group.end; i += kWarp) {
    const double r = group.reward(i);
    if (is_scored(r)) visit(i, r);
  }
}

// The result is the same in every lane. The anchor is the largest reward, which does not depend on the order of the
// lanes.
template <typename Members>
__device__ __forceinline__ RewardStats warp_stats(const Members& group) {
  RewardStats stats;
  long long count = 0;
  double anchor = -INFINITY, sum = 0, squares = 0;
  for_scored(group, [&](int64_t, double r) { anchor = fmax(anchor, r), ++count; });
  stats.count = warp_sum(count);
  if (stats.count == 0) return stats;
  anchor = warp_max(anchor);
  for_scored(group, [&](int64_t, double r) { sum += r - anchor; });
  stats.mean = anchor + warp_sum(sum) / static_cast<double>(stats.count);
  for_scored(group, [&](int64_t, double r) { squares += (r - stats.mean) * (r - stats.mean); });
  stats.squares = warp_sum(squares);
  return stats;
}

}  // namespace kc
