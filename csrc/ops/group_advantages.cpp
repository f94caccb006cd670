#include "ops/group_advantages.h"

namespace kc {

template <typename T>
void group_advantages_cpu(const T* rewards, const int64_t* order, const int64_t* offsets, T* advantages,
                          const AdvantageSpec& spec, int64_t begin, int64_t end) {
  for (int64_t g = begin; g < end; ++g) {
    const auto index = [&](int64_t i) { return order ? order[i] : i; };
    GroupStats stats;
    double sum = 0;
    for (int64_t i = offsets[g]; i < offsets[g + 1]; ++i) {
      const double r = static_cast<double>(rewards[index(i)]);
      if (std::isnan(r)) continue;
      sum += r;
      ++stats.count;
    }
    stats.mean = stats.count ? sum / static_cast<double>(stats.count) : 0.0;
    // A second pass over the centred rewards: a large common offset must not swallow the spread.
    for (int64_t i = offsets[g]; i < offsets[g + 1]; ++i) {
      const double r = static_cast<double>(rewards[index(i)]);
      if (!std::isnan(r)) stats.squares += (r - stats.mean) * (r - stats.mean);
    }
    for (int64_t i = offsets[g]; i < offsets[g + 1]; ++i) {
      const double r = static_cast<double>(rewards[index(i)]);
      advantages[index(i)] = std::isnan(r) ? T(0) : static_cast<T>(group_advantage(r, stats, spec));
    }
  }
}

template void group_advantages_cpu<float>(const float*, const int64_t*, const int64_t*, float*, const AdvantageSpec&,
                                          int64_t, int64_t);
template void group_advantages_cpu<double>(const double*, const int64_t*, const int64_t*, double*, const AdvantageSpec&,
                                           int64_t, int64_t);

}  // namespace kc
