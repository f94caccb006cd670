// Checks, allocation and registration; compiled once for the CPU library and once (KC_CUDA) for the CUDA library.
#include "ops/group_advantages.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <optional>
#include <string>

#include "common/checks.h"
#ifdef KC_CUDA
#include "common/cuda_torch.h"
#endif

namespace kc {
namespace {

AdvantageSpec parse_spec(const std::string& mode, double eps, const std::string& std, const std::string& singleton) {
  AdvantageSpec spec{};
  if (mode == "grpo")
    spec.mode = AdvantageMode::kGrpo;
  else if (mode == "dr_grpo")
    spec.mode = AdvantageMode::kDrGrpo;
  else if (mode == "rloo")
    spec.mode = AdvantageMode::kRloo;
  else
    check(false, "mode must be one of grpo, dr_grpo, rloo; got '", mode, "'");
  check(eps >= 0, "eps must be at least 0; got ", eps);
  check(std == "sample" || std == "population", "std must be 'sample' or 'population'; got '", std, "'");
  check(singleton == "zero" || singleton == "reward", "singleton must be 'zero' or 'reward'; got '", singleton, "'");
  spec.eps = eps;
  spec.population_std = std == "population";
  spec.singleton_reward = singleton == "reward";
  return spec;
}

template <typename T>
void run(const Tensor& rewards, const int64_t* order, const Tensor& offsets, const Tensor& advantages,
         const AdvantageSpec& spec) {
  const T* in = rewards.const_data_ptr<T>();
  T* out = advantages.mutable_data_ptr<T>();
  const int64_t* bounds = offsets.const_data_ptr<int64_t>();
  const int64_t num_groups = offsets.size(0) - 1;
#ifdef KC_CUDA
  const CudaScope scope(rewards);
  check_launch("group_advantages",
               launch_group_advantages<T>(in, order, bounds, out, spec, num_groups, scope.stream()));
#else
  torch::stable::parallel_for(0, num_groups, /*grain_size=*/1024, [&](int64_t begin, int64_t end) {
    group_advantages_cpu<T>(in, order, bounds, out, spec, begin, end);
  });
#endif
}

Tensor group_advantages(Tensor rewards, std::optional<Tensor> order, Tensor offsets, std::string mode, double eps,
                        std::string std, std::string singleton) {
  check(rewards.dim() == 1, "rewards must be 1-D; got shape ", shape_of(rewards));
  const ScalarType type = rewards.scalar_type();
  check(type == ScalarType::Float || type == ScalarType::Double, "rewards must be float32 or float64; got ",
        name_of(type));
  check(offsets.dim() == 1 && offsets.size(0) >= 1, "offsets must be 1-D and not empty; got shape ", shape_of(offsets));
  check_dtype("offsets", offsets, ScalarType::Long);
  check_same_device("offsets", offsets, "rewards", rewards);
  if (order) {
    check_vector("order", *order, rewards.size(0), "rewards");
    check_dtype("order", *order, ScalarType::Long);
    check_same_device("order", *order, "rewards", rewards);
  }
  const AdvantageSpec spec = parse_spec(mode, eps, std, singleton);
  const Tensor in = torch::stable::contiguous(rewards);
  const Tensor bounds = torch::stable::contiguous(offsets);
  std::optional<Tensor> permutation;
  if (order) permutation = torch::stable::contiguous(*order);
  const int64_t* index = permutation ? permutation->const_data_ptr<int64_t>() : nullptr;
  Tensor out = torch::stable::empty_like(in);
  if (type == ScalarType::Float)
    run<float>(in, index, bounds, out, spec);
  else
    run<double>(in, index, bounds, out, spec);
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
