#include "ops/group_advantages.h"

namespace kc {
namespace {

// Calls visit(value, weight) for every reward in the batch's statistics.
template <typename T, typename Visit>
void for_batch_values(const RewardGroups<T>& groups, const AdvantageSpec& spec, const Visit& visit) {
  for (int64_t g = 0; g < groups.num_groups; ++g) {
    const GroupMembers<T> group = groups.members(g);
    const RewardStats stats = others(group, /*left_out=*/-1);
    if (left_out_of_batch(stats, spec)) continue;
    for (int64_t i = group.begin; i < group.end; ++i) {
      const double r = group.reward(i);
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
    const GroupMembers<T> group = groups.members(g);
    const RewardStats stats = others(group, /*left_out=*/-1);
    for (int64_t i = group.begin; i < group.end; ++i)
      advantages[group.index(i)] = static_cast<T>(member_advantage(group, i, stats, batch, spec));
  }
}

template RewardStats batch_stats_cpu<float>(const RewardGroups<float>&, const AdvantageSpec&);
template RewardStats batch_stats_cpu<double>(const RewardGroups<double>&, const AdvantageSpec&);
template void group_advantages_cpu<float>(const RewardGroups<float>&, const AdvantageSpec&, const RewardStats&, float*,
                                          int64_t, int64_t);
template void group_advantages_cpu<double>(const RewardGroups<double>&, const AdvantageSpec&, const RewardStats&,
                                           double*, int64_t, int64_t);

}  // namespace kc
