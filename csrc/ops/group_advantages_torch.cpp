// Checks, allocation and registration; compiled once for the CPU library and once (KC_CUDA) for the CUDA library.
#include "ops/group_advantages.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "common/checks.h"
#ifdef KC_CUDA
#include "common/cuda_torch.h"
#endif

namespace kc {
namespace {

AdvantageSpec parse_spec(const std::string& mode, double eps, const std::string& std, const std::string& singleton) {
#define KC_NAME(name) #name,
  static const std::vector<std::string> modes{KC_ADVANTAGE_MODES(KC_NAME)};
#undef KC_NAME
  const auto found = std::find(modes.begin(), modes.end(), mode);
  if (found == modes.end()) {
    std::string names;
    for (const std::string& name : modes) names += (names.empty() ? "" : ", ") + name;
    check(false, "mode must be one of ", names, "; got '", mode, "'");
  }
  check(eps >= 0, "eps must be at least 0; got ", eps);
  check(std == "sample" || std == "population", "std must be 'sample' or 'population'; got '", std, "'");
  check(singleton == "zero" || singleton == "reward", "singleton must be 'zero' or 'reward'; got '", singleton, "'");
  return {static_cast<AdvantageMode>(found - modes.begin()), eps, std == "population", singleton == "reward"};
}

// What can be checked only by reading the tensors, which on a GPU would mean to wait for it.
template <typename T>
void check_values(const RewardGroups<T>& groups, int64_t num_rewards) {
  const int64_t* offsets = groups.offsets;
  check(offsets[0] == 0 && offsets[groups.num_groups] == num_rewards,
        "offsets must go from 0 to the number of rewards, ", num_rewards, "; got ", offsets[0], " to ",
        offsets[groups.num_groups]);
  for (int64_t g = 0; g < groups.num_groups; ++g)
    check(offsets[g] <= offsets[g + 1], "offsets must not decrease; got ", offsets[g], " before ", offsets[g + 1]);
  for (int64_t i = 0; i < num_rewards; ++i) {
    check(groups.index(i) >= 0 && groups.index(i) < num_rewards, "order must hold indices of rewards; got ",
          groups.index(i), " for ", num_rewards, " rewards");
    check(!std::isinf(groups.rewards[i]), "rewards must be finite, or NaN for unscored; got ", groups.rewards[i],
          " at index ", i);
    check(!groups.lengths || groups.lengths[i] >= 0, "lengths must be at least 0; got ",
          groups.lengths ? groups.lengths[i] : 0, " at index ", i);
  }
}

template <typename T>
void run(const RewardGroups<T>& groups, const AdvantageSpec& spec, const Tensor& rewards, const Tensor& advantages) {
  T* out = advantages.mutable_data_ptr<T>();
#ifdef KC_CUDA
  const CudaScope scope(rewards);
  static_assert(sizeof(RewardStats) == 3 * sizeof(double));
  const Tensor batch = torch::stable::new_empty(rewards, {3}, ScalarType::Double);
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

const int64_t* data_or_null(const std::optional<Tensor>& tensor) {
  return tensor ? tensor->const_data_ptr<int64_t>() : nullptr;
}

Tensor group_advantages(Tensor rewards, std::optional<Tensor> order, Tensor offsets, std::optional<Tensor> lengths,
                        std::string mode, double eps, std::string std, std::string singleton) {
  check(rewards.dim() == 1, "rewards must be 1-D; got shape ", shape_of(rewards));
  const ScalarType type = rewards.scalar_type();
  check(type == ScalarType::Float || type == ScalarType::Double, "rewards must be float32 or float64; got ",
        name_of(type));
  check(offsets.dim() == 1 && offsets.size(0) >= 1, "offsets must be 1-D and not empty; got shape ", shape_of(offsets));
  check_dtype("offsets", offsets, ScalarType::Long);
  check_same_device("offsets", offsets, "rewards", rewards);
  const AdvantageSpec spec = parse_spec(mode, eps, std, singleton);
  check(!lengths || spec.mode == AdvantageMode::reinforce_pp,
        "lengths must be given for mode 'reinforce_pp' only; got '", mode, "'");
  const auto index_vector = [&](const char* name, std::optional<Tensor>& tensor) {
    if (!tensor) return;
    check_vector(name, *tensor, rewards.size(0), "rewards");
    check_dtype(name, *tensor, ScalarType::Long);
    check_same_device(name, *tensor, "rewards", rewards);
    tensor = torch::stable::contiguous(*tensor);
  };
  index_vector("order", order);
  index_vector("lengths", lengths);
  const Tensor in = torch::stable::contiguous(rewards);
  const Tensor bounds = torch::stable::contiguous(offsets);
  const Tensor out = torch::stable::empty_like(in);
  const auto call = [&](auto zero) {
    using T = decltype(zero);
    run<T>({in.const_data_ptr<T>(), data_or_null(order), bounds.const_data_ptr<int64_t>(), data_or_null(lengths),
            bounds.size(0) - 1},
           spec, in, out);
  };
  if (type == ScalarType::Float)
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
