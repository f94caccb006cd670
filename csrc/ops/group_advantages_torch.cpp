// Checks, allocation and registration; compiled once for the CPU library and once (KC_CUDA) for the CUDA library.
#include "ops/group_advantages_torch.h"
#include "common/tensors.h"

#include <torch/csrc/stable/library.h>

namespace kc {
namespace {

AdvantageMode parse_mode(const std::string& mode) {
#define KC_NAME(name) #name,
  return static_cast<AdvantageMode>(position_of_mode(mode, {KC_ADVANTAGE_MODES(KC_NAME)}));
#undef KC_NAME
}

template <typename T>
void check_values(const RewardGroups<T>& groups, int64_t num_rewards) {
  check_bound_values("offsets", groups.offsets, groups.num_groups, num_rewards, "rewards");
  check_order_values(groups.order, num_rewards, "rewards");
  check_reward_values(groups.rewards, num_rewards);
  for (int64_t i = 0; groups.lengths && i < num_rewards; ++i)
    check(groups.lengths[i] >= 0, "lengths must be at least 0; got ", groups.lengths[i], " at index ", i);
}

template <typename T>
void run(const RewardGroups<T>& groups, const AdvantageSpec& spec, const Tensor& rewards, const Tensor& advantages) {
  T* out = advantages.mutable_data_ptr<T>();
#ifdef KC_CUDA
  const CudaScope scope(rewards);
  static_assert(sizeof(RewardStats) == 3 * sizeof(double));
  const Tensor batch = fresh(rewards, {3}, ScalarType::Double);
  auto* stats = static_cast<RewardStats*>(batch.mutable_data_ptr());
  check_launch("group_advantages", launch_group_advantages<T>(groups, spec, stats, out, scope.stream()));
#else
  check_values(groups, rewards.size(0));
  const RewardStats batch = batch_stats_cpu(groups, spec);
  torch::stable::parallel_for(0, groups.num_groups, /*grain_size=*/1024, [&](int64_t begin, int64_t end) {
    group_advantages_cpu<T>(groups, spec, batch, out, begin, end);
  });
#endif
}

Tensor group_advantages(Tensor rewards, std::optional<Tensor> order, Tensor offsets, std::optional<Tensor> lengths,
                        std::string mode, double eps, std::string std, std::string singleton) {
  check_rewards(rewards);
  check_bounds("offsets", offsets, rewards);
  const AdvantageSpec spec = advantage_spec(parse_mode(mode), eps, std, singleton);
  check(!lengths || spec.mode == AdvantageMode::reinforce_pp,
        "lengths must be given for mode 'reinforce_pp' only; got '", mode, "'");
  check_numbers("order", order, rewards.size(0), "rewards", rewards);
  check_numbers("lengths", lengths, rewards.size(0), "rewards", rewards);
  const Tensor in = dense(rewards);
  const Tensor bounds = dense(offsets);
  const Tensor out = torch::stable::empty_like(in);
  const auto call = [&](auto zero) {
    using T = decltype(zero);
    run<T>({in.const_data_ptr<T>(), data_or_null(order), bounds.const_data_ptr<int64_t>(), data_or_null(lengths),
            bounds.size(0) - 1},
           spec, in, out);
  };
  if (in.scalar_type() == ScalarType::Float)
    call(float{});
  else
    call(double{});
  return out;
}

}  // namespace
}  // namespace kc

#ifdef KC_CUDA
STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CUDA, m) {
  m.impl("group_advantages", TORCH_BOX(&kc::group_advantages));
}
#else
STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CPU, m) {
  m.impl("group_advantages", TORCH_BOX(&kc::group_advantages));
}
#endif
