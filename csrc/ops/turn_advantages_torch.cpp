// Checks, allocation and registration; compiled once for the CPU library and once (KC_CUDA) for the CUDA library.
#include "common/tensors.h"
#include "ops/turn_advantages.h"

#include <torch/csrc/stable/library.h>

#include "ops/group_advantages_torch.h"

namespace kc {
namespace {

AdvantageMode parse_mode(const std::string& mode) {
#define KC_NAME(name, formula) #name,
#define KC_FORMULA(name, formula) AdvantageMode::formula,
  static constexpr AdvantageMode formulas[] = {KC_TURN_ADVANTAGE_MODES(KC_FORMULA)};
  return formulas[position_of_mode(mode, {KC_TURN_ADVANTAGE_MODES(KC_NAME)})];
#undef KC_FORMULA
#undef KC_NAME
}

TurnAdvantageSpec parse_spec(double gamma, const std::string& mode, const std::string& baseline, double eps,
                             const std::string& std, const std::string& singleton) {
  check(gamma >= 0 && std::isfinite(gamma), "gamma must be finite and at least 0; got ", gamma);
  const AdvantageSpec advantage = advantage_spec(parse_mode(mode), eps, std, singleton);
  check(baseline == "turn" || baseline == "group", "baseline must be 'turn' or 'group'; got '", baseline, "'");
  return {advantage, gamma, baseline == "group"};
}

template <typename T>
void run(const RolloutGroups& rollouts, int64_t num_rollouts, const TurnAdvantageSpec& spec, const Tensor& rewards,
         const Tensor& advantages) {
  const T* in = rewards.const_data_ptr<T>();
  T* out = advantages.mutable_data_ptr<T>();
  const Tensor scratch = fresh(rewards, {rollouts.num_turns}, ScalarType::Double);
  double* returns = scratch.mutable_data_ptr<double>();
#ifdef KC_CUDA
  static_cast<void>(num_rollouts);
  const CudaScope scope(rewards);
  check_launch("turn_advantages", launch_turn_advantages<T>(in, rollouts, spec, returns, out, scope.stream()));
#else
  check_bound_values("cu_turns", rollouts.cu_turns, num_rollouts, rollouts.num_turns, "rewards");
  check_bound_values("offsets", rollouts.offsets, rollouts.num_groups, num_rollouts, "rollouts");
  check_order_values(rollouts.order, num_rollouts, "rollouts");
  check_reward_values(in, rollouts.num_turns);
  torch::stable::parallel_for(0, rollouts.num_groups, /*grain_size=*/256, [&](int64_t begin, int64_t end) {
    turn_advantages_cpu<T>(in, rollouts, spec, returns, out, begin, end);
  });
#endif
}

Tensor turn_advantages(Tensor rewards, Tensor cu_turns, std::optional<Tensor> order, Tensor offsets, double gamma,
                       std::string mode, std::string baseline, double eps, std::string std, std::string singleton) {
  check_rewards(rewards);
  check_bounds("cu_turns", cu_turns, rewards);
  check_bounds("offsets", offsets, rewards);
  const int64_t num_rollouts = cu_turns.size(0) - 1;
  check_numbers("order", order, num_rollouts, "rollouts", rewards);
  const TurnAdvantageSpec spec = parse_spec(gamma, mode, baseline, eps, std, singleton);
  const Tensor in = dense(rewards);
  const Tensor turns = dense(cu_turns);
  const Tensor bounds = dense(offsets);
  const Tensor out = torch::stable::empty_like(in);
  const RolloutGroups rollouts{turns.const_data_ptr<int64_t>(), data_or_null(order), bounds.const_data_ptr<int64_t>(),
                               in.size(0), bounds.size(0) - 1};
  const auto call = in.scalar_type() == ScalarType::Float ? run<float> : run<double>;
  call(rollouts, num_rollouts, spec, in, out);
  return out;
}

}  // namespace
}  // namespace kc

#ifdef KC_CUDA
STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CUDA, m) {
  m.impl("turn_advantages", TORCH_BOX(&kc::turn_advantages));
}
#else
STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CPU, m) {
  m.impl("turn_advantages", TORCH_BOX(&kc::turn_advantages));
}
#endif
