// Advantages of the turns of multi-turn rollouts: each return is compared with those of other turns by the formulas of
// group_advantages.h.
// The return of a turn is its reward plus gamma times the return of the rollout's next turn. A NaN reward is unscored,
// and so is a return that depends on one; NaN also stands for a turn that a rollout does not have.
#pragma once

#include "ops/group_advantages.h"

namespace kc {

// The names of the modes, and the formulas of group_advantages.h that they use.
#define KC_TURN_ADVANTAGE_MODES(X) X(trloo, rloo) X(grpo, grpo) X(dr_grpo, dr_grpo) X(loo_std, loo_std) X(maxrl, maxrl)

struct TurnAdvantageSpec {
  AdvantageSpec advantage;
  double gamma;
  bool pooled;  // compare all turns of a group; otherwise those with the same number
};

// Group g is entries [offsets[g], offsets[g + 1]) of `order`, or of the rollouts themselves without an order. The turns
// of a rollout are next to each other; bounds outside the tensor are limited to it, since they are not checked on a
// GPU.
struct RolloutGroups {
  const int64_t* cu_turns;  // [num_rollouts + 1]
  const int64_t* order;     // [num_rollouts] or null
  const int64_t* offsets;   // [num_groups + 1]
  int64_t num_turns;        // of all rollouts
  int64_t num_groups;

  KC_HOST_DEVICE int64_t rollout(int64_t i) const { return order ? order[i] : i; }
  KC_HOST_DEVICE int64_t first_turn(int64_t i) const {
    const int64_t first = cu_turns[rollout(i)];
    return first > 0 ? first : 0;
  }
  KC_HOST_DEVICE int64_t end_turn(int64_t i) const {
    const int64_t end = cu_turns[rollout(i) + 1];
    return end < num_turns ? end : num_turns;
  }
};

// Turns that are compared with each other: `width` turns from number `first` on of every rollout of a group, in the
// form that group_advantages.h takes.
struct ComparedTurns {
  const double* returns;  // [num_turns]
  RolloutGroups rollouts;
  int64_t first, width;
  int64_t begin, end;  // entries: `width` of them for each rollout

  // -1 where the rollout has no such turn.
  KC_HOST_DEVICE int64_t index(int64_t i) const {
    const int64_t turn = rollouts.first_turn(i / width) + first + i % width;
    return turn < rollouts.end_turn(i / width) ? turn : -1;
  }
  KC_HOST_DEVICE double reward(int64_t i) const {
    const int64_t turn = index(i);
    return turn < 0 ? NAN : returns[turn];
  }
};

// The number of sets of compared turns of a group whose longest rollout has `longest` turns, and the k-th of them.
KC_HOST_DEVICE int64_t num_compared(int64_t longest, bool pooled) {
  return pooled ? 1 : longest;
}

KC_HOST_DEVICE ComparedTurns compared_turns(const double* returns, const RolloutGroups& rollouts, int64_t g, int64_t k,
                                            int64_t longest, bool pooled) {
  const int64_t width = pooled ? longest : 1;
  return {returns, rollouts, pooled ? 0 : k, width, rollouts.offsets[g] * width, rollouts.offsets[g + 1] * width};
}

// The returns of the i-th rollout. With gamma 0 a later turn does not count, not even an unscored one.
template <typename T>
KC_HOST_DEVICE void fill_returns(const T* rewards, const RolloutGroups& rollouts, int64_t i, double gamma,
                                 double* returns) {
  const int64_t first = rollouts.first_turn(i);
  double later = 0;
  for (int64_t turn = rollouts.end_turn(i) - 1; turn >= first; --turn) {
    const double reward = static_cast<double>(rewards[turn]);
    later = gamma > 0 ? reward + gamma * later : reward;
    returns[turn] = later;
  }
}

// CPU: groups [begin, end). `returns` is room for [num_turns]. T is float or double.
template <typename T>
void turn_advantages_cpu(const T* rewards, const RolloutGroups& rollouts, const TurnAdvantageSpec& spec,
                         double* returns, T* advantages, int64_t begin, int64_t end);

// CUDA: everything in one launch, one block a group; returns a cudaError_t. The stream is a cudaStream_t.
template <typename T>
[[nodiscard]] int launch_turn_advantages(const T* rewards, const RolloutGroups& rollouts, const TurnAdvantageSpec& spec,
                                         double* returns, T* advantages, void* stream);

}  // namespace kc
