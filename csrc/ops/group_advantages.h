// Group-relative advantages: each reward against the other rewards of its group.
// A NaN reward is unscored: it is in no statistic, and its advantage is 0. An infinite reward is in no statistic
// either, so that it cannot spoil its group, and its own advantage is NaN, so that it is not taken for a good one (the
// CPU op refuses it before). Sums are in double and of differences to a reward of the group, so that a large common
// offset does not make the deviation inexact and equal rewards have deviation 0.
#pragma once

#include <math.h>

#include <cstdint>

#include "common/host_device.h"

namespace kc {

#define KC_ADVANTAGE_MODES(X) X(grpo) X(dr_grpo) X(batch) X(rloo) X(loo_std) X(reinforce_pp) X(maxrl)

#define KC_ENUMERATOR(name) name,
enum class AdvantageMode : int32_t { KC_ADVANTAGE_MODES(KC_ENUMERATOR) };
#undef KC_ENUMERATOR

struct AdvantageSpec {
  AdvantageMode mode;
  double eps;             // added to the standard deviation (reinforce_pp: to the variance)
  bool population_std;    // divide by n instead of n - 1
  bool singleton_reward;  // a group with one scored reward has no baseline; otherwise its advantage is 0
};

// Rewards that are compared with each other: entries [begin, end) of `order`, or of the rewards themselves without an
// order. The functions below accept any type with this interface; a NaN means that there is no reward.
template <typename T>
struct GroupMembers {
  const T* rewards;
  const int64_t* order;
  int64_t begin, end;

  KC_HOST_DEVICE int64_t index(int64_t i) const { return order ? order[i] : i; }
  KC_HOST_DEVICE double reward(int64_t i) const { return static_cast<double>(rewards[index(i)]); }
};

// Group g is entries [offsets[g], offsets[g + 1]).
template <typename T>
struct RewardGroups {
  const T* rewards;        // [num_rewards]
  const int64_t* order;    // [num_rewards] or null
  const int64_t* offsets;  // [num_groups + 1]
  const int64_t* lengths;  // [num_rewards], tokens of each, or null: 1 each. Only reinforce_pp weighs by them
  int64_t num_groups;

  KC_HOST_DEVICE int64_t index(int64_t i) const { return order ? order[i] : i; }
  KC_HOST_DEVICE GroupMembers<T> members(int64_t g) const { return {rewards, order, offsets[g], offsets[g + 1]}; }
  KC_HOST_DEVICE int64_t length(int64_t i) const { return lengths ? lengths[index(i)] : 1; }
};

struct RewardStats {
  int64_t count = 0;  // scored rewards (of the batch under reinforce_pp: their tokens)
  double mean = 0;
  double squares = 0;  // sum of (r - mean)^2
};

KC_HOST_DEVICE bool is_scored(double reward) {
  return reward - reward == 0;
}

KC_HOST_DEVICE double variance(const RewardStats& stats, bool population) {
  const double degrees = static_cast<double>(population ? stats.count : stats.count - 1);
  return degrees > 0 ? stats.squares / degrees : 0.0;
}

// Whether the mode divides by a deviation over the whole batch.
KC_HOST_DEVICE bool uses_batch(AdvantageMode mode) {
  return mode == AdvantageMode::batch || mode == AdvantageMode::reinforce_pp;
}

// The statistics of a group without its entry `left_out`. They are computed anew: subtracting one reward from the
// group's sum of squares would leave a rounding error if the others are all equal, and the mode divides by it.
template <typename Members>
KC_HOST_DEVICE RewardStats others(const Members& group, int64_t left_out) {
  RewardStats stats;
  double anchor = 0, sum = 0;
  for (int64_t i = group.begin; i < group.end; ++i) {
    const double r = group.reward(i);
    if (i == left_out || !is_scored(r)) continue;
    if (stats.count++ == 0) anchor = r;
    sum += r - anchor;
  }
  if (stats.count == 0) return stats;
  stats.mean = anchor + sum / static_cast<double>(stats.count);
  for (int64_t i = group.begin; i < group.end; ++i) {
    const double r = group.reward(i);
    if (i != left_out && is_scored(r)) stats.squares += (r - stats.mean) * (r - stats.mean);
  }
  return stats;
}

// A reward minus its group's mean. A group of one has no baseline: the result is the reward (unused with the zero
// policy).
KC_HOST_DEVICE double centred(double reward, const RewardStats& group) {
  return group.count == 1 ? reward : reward - group.mean;
}

KC_HOST_DEVICE bool left_out_of_batch(const RewardStats& group, const AdvantageSpec& spec) {
  return spec.mode == AdvantageMode::reinforce_pp && group.count == 1 && !spec.singleton_reward;
}

// The value of a scored reward in the batch's statistics: the reward itself, or its difference to its group's mean.
KC_HOST_DEVICE double batch_value(double reward, const RewardStats& group, const AdvantageSpec& spec) {
  return spec.mode == AdvantageMode::batch ? reward : centred(reward, group);
}

// The advantage of a scored reward. `spread` has the deviation: that of the group (grpo), of its other rewards
// (loo_std), or of the batch (batch, reinforce_pp).
KC_HOST_DEVICE double group_advantage(double reward, const RewardStats& group, const RewardStats& spread,
                                      const AdvantageSpec& spec) {
  const bool alone = group.count == 1;
  if (alone && !spec.singleton_reward) return 0.0;
  const double difference = centred(reward, group);
  if (alone && !uses_batch(spec.mode)) return difference;
  const double n = static_cast<double>(group.count);
  const double deviation = sqrt(variance(spread, spec.population_std));
  switch (spec.mode) {
    case AdvantageMode::grpo:
    case AdvantageMode::batch:
      return deviation + spec.eps > 0 ? difference / (deviation + spec.eps) : 0.0;
    case AdvantageMode::dr_grpo:
      return difference;
    case AdvantageMode::rloo:  // reward - mean of the others
      return difference * n / (n - 1);
    case AdvantageMode::loo_std: {
      const double from_others = reward - spread.mean;
      return deviation > 0 ? from_others / (deviation + spec.eps) : from_others;
    }
    case AdvantageMode::reinforce_pp: {
      const double scale = sqrt(variance(spread, spec.population_std) + spec.eps);
      return scale > 0 ? (difference - spread.mean) / scale : 0.0;
    }
    case AdvantageMode::maxrl:
      return group.mean > 0 ? difference / group.mean : 0.0;
  }
  return 0.0;
}

// The advantage of a reward that is not scored.
KC_HOST_DEVICE double unscored_advantage(double reward) {
  return reward != reward ? 0.0 : reward - reward;
}

// The advantage of entry i of a group. `batch` is read only if uses_batch(spec.mode).
template <typename Members>
KC_HOST_DEVICE double member_advantage(const Members& group, int64_t i, const RewardStats& stats,
                                       const RewardStats& batch, const AdvantageSpec& spec) {
  const double r = group.reward(i);
  if (!is_scored(r)) return unscored_advantage(r);
  const RewardStats spread = spec.mode == AdvantageMode::loo_std ? others(group, i)
                             : uses_batch(spec.mode)             ? batch
                                                                 : stats;
  return group_advantage(r, stats, spread, spec);
}

// CPU: the statistics over the batch; empty unless uses_batch(spec.mode). T is float or double.
template <typename T>
RewardStats batch_stats_cpu(const RewardGroups<T>& groups, const AdvantageSpec& spec);

// CPU: groups [begin, end).
template <typename T>
void group_advantages_cpu(const RewardGroups<T>& groups, const AdvantageSpec& spec, const RewardStats& batch,
                          T* advantages, int64_t begin, int64_t end);

// CUDA: everything, one warp a group; returns a cudaError_t. `batch` is room for one RewardStats on the device. The
// stream is a cudaStream_t.
template <typename T>
[[nodiscard]] int launch_group_advantages(const RewardGroups<T>& groups, const AdvantageSpec& spec, RewardStats* batch,
                                          T* advantages, void* stream);

}  // namespace kc
