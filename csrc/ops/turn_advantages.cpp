#include "ops/turn_advantages.h"

#include <algorithm>

namespace kc {

template <typename T>
void turn_advantages_cpu(const T* rewards, const RolloutGroups& rollouts, const TurnAdvantageSpec& spec,
                         double* returns, T* advantages, int64_t begin, int64_t end) {
  for (int64_t g = begin; g < end; ++g) {
    int64_t longest = 0;
    for (int64_t i = rollouts.offsets[g]; i < rollouts.offsets[g + 1]; ++i) {
      fill_returns(rewards, rollouts, i, spec.gamma, returns);
      longest = std::max(longest, rollouts.end_turn(i) - rollouts.first_turn(i));
    }
    for (int64_t k = 0; k < num_compared(longest, spec.pooled); ++k) {
      const ComparedTurns turns = compared_turns(returns, rollouts, g, k, longest, spec.pooled);
      const RewardStats stats = others(turns, /*left_out=*/-1);
      for (int64_t i = turns.begin; i < turns.end; ++i)
        if (const int64_t turn = turns.index(i); turn >= 0)
          advantages[turn] = static_cast<T>(member_advantage(turns, i, stats, RewardStats{}, spec.advantage));
    }
  }
}

template void turn_advantages_cpu<float>(const float*, const RolloutGroups&, const TurnAdvantageSpec&, double*, float*,
                                         int64_t, int64_t);
template void turn_advantages_cpu<double>(const double*, const RolloutGroups&, const TurnAdvantageSpec&, double*,
                                          double*, int64_t, int64_t);

}  // namespace kc
