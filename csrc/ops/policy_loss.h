// Policy-gradient loss of packed tokens, its exact gradient and its metrics, from log-probs that are already known.
// The forms that start from logits or hidden states call this, too: they compute log-probs (and entropies), get g_t = d
// loss / d logp_t and h_t = d loss / d entropy_t from here, and compute the gradient of the logits from these. So there
// is one definition of the loss (loss_math.h), and all forms agree. Order within a token: surrogate, gates, mismatch
// weight, + beta KL, - entropy_coef H, reduce.
//
// Tokens of sequence s are [cu_seqlens[s], cu_seqlens[s + 1]). A masked token contributes nothing, whatever its values
// are (NaN included). The computation is in double for any T. Includes no torch.
#pragma once

#include <cstdint>
#include <functional>

#include "ops/loss_spec.h"

namespace kc {

// A null pointer means "not given", so an empty tensor needs a pointer that is not null.
template <class T>
struct PolicyLossArgs {
  int64_t tokens = 0;             // N
  int64_t sequences = 1;          // S
  const T* logprobs = nullptr;    // [N]
  const T* advantages = nullptr;  // [N], or [S] if advantages_per_sequence
  bool advantages_per_sequence = false;
  const T* old_logprobs = nullptr;      // [N]; null: logprobs without gradient, so the ratio is exactly 1
  const T* ref_logprobs = nullptr;      // [N]; null only if spec.beta is 0
  const T* rollout_logprobs = nullptr;  // [N], NaN where unknown; null only if nothing in the spec needs it
  const bool* mask = nullptr;           // [N], true counts; null: all count
  const int64_t* cu_seqlens = nullptr;  // [S + 1], from 0 to N, not decreasing
  // Without cu_seqlens: tokens of every sequence, S of them; 0: all tokens are one sequence.
  int64_t sequence_length = 0;
  const T* entropy = nullptr;  // [N]; null only if spec.entropy_coef is 0
  // [S]: unmasked tokens of each whole sequence, for a call that holds a part of it (only where
  // `splits_sequences(spec)`); null: this call holds all of it.
  const int64_t* lengths = nullptr;
  // One number, 0 or more; null: denominator_value, or, where that is negative, what the reduction counts in this call.
  const double* denominator = nullptr;
  double denominator_value = -1;

  bool has_sequences() const { return cu_seqlens || sequence_length > 0; }
};

// Every pointer is written by the call: grad_logprobs and grad_entropy [N] (0 at masked tokens), metrics
// [kLossMetrics]. grad_entropy may be null.
template <class T>
struct PolicyLossResult {
  double loss = 0.0;
  T* grad_logprobs = nullptr;
  T* grad_entropy = nullptr;
  double* metrics = nullptr;
};

// Runs work(begin, end) for parts that make up [0, count), possibly at the same time.
using ParallelFor = std::function<void(int64_t count, const std::function<void(int64_t, int64_t)>& work)>;
inline void run_serially(int64_t count, const std::function<void(int64_t, int64_t)>& work) {
  work(0, count);
}

// T is float or double. Without unmasked tokens, or with denominator 0, loss and gradients are 0. Sequences are
// independent, and their sums are added in order, so the bits do not depend on the parts that `parallel_for` makes.
template <class T>
void policy_loss_forward(const PolicyLossArgs<T>& args, const LossSpec& spec, PolicyLossResult<T>& result,
                         const ParallelFor& parallel_for = run_serially);

// These throw std::invalid_argument with one sentence. The first checks that each term of the spec has its input; it
// reads only which pointers are null, so it also works for CUDA. The second reads cu_seqlens.
template <class T>
void check_policy_loss(const PolicyLossArgs<T>& args, const LossSpec& spec);
void check_cu_seqlens(const int64_t* cu_seqlens, int64_t sequences, int64_t tokens);

}  // namespace kc
