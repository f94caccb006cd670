// Group-relative advantages: each reward against the other rewards of its group.
//
// rewards[order[offsets[g]]] ... rewards[order[offsets[g + 1] - 1]] are group g; without an order the groups lie one
// after another. A NaN reward is unscored: it leaves every statistic, and its advantage is 0. Sums are taken in double.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/host_device.h"

namespace kc {

enum class AdvantageMode : int32_t { kGrpo, kDrGrpo, kRloo };

struct AdvantageSpec {
  AdvantageMode mode;
  double eps;             // added to the standard deviation
  bool population_std;    // divide by n instead of n - 1
  bool singleton_reward;  // a group of one keeps its reward as advantage; otherwise 0
};

struct GroupStats {
  int64_t count = 0;  // scored rewards
  double mean = 0;
  double squares = 0;  // sum of (r - mean)^2
};

KC_HOST_DEVICE double group_std(const GroupStats& stats, bool population) {
  const double degrees = static_cast<double>(population ? stats.count : stats.count - 1);
  return degrees > 0 ? sqrt(stats.squares / degrees) : 0.0;
}

// The advantage of one scored reward.
KC_HOST_DEVICE double group_advantage(double reward, const GroupStats& stats, const AdvantageSpec& spec) {
  if (stats.count == 1) return spec.singleton_reward ? reward : 0.0;
  const double centred = reward - stats.mean;
  switch (spec.mode) {
    case AdvantageMode::kGrpo:
      return centred / (group_std(stats, spec.population_std) + spec.eps);
    case AdvantageMode::kDrGrpo:
      return centred;
    // reward - mean of the others = n / (n - 1) * (reward - mean).
    case AdvantageMode::kRloo:
      return centred * static_cast<double>(stats.count) / static_cast<double>(stats.count - 1);
  }
  return 0.0;
}

// CPU: groups [begin, end). T is float or double.
template <typename T>
void group_advantages_cpu(const T* rewards,        // [num_rewards]
                          const int64_t* order,    // [num_rewards] or null
                          const int64_t* offsets,  // [num_groups + 1]
                          T* advantages,           // [num_rewards]
                          const AdvantageSpec& spec, int64_t begin, int64_t end);

// CUDA: every group, one warp each; returns a cudaError_t. The stream is a cudaStream_t.
template <typename T>
int launch_group_advantages(const T* rewards, const int64_t* order, const int64_t* offsets, T* advantages,
                            const AdvantageSpec& spec, int64_t num_groups, void* stream);

}  // namespace kc
