#include "ops/group_advantages.h"

namespace kc {
namespace {

template <typename T>
RewardStats group_stats(const RewardGroups<T>& groups, int64_t g) {
  return others(groups, g, /*left_out=*/-1);
}

// visit(value, weight) for every reward that has a part in the batch's statistics.
template <typename T, typename Visit>
void for_batch_values(const RewardGroups<T>& groups, const AdvantageSpec& spec, const Visit& visit) {
  for (int64_t g = 0; g < groups.num_groups; ++g) {
    const RewardStats stats = group_stats(groups, g);
    if (left_out_of_batch(stats, spec)) continue;
    for (int64_t i = groups.offsets[g]; i < groups.offsets[g + 1]; ++i) {
      const double r = groups.reward(i);
      if (is_scored(r)) visit(batch_value(r, stats, spec), groups.length(i));
    }
  }
}

}  // namespace

template <typename T>
RewardStats batch_stats_cpu(const RewardGroups<T>& groups, const AdvantageSpec& spec) {
  RewardStats stats;
  if (!uses_batch(spec.mode)) return stats;
  double anchor = 0, sum = 0;
  for_batch_values(groups, spec, [&](double value, int64_t weight) {
    if (stats.count == 0) anchor = value;
    stats.count += weight;
    sum += static_cast<double>(weight) * (value - anchor);
  });
  if (stats.count == 0) return stats;
  stats.mean = anchor + sum / static_cast<double>(stats.count);
  for_batch_values(groups, spec, [&](double value, int64_t weight) {
    stats.squares += static_cast<double>(weight) * (value - stats.mean) * (value - stats.mean);
  });
  return stats;
}

template <typename T>
void group_advantages_cpu(const RewardGroups<T>& groups, const AdvantageSpec& spec, const RewardStats& batch,
                          T* advantages, int64_t begin, int64_t end) {
  for (int64_t g = begin; g < end; ++g) {
    const RewardStats stats = group_stats(groups, g);
    for (int64_t i = groups.offsets[g]; i < groups.offsets[g + 1]; ++i) {
      const double r = groups.reward(i);
      double advantage = unscored_advantage(r);
      if (is_scored(r)) {
        const RewardStats spread = spec.mode == AdvantageMode::loo_std ? others(groups, g, i)
                                   : uses_batch(spec.mode)             ? batch
                                                                       : stats;
        advantage = group_advantage(r, stats, spread, spec);
      }
      advantages[groups.index(i)] = static_cast<T>(advantage);
    }
  }
}

template RewardStats batch_stats_cpu<float>(const RewardGroups<float>&, const AdvantageSpec&);
template RewardStats batch_stats_cpu<double>(const RewardGroups<double>&, const AdvantageSpec&);
template void group_advantages_cpu<float>(const RewardGroups<float>&, const AdvantageSpec&, const RewardStats&, float*,
                                          int64_t, int64_t);
template void group_advantages_cpu<double>(const RewardGroups<double>&, const AdvantageSpec&, const RewardStats&,
                                           double*, int64_t, int64_t);

}  // namespace kc
