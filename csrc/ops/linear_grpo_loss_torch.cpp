// Checks, allocation and registration of linear_grpo_loss; compiled once for the CPU library and once (KC_CUDA) for the
// CUDA library.
// The gradient is computed in the forward, because the loss is a scalar and the backward only has to scale it; so three
// matrix products are enough instead of four. All log-probs of a sequence must be known before its first gradient,
// unless the loss depends on tokens one by one; so whole sequences are put into the workspace, and only a sequence
// longer than the workspace needs a fourth product.
#include <torch/csrc/stable/library.h>

#include <array>
#include <tuple>
#include <vector>

#include "ops/linear_arguments.h"
#include "ops/loss_math.h"
#include "ops/policy_loss_torch.h"
#ifdef KC_CUDA
#include "ops/grpo_loss.cuh"
#include "ops/linear_head_cuda_torch.h"
#else
#include "ops/linear_head_torch.h"
#endif

namespace kc {
namespace {

using Outputs = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

#ifdef KC_CUDA
// Copies all tensors to the device. Mask, advantages and cu_seqlens may be on the host: then the op knows without
// waiting which rows to multiply.
LossTensors all_on_device(const Tensor& like, LossTensors tensors, void* stream) {
  const auto move = [&](const char* name, Tensor tensor) {
    if (!is_on_host(tensor)) return tensor;
    check(!is_capturing(stream), name, " must be on the GPU while a CUDA graph is captured");
    return on_device_of(like, dense(tensor));
  };
  tensors.advantages = move("advantages", tensors.advantages);
  if (tensors.mask) tensors.mask = move("mask", *tensors.mask);
  if (tensors.cu_seqlens) tensors.cu_seqlens = move("cu_seqlens", *tensors.cu_seqlens);
  return tensors;
}

// Rows of the list that are computed together: one chunk if they fit into the workspace; otherwise the log-probs of all
// chunks are computed before the first gradient.
struct Piece {
  SequenceRange sequences;
  std::vector<RowChunk> chunks;
};

template <class T, class L>
class LinearLoss {
 public:
  using A = Accumulator<T>;

  // In `tensors` mask, advantages and cu_seqlens may be on the host; in `on_device` all are on the device.
  LinearLoss(const LinearArguments& in, LinearNeeds needs, const LossTensors& tensors, const LossTensors& on_device,
             LogitRows<L> rows, PolicyLossArgs<A> args, const LossSpec& spec, const TokenOutputs<A>& out, void* stream)
      : in_(in),
        needs_(needs),
        rows_(rows),
        args_(args),
        spec_(spec),
        stats_(out.stats()),
        can_wait_(in.allow_sync && !is_capturing(stream)),
        stream_(stream),
        capacity_(workspace_rows<L>(in)),
        tokens_(in.hidden, args.tokens, tensors.mask, can_wait_, stream),
        like_(out.logprobs) {
    args_.logprobs = stats_.logprobs;
    args_.entropy = stats_.entropy;
    rows_.mask = tokens_.has_unknown_mask() ? data_of<bool>(*on_device.mask) : nullptr;
    plan(tensors);
  }

  void run(const Tensor& loss, const Tensor& metrics) {
    const LossScratch<A> memory(loss, args_);
    Tensor by_logprobs = fresh(like_, {args_.tokens});
    Tensor by_entropy = fresh(like_, {spec_.entropy_coef != 0 ? args_.tokens : 0});
    A* const g = by_logprobs.template mutable_data_ptr<A>();
    A* const h = spec_.entropy_coef != 0 ? by_entropy.template mutable_data_ptr<A>() : nullptr;
    launched(launch_count_sequences(args_, memory.scratch, stream_));
    DeviceHead<T, L> head(in_, needs_, most_rows_, can_wait_, stream_);
    for (const Piece& piece : pieces_) {
      LogitRows<L> logits;
      bool formed = false;
      for (const RowChunk& chunk : piece.chunks) {
        logits = head.logits(chunk, rows_);
        formed = piece.chunks.size() == 1 && fused(head, logits, chunk, memory.scratch, g, h);
        if (!formed) head.score(logits, stats_, chunk.count);
      }
      if (!needs_.any()) continue;
      if (!formed)
        for (const RowChunk& chunk : piece.chunks) {
          // Sequences are summed once, with the first chunk.
          const bool first = &chunk == &piece.chunks.front();
          launched(launch_loss_gradient(args_, spec_, memory.scratch, piece.sequences, first, chunk.tokens, chunk.count,
                                        g, h, stream_));
        }
      // Backwards, because the workspace still holds the logits of the last chunk.
      for (size_t i = piece.chunks.size(); i-- > 0;) {
        const RowChunk& chunk = piece.chunks[i];
        if (i + 1 < piece.chunks.size()) logits = head.logits(chunk, rows_);
        head.add_gradient(chunk, logits, stats_, g, h, formed);
      }
    }
    head.finish();
    grad_hidden = head.grad_hidden;
    grad_weight = head.grad_weight;
    grad_bias = head.grad_bias;
    const PolicyLossDeviceResult<A> result{loss.mutable_data_ptr<A>(), g, h, metrics.mutable_data_ptr<double>()};
    launched(launch_policy_loss(args_, spec_, memory.scratch, result, stream_));
  }

  Tensor grad_hidden, grad_weight, grad_bias;

 private:
  static void launched(int error) { check_launch("linear_grpo_loss", error); }

  // Computes log-probs, loss and gradient in one sweep. Returns false if there is no kernel for it.
  bool fused(DeviceHead<T, L>& head, const LogitRows<L>& logits, const RowChunk& chunk,
             const PolicyLossScratch& scratch, A* g, A* h) {
    if constexpr (std::is_same_v<T, L> || std::is_same_v<T, BFloat16>) {
      if (!needs_.any() || chunk.may_count == 0 || !head.gradients_are_plain()) return false;
      GradientRows<T> gradients;
      gradients.data = head.gradients();
      gradients.places.stride = head.gradient_stride();
      gradients.by_logprobs = g;
      gradients.by_entropy = h;
      if (!can_fuse_loss_gradient(logits, chunk.count, spec_, gradients)) return false;
      launched(launch_fused_loss_gradient(logits, chunk.count, stats_, args_, spec_, scratch, gradients,
                                          PolicyLossDeviceResult<A>{}, /*follows_count=*/false, stream_));
      return true;
    }
    return false;
  }

  void plan(const LossTensors& tensors) {
    const bool splits = splits_sequences(spec_);
    // The bounds of the sequences, if the host knows them or may wait for them; otherwise all rows are one sequence.
    std::vector<int64_t> bounds{0, args_.tokens};
    bool knows_bounds = !tensors.cu_seqlens;
    if (args_.sequence_length > 0) {
      bounds.clear();
      for (int64_t s = 0; s <= args_.sequences; ++s) bounds.push_back(s * args_.sequence_length);
    }
    const bool is_free = tensors.cu_seqlens && is_on_host(*tensors.cu_seqlens);
    if (tensors.cu_seqlens && (is_free || (!splits && can_wait_))) {
      const Tensor host = torch::stable::to(on_host(*tensors.cu_seqlens), ScalarType::Long);
      check_cu_seqlens(data_of<int64_t>(host), args_.sequences, args_.tokens);
      bounds.assign(data_of<int64_t>(host), data_of<int64_t>(host) + args_.sequences + 1);
      knows_bounds = true;
    }
    const std::vector<char> idle = idle_tokens(tensors, knows_bounds ? &bounds : nullptr);
    const int64_t rows = tokens_.size();
    struct Cut {
      SequenceRange sequences;
      std::vector<int64_t> ends;
    };
    std::vector<Cut> cuts;
    const auto cut_anywhere = [&](SequenceRange sequences, int64_t begin, int64_t end) {
      const int64_t size = even_chunk(end - begin, capacity_);
      std::vector<int64_t> ends;
      while (begin < end) ends.push_back(begin = std::min(begin + size, end));
      cuts.push_back({sequences, ends});
    };
    if (splits) {
      cut_anywhere({0, 0}, 0, rows);
    } else if (!knows_bounds) {
      cut_anywhere({0, args_.sequences}, 0, rows);
    } else {
      std::vector<int64_t> row_bounds;  // the list rises
      for (const int64_t bound : bounds)
        row_bounds.push_back(std::lower_bound(tokens_.tokens().begin(), tokens_.tokens().end(), bound) -
                             tokens_.tokens().begin());
      for (size_t s = 0; s + 1 < row_bounds.size();) {
        // As many whole sequences as fit into the workspace, at least one.
        size_t last = s + 1;
        while (last + 1 < row_bounds.size() && row_bounds[last + 1] - row_bounds[s] <= capacity_) ++last;
        cut_anywhere({static_cast<int64_t>(s), static_cast<int64_t>(last)}, row_bounds[s], row_bounds[last]);
        s = last;
      }
    }
    // Within a chunk, rows that certainly have no gradient come last.
    std::vector<int64_t> may_counts;
    bool reordered = false;
    int64_t begin = 0;
    for (const Cut& cut : cuts)
      for (const int64_t end : cut.ends) {
        const auto from = tokens_.tokens().begin() + begin, to = tokens_.tokens().begin() + end;
        int64_t may = end - begin;
        if (!idle.empty() && needs_.any()) {
          may = std::stable_partition(from, to, [&](int64_t t) { return !idle[static_cast<size_t>(t)]; }) - from;
          reordered = reordered || (may > 0 && may < end - begin);
        }
        may_counts.push_back(may);
        begin = end;
      }
    tokens_.upload(reordered);
    begin = 0;
    size_t number = 0;
    for (const Cut& cut : cuts) {
      pieces_.push_back({cut.sequences, {}});
      for (const int64_t end : cut.ends) {
        if (splits && !pieces_.back().chunks.empty()) pieces_.push_back({cut.sequences, {}});
        pieces_.back().chunks.push_back(tokens_.chunk(begin, end, may_counts[number++]));
        most_rows_ = std::max(most_rows_, end - begin);
        begin = end;
      }
    }
  }

  // [tokens], true if a token's gradient is 0 for any logits; empty if the host knows of no such token.
  std::vector<char> idle_tokens(const LossTensors& tensors, const std::vector<int64_t>* bounds) const {
    std::vector<char> idle;
    if (!is_on_host(tensors.advantages) || spec_.beta != 0 || spec_.entropy_coef != 0 || spec_.ratio_penalty != 0)
      return idle;
    if (args_.advantages_per_sequence ? !bounds : couples_tokens(spec_)) return idle;
    const Tensor host = dense(tensors.advantages);
    const A* advantages = data_of<A>(host);
    idle.assign(static_cast<size_t>(args_.tokens), 0);
    if (!args_.advantages_per_sequence)
      for (int64_t t = 0; t < args_.tokens; ++t) idle[static_cast<size_t>(t)] = advantages[t] == A(0);
    else
      for (size_t s = 0; s + 1 < bounds->size(); ++s)
        std::fill(idle.begin() + (*bounds)[s], idle.begin() + (*bounds)[s + 1], advantages[s] == A(0));
    return idle;
  }

  const LinearArguments& in_;
  LinearNeeds needs_;
  LogitRows<L> rows_;
  PolicyLossArgs<A> args_;
  const LossSpec& spec_;
  TokenStats<A> stats_;
  bool can_wait_;
  void* stream_;
  int64_t capacity_, most_rows_ = 1;
  TokenList tokens_;
  Tensor like_;
  std::vector<Piece> pieces_;
};
#else
template <class T>
class LinearLoss {
 public:
  using A = Accumulator<T>;

  LinearLoss(const LinearArguments& in, LinearNeeds needs, const TokenInputs<A>& inputs, PolicyLossArgs<A> args,
             const LossSpec& spec, const TokenOutputs<A>& out)
      : head_(in, needs), inputs_(inputs), args_(args), spec_(spec), stats_(out.stats()), differentiates_(needs.any()) {
    args_.logprobs = stats_.logprobs;
    args_.entropy = stats_.entropy;
    grad_logprobs_.resize(static_cast<size_t>(args_.tokens));
    grad_entropy_.resize(static_cast<size_t>(spec.entropy_coef != 0 ? args_.tokens : 0));
    if (args_.cu_seqlens)
      bounds_.assign(args_.cu_seqlens, args_.cu_seqlens + args_.sequences + 1);
    else
      for (int64_t s = 0; s <= args_.sequences; ++s)
        bounds_.push_back(args_.sequence_length > 0 ? s * args_.sequence_length : s * args_.tokens);
    count();
  }

  // Returns the loss; `metrics` is [kLossMetrics].
  double run(double* metrics) {
    totals_.fill(0.0);
    const bool splits = splits_sequences(spec_);
    for (int64_t s = 0; s < args_.sequences;) {
      // As many whole sequences as fit the workspace, at least one.
      int64_t last = s + 1, rows = lengths_[static_cast<size_t>(s)];
      while (last < args_.sequences && rows + lengths_[static_cast<size_t>(last)] <= head_.capacity())
        rows += lengths_[static_cast<size_t>(last++)];
      if (rows <= head_.capacity())
        in_one_piece(s, last, bound(s), bound(last));
      else if (splits)
        in_pieces(s);
      else
        scored_first(s);
      s = last;
    }
    totals_[static_cast<size_t>(LossMetric::sequences)] = static_cast<double>(sequences_);
    std::copy(totals_.begin(), totals_.end(), metrics);
    return totals_[static_cast<size_t>(LossMetric::loss)];
  }

  LinearHead<T>& head() { return head_; }

 private:
  int64_t bound(int64_t s) const { return bounds_[static_cast<size_t>(s)]; }

  void count() {
    int64_t tokens = 0;
    for (int64_t s = 0; s < args_.sequences; ++s) {
      const auto length = static_cast<int64_t>(inputs_.unmasked(bound(s), bound(s + 1)).size());
      lengths_.push_back(length);
      tokens += length;
      sequences_ += length > 0;
    }
    denominator_ = args_.denominator              ? *args_.denominator
                   : args_.denominator_value >= 0 ? args_.denominator_value
                                                  : own_denominator(spec_.reduction, tokens, sequences_);
  }

  // Tokens [begin, end), which lie in sequences [first, last).
  void in_one_piece(int64_t first, int64_t last, int64_t begin, int64_t end) {
    const std::vector<int64_t> tokens = inputs_.unmasked(begin, end);
    const auto rows = static_cast<int64_t>(tokens.size());
    if (rows == 0) return;
    const LogitRows<A> logits = head_.logits(tokens.data(), rows, inputs_.rows);
    head_.score(logits, stats_, rows);
    add_loss(first, last, begin, end);
    add_gradient(logits, rows);
  }

  void in_pieces(int64_t s) {
    const std::vector<int64_t> tokens = inputs_.unmasked(bound(s), bound(s + 1));
    for_chunks(tokens,
               [&](const int64_t* chunk, int64_t rows) { in_one_piece(s, s + 1, chunk[0], chunk[rows - 1] + 1); });
  }

  void scored_first(int64_t s) {
    const std::vector<int64_t> tokens = inputs_.unmasked(bound(s), bound(s + 1));
    for_chunks(tokens, [&](const int64_t* chunk, int64_t rows) {
      head_.score(head_.logits(chunk, rows, inputs_.rows), stats_, rows);
    });
    add_loss(s, s + 1, bound(s), bound(s + 1));
    if (differentiates_)
      for_chunks(tokens, [&](const int64_t* chunk, int64_t rows) {
        add_gradient(head_.logits(chunk, rows, inputs_.rows), rows);
      });
  }

  template <class Visit>
  void for_chunks(const std::vector<int64_t>& tokens, const Visit& visit) {
    const auto total = static_cast<int64_t>(tokens.size());
    for (int64_t begin = 0; begin < total; begin += head_.capacity())
      visit(tokens.data() + begin, std::min(head_.capacity(), total - begin));
  }

  // The loss and its gradient by log-prob and entropy, of tokens [begin, end) in sequences [first, last).
  void add_loss(int64_t first, int64_t last, int64_t begin, int64_t end) {
    std::vector<int64_t> bounds;
    for (int64_t s = first; s <= last; ++s) bounds.push_back(std::clamp(bound(s), begin, end) - begin);
    const auto from = [&](const auto* pointer) { return pointer ? pointer + begin : nullptr; };
    PolicyLossArgs<A> part = args_;
    part.tokens = end - begin;
    part.sequences = last - first;
    part.cu_seqlens = bounds.data();
    part.lengths = lengths_.data() + first;
    part.logprobs = from(args_.logprobs);
    part.entropy = from(args_.entropy);
    part.old_logprobs = from(args_.old_logprobs);
    part.ref_logprobs = from(args_.ref_logprobs);
    part.rollout_logprobs = from(args_.rollout_logprobs);
    part.mask = from(args_.mask);
    part.advantages = args_.advantages + (args_.advantages_per_sequence ? first : begin);
    part.denominator = &denominator_;
    std::array<double, kLossMetrics> metrics;
    PolicyLossResult<A> result;
    result.grad_logprobs = grad_logprobs_.data() + begin;
    result.grad_entropy = grad_entropy_.empty() ? nullptr : grad_entropy_.data() + begin;
    result.metrics = metrics.data();
    policy_loss_forward(part, spec_, result, parallel_over_sequences);
    for (size_t i = 0; i < metrics.size(); ++i) totals_[i] += metrics[i];
  }

  void add_gradient(const LogitRows<A>& logits, int64_t rows) {
    if (differentiates_)
      head_.add_gradient(logits, stats_, grad_logprobs_.data(), grad_entropy_.empty() ? nullptr : grad_entropy_.data(),
                         rows);
  }

  LinearHead<T> head_;
  const TokenInputs<A>& inputs_;
  PolicyLossArgs<A> args_;
  const LossSpec& spec_;
  TokenStats<A> stats_;
  bool differentiates_;
  std::vector<A> grad_logprobs_, grad_entropy_;
  std::vector<int64_t> bounds_, lengths_;  // of every sequence; lengths count unmasked tokens
  int64_t sequences_ = 0;                  // with an unmasked token
  double denominator_ = 0;
  std::array<double, kLossMetrics> totals_{};
};
#endif

Outputs linear_grpo_loss(Tensor hidden, Tensor weight, OptionalTensor bias, Tensor ids, Tensor temperature,
                         Tensor advantages, OptionalTensor old_logprobs, OptionalTensor ref_logprobs,
                         OptionalTensor rollout_logprobs, OptionalTensor mask, OptionalTensor cu_seqlens,
                         OptionalTensor denominator, std::vector<double> spec_numbers, double logit_scale,
                         double softcap, int64_t chunk_rows, bool rounded_logits, bool rounded_weight_grad,
                         bool allow_sync, bool need_hidden, bool need_weight, bool need_bias) {
  const LinearNeeds needs{need_hidden, need_weight, need_bias};
  TokenShape shape;
  const std::vector<int64_t> hidden_sizes = sizes_of(hidden);
  const LinearArguments in = check_linear(
      {hidden, weight, bias, logit_scale, softcap, chunk_rows, rounded_logits, rounded_weight_grad, allow_sync}, shape);
  const LossSpec spec = spec_of(spec_numbers);
  const ScalarType type = accumulator_of(hidden.scalar_type());
  const auto as_hidden = [&](const Tensor& gradient) {
    return needs.hidden && shape.is_padded() ? torch::stable::view(gradient, hidden_sizes) : gradient;
  };
  const LossTensors tensors{advantages, old_logprobs, ref_logprobs, rollout_logprobs, mask, cu_seqlens, denominator};
#ifdef KC_CUDA
  const CudaScope scope(hidden);
  const LossTensors on_device = all_on_device(hidden, tensors, scope.stream());
  return with_head_types(in, [&](auto head_zero, auto logit_zero) {
    using T = decltype(head_zero);
    using L = decltype(logit_zero);
    using A = Accumulator<T>;
    check_tokens(ids, temperature, on_device.mask, "hidden", hidden, shape, weight.size(0), type);
    const LossInputs<A> loss_inputs(on_device, spec, "hidden", hidden, shape, /*has_entropy=*/true);
    const Tensor flat_ids = dense(ids), temperatures = dense(temperature);
    LogitRows<L> rows;
    rows.ids = data_of<int64_t>(flat_ids);
    set_temperature(rows, temperatures);
    const TokenOutputs<A> out(hidden, shape, type);
    LinearLoss<T, L> linear(in, needs, tensors, on_device, rows, loss_inputs.args, spec, out, scope.stream());
    Tensor loss = fresh(hidden, {}, type);
    Tensor metrics = fresh(hidden, {kLossMetrics}, ScalarType::Double);
    linear.run(loss, metrics);
    return std::make_tuple(loss, metrics, out.logprobs, out.entropy, as_hidden(linear.grad_hidden), linear.grad_weight,
                           torch::stable::to(linear.grad_bias, hidden.scalar_type()));
  });
#else
  return with_float_type("hidden", hidden, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    check_tokens(ids, temperature, mask, "hidden", hidden, shape, weight.size(0), type);
    const LossInputs<A> loss_inputs(tensors, spec, "hidden", hidden, shape, /*has_entropy=*/true);
    const TokenInputs<A> inputs(ids, temperature, mask);
    const TokenOutputs<A> out(hidden, shape, type);
    LinearLoss<T> linear(in, needs, inputs, loss_inputs.args, spec, out);
    Tensor loss = fresh(hidden, {}, type);
    Tensor metrics = fresh(hidden, {kLossMetrics}, ScalarType::Double);
    *loss.mutable_data_ptr<A>() = static_cast<A>(linear.run(metrics.mutable_data_ptr<double>()));
    Tensor grad_weight = linear.head().grad_weight;
    if (rounded_weight_grad) grad_weight = torch::stable::to(grad_weight, hidden.scalar_type());
    return std::make_tuple(loss, metrics, out.logprobs, out.entropy, as_hidden(linear.head().grad_hidden), grad_weight,
                           torch::stable::to(linear.head().grad_bias, hidden.scalar_type()));
  });
#endif
}

// The loss is a scalar, so its backward is this. `gradient` has the dtype of `like`, or that of the sums.
Tensor scaled_gradient(Tensor gradient, Tensor factor, Tensor like) {
  check(factor.dim() == 0, "factor must be 0-D; got shape ", shape_of(factor));
  const ScalarType sums = accumulator_of(like.scalar_type());
  check_dtype("factor", factor, sums);
  check_same_device("factor", factor, "gradient", gradient);
  check(gradient.scalar_type() == like.scalar_type() || gradient.scalar_type() == sums, "gradient must be ",
        name_of(sums), " or ", name_of(like.scalar_type()), "; got ", name_of(gradient.scalar_type()));
  const Tensor from = dense(gradient);
  Tensor to = fresh(from, sizes_of(from), like.scalar_type());
  return with_float_type("like", like, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulator<T>;
    const int64_t count = from.numel();
    T* const out = static_cast<T*>(to.mutable_data_ptr());
    const A* const by = data_of<A>(factor);
    const auto scale = [&](const auto* values) {
#ifdef KC_CUDA
      const CudaScope scope(gradient);
      check_launch("scaled_gradient", launch_scale(values, count, by, out, scope.stream()));
#else
      torch::stable::parallel_for(0, count, 32768, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) narrow(widen(values[i]) * *by, out[i]);
      });
#endif
    };
    if (gradient.scalar_type() == like.scalar_type())
      scale(data_of<T>(from));
    else
      scale(data_of<A>(from));
    return to;
  });
}

}  // namespace
}  // namespace kc

#ifdef KC_CUDA
STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CUDA, m) {
  m.impl("linear_grpo_loss", TORCH_BOX(&kc::linear_grpo_loss));
  m.impl("scaled_gradient", TORCH_BOX(&kc::scaled_gradient));
}
#else
STABLE_TORCH_LIBRARY_IMPL(kernel_coder, CPU, m) {
  m.impl("linear_grpo_loss", TORCH_BOX(&kc::linear_grpo_loss));
  m.impl("scaled_gradient", TORCH_BOX(&kc::scaled_gradient));
}
#endif
