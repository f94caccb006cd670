// Code that the torch side of all advantages shares: names of modes, options, and checks of groups.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "common/checks.h"
#include "common/tensors.h"
#include "ops/group_advantages.h"
#ifdef KC_CUDA
#include "common/cuda_torch.h"
#endif

namespace kc {

inline size_t position_of_mode(const std::string& mode, const std::vector<std::string>& modes) {
  const auto found = std::find(modes.begin(), modes.end(), mode);
  if (found == modes.end()) {
    std::string names;
    for (const std::string& name : modes) names += (names.empty() ? "" : ", ") + name;
    check(false, "mode must be one of ", names, "; got '", mode, "'");
  }
  return static_cast<size_t>(found - modes.begin());
}

inline AdvantageSpec advantage_spec(AdvantageMode mode, double eps, const std::string& std,
                                    const std::string& singleton) {
  check(eps >= 0, "eps must be at least 0; got ", eps);
  check(std == "sample" || std == "population", "std must be 'sample' or 'population'; got '", std, "'");
  check(singleton == "zero" || singleton == "reward", "singleton must be 'zero' or 'reward'; got '", singleton, "'");
  return {mode, eps, std == "population", singleton == "reward"};
}

inline void check_rewards(const Tensor& rewards) {
  check(rewards.dim() == 1, "rewards must be 1-D; got shape ", shape_of(rewards));
  const ScalarType type = rewards.scalar_type();
  check(type == ScalarType::Float || type == ScalarType::Double, "rewards must be float32 or float64; got ",
        name_of(type));
}

inline void check_bounds(const char* name, const Tensor& bounds, const Tensor& rewards) {
  check(bounds.dim() == 1 && bounds.size(0) >= 1, name, " must be 1-D and not empty; got shape ", shape_of(bounds));
  check_dtype(name, bounds, ScalarType::Long);
  check_same_device(name, bounds, "rewards", rewards);
}

// An int64 vector with a number for each of `length` things, made contiguous.
inline void check_numbers(const char* name, std::optional<Tensor>& numbers, int64_t length, const char* things,
                          const Tensor& rewards) {
  if (!numbers) return;
  check_vector(name, *numbers, length, things);
  check_dtype(name, *numbers, ScalarType::Long);
  check_same_device(name, *numbers, "rewards", rewards);
  numbers = dense(*numbers);
}

inline const int64_t* data_or_null(const std::optional<Tensor>& tensor) {
  return tensor ? tensor->const_data_ptr<int64_t>() : nullptr;
}

// The functions below read values, which on a GPU would mean waiting for it.

// Checks the bounds of consecutive parts of `count` things.
inline void check_bound_values(const char* name, const int64_t* bounds, int64_t parts, int64_t count,
                               const char* things) {
  check(bounds[0] == 0 && bounds[parts] == count, name, " must go from 0 to the number of ", things, ", ", count,
        "; got ", bounds[0], " to ", bounds[parts]);
  for (int64_t p = 0; p < parts; ++p)
    check(bounds[p] <= bounds[p + 1], name, " must not decrease; got ", bounds[p], " before ", bounds[p + 1]);
}

inline void check_order_values(const int64_t* order, int64_t count, const char* things) {
  for (int64_t i = 0; order && i < count; ++i)
    check(order[i] >= 0 && order[i] < count, "order must hold indices of ", things, "; got ", order[i], " for ", count,
          " ", things);
}

template <typename T>
void check_reward_values(const T* rewards, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    check(!std::isinf(rewards[i]), "rewards must be finite, or NaN for unscored; got ", rewards[i], " at index ", i);
}

}  // namespace kc
