// The head of linear_head_torch.h on CUDA: some rows of logits at a time are in one workspace and are overwritten by
// their gradient, between products by cuBLAS. Rows without gradient are left out of the products if the host knows
// their number or may wait for it.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/cublas.h"
#include "common/cuda_torch.h"
#include "ops/linear_arguments.h"
#include "ops/linear_head.cuh"
#include "ops/token_logprobs.cuh"

namespace kc {

constexpr int64_t kAnyOrder = -1;

// Rows that are in the workspace together.
struct RowChunk {
  const int64_t* tokens;  // [count], on the device
  int64_t count;
  int64_t first;      // the tokens are first, first + 1, ...; or kAnyOrder
  int64_t may_count;  // rows in front that may have a gradient; the others have none for certain
};

inline bool is_capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

inline Tensor on_host(const Tensor& tensor) {
  return dense(torch::stable::to(tensor, torch::stable::Device(DeviceType::CPU)));
}
inline Tensor pinned(const std::vector<int64_t>& sizes, ScalarType type) {
  return torch::stable::empty(sizes, type, std::nullopt, torch::stable::Device(DeviceType::CPU), /*pin_memory=*/true);
}
// Copies a contiguous host tensor to the device without waiting. It uses pinned memory, because for other memory the
// driver may wait for the stream.
inline Tensor on_device_of(const Tensor& like, const Tensor& tensor) {
  Tensor staged = pinned(sizes_of(tensor), tensor.scalar_type());
  torch::stable::copy_(staged, tensor);
  return torch::stable::to(staged, like.device(), /*non_blocking=*/true);
}

// The tokens to compute, in ascending order, on the host and on the device. If the mask is on the host, or the host may
// wait for it, masked tokens are left out; otherwise all tokens are computed, and `mask` says which count.
class TokenList {
 public:
  TokenList(const Tensor& like, int64_t tokens, const OptionalTensor& mask, bool can_wait, void* stream)
      : like_(like), memory_(like), tokens_(tokens), stream_(stream) {
    if (!mask) {
      skips_none_ = true;
    } else if (is_on_host(*mask) || can_wait) {
      const Tensor host = on_host(*mask);
      const bool* counts = data_of<bool>(host);
      for (int64_t t = 0; t < tokens; ++t)
        if (counts[t]) list_.push_back(t);
      skips_none_ = static_cast<int64_t>(list_.size()) == tokens;
    } else {
      has_unknown_mask_ = true;
    }
    if (skips_none_ || has_unknown_mask_) {
      list_.resize(static_cast<size_t>(tokens));
      for (int64_t t = 0; t < tokens; ++t) list_[static_cast<size_t>(t)] = t;
    }
  }

  int64_t size() const { return static_cast<int64_t>(list_.size()); }
  // Whether the list holds masked tokens, so that kernels must look at the mask.
  bool has_unknown_mask() const { return has_unknown_mask_; }
  std::vector<int64_t>& tokens() { return list_; }

  // Removes the tokens for which `keep` is false.
  template <class Keep>
  void keep(const Keep& keep) {
    list_.erase(std::remove_if(list_.begin(), list_.end(), [&](int64_t t) { return !keep(t); }), list_.end());
  }

  // Copies the list to the device, in its present order.
  void upload(bool reordered) {
    memory_ = fresh(like_, {size()}, ScalarType::Long);
    if (size() == 0) return;
    int64_t* const device = memory_.mutable_data_ptr<int64_t>();
    if (size() == tokens_ && !reordered) {
      check_launch("the linear head", launch_count_up(device, 0, tokens_, stream_));
      return;
    }
    Tensor staged = pinned({size()}, ScalarType::Long);
    std::copy(list_.begin(), list_.end(), staged.mutable_data_ptr<int64_t>());
    torch::stable::copy_(memory_, staged, /*non_blocking=*/true);
  }

  // Tokens [begin, end) of the list, of which the first `may_count` may have a gradient.
  RowChunk chunk(int64_t begin, int64_t end, int64_t may_count) const {
    const auto at = [&](int64_t i) { return list_[static_cast<size_t>(i)]; };
    bool in_a_row = end > begin && !has_unknown_mask_ && at(end - 1) - at(begin) == end - begin - 1;
    for (int64_t i = begin; in_a_row && i < end; ++i) in_a_row = at(i) == at(begin) + i - begin;
    return {data_of<int64_t>(memory_) + begin, end - begin, in_a_row ? at(begin) : kAnyOrder, may_count};
  }

 private:
  Tensor like_, memory_;
  int64_t tokens_;
  void* stream_;
  bool skips_none_ = false, has_unknown_mask_ = false;
  std::vector<int64_t> list_;
};

// Number of rows of the highest tile of a product. With other multiples the last wave of tiles does not fill the GPU.
constexpr int64_t kTileRows = 256;
inline int64_t whole_tiles(int64_t rows) {
  return (rows + kTileRows - 1) / kTileRows * kTileRows;
}

// Number of rows in the workspace at a time, if they may be cut anywhere: chunks of about equal size, of whole tiles.
inline int64_t even_chunk(int64_t rows, int64_t capacity) {
  if (rows <= capacity) return std::max<int64_t>(1, rows);
  const int64_t chunks = (rows + capacity - 1) / capacity;
  return std::min(whole_tiles((rows + chunks - 1) / chunks), capacity);
}

template <class L>
int64_t workspace_stride(int64_t vocab) {
  constexpr int64_t kPack = 128 / static_cast<int64_t>(sizeof(L));
  return (vocab + kPack - 1) / kPack * kPack;
}

// Rows of the workspace: chunk_rows, or as many as fit into 1.25 GiB.
template <class L>
int64_t workspace_rows(const LinearArguments& in) {
  constexpr int64_t kWorkspaceBytes = int64_t{1280} << 20;
  const int64_t row_bytes = std::max<int64_t>(1, workspace_stride<L>(in.weight.size(0))) * sizeof(L);
  const int64_t fitting = kWorkspaceBytes / row_bytes;
  return in.chunk_rows ? in.chunk_rows : std::max(kTileRows, fitting / kTileRows * kTileRows);
}

// T is the dtype of the head, L that of the logits in the workspace; gradients of logits are formed in T.
template <class T, class L>
class DeviceHead {
 public:
  using A = Accumulator<T>;

  DeviceHead(const LinearArguments& in, LinearNeeds needs, int64_t most_rows, bool can_wait, void* stream)
      : hidden_(dense(in.hidden)),
        weight_(dense(in.weight)),
        bias_(contiguous_or_none(in.bias)),
        logit_scale_(in.logit_scale),
        softcap_(in.softcap),
        vocab_(in.weight.size(0)),
        width_(in.hidden.size(1)),
        stride_(workspace_stride<L>(vocab_)),
        capacity_(most_rows),
        needs_(needs),
        can_wait_(can_wait),
        stream_(stream),
        workspace_(fresh(in.hidden, {whole_blocks(most_rows), stride_}, kLogits)) {
    grad_hidden = torch::stable::new_zeros(hidden_, {needs.hidden ? hidden_.size(0) : 0, width_});
    grad_weight =
        fresh(hidden_, {needs.weight ? vocab_ : 0, width_}, in.rounded_weight_grad ? hidden_.scalar_type() : kSums);
    grad_bias = torch::stable::new_zeros(hidden_, {needs.bias ? vocab_ : 0}, kSums);
    const int64_t bytes = needs.any() ? RowSelection::bytes(most_rows) : 0;
    selection_ = fresh(hidden_, {bytes}, ScalarType::Byte);
    numbers_ = fresh(hidden_, {4}, ScalarType::Float);
  }

  // Computes the logits of these rows in the workspace; `rows` holds the other fields of the result.
  LogitRows<L> logits(const RowChunk& chunk, LogitRows<L> rows) {
    rows.logits = workspace();
    rows.places.stride = stride_;
    rows.vocab = vocab_;
    rows.tokens = chunk.tokens;
    const int64_t multiplied = whole_blocks(chunk.count);
    const T* x = rows_of_hidden(chunk, multiplied, rows.mask);
    blas_.template multiply<T, L>(multiplied, vocab_, width_, logit_scale_, {x, width_}, false,
                                  {data_of<T>(weight_), width_}, true, 0.0, {workspace(), stride_});
    check(launch_finish_logits<T, L>(workspace(), chunk.count, vocab_, stride_, bias_ ? data_of<T>(*bias_) : nullptr,
                                     static_cast<A>(logit_scale_), static_cast<A>(softcap_), stream_));
    return rows;
  }

  void score(const LogitRows<L>& rows, const TokenStats<A>& stats, int64_t count) const {
    check(launch_token_logprobs<L>(rows, count, stats, stream_));
  }

  // The gradients of the workspace's rows: row i is in the bytes of its logits.
  T* gradients() { return reinterpret_cast<T*>(workspace()); }
  int64_t gradient_stride() const { return stride_ * static_cast<int64_t>(sizeof(L) / sizeof(T)); }
  // Whether a kernel that ignores the softcap and float16's scale may write gradients there.
  bool gradients_are_plain() const { return softcap_ == 0.0 && !kScales; }

  // Adds the gradient of these rows, whose logits are in the workspace and are gone afterwards; with `formed` they are
  // gradients already, all zero where by_logprobs and by_entropy are.
  void add_gradient(const RowChunk& chunk, const LogitRows<L>& rows, const TokenStats<A>& stats, const A* by_logprobs,
                    const A* by_entropy, bool formed = false) {
    if (!needs_.any()) return;
    RowChunk kept = chunk;
    kept.count = chunk.may_count;
    const RowSelection selection = RowSelection::in(selection_.mutable_data_ptr(), capacity_);
    bool selected = false;
    if (can_wait_ && kept.count > 0) {
      check(launch_select_rows<A>(chunk.tokens, rows.mask, by_logprobs, by_entropy, kept.count, selection, stream_));
      const auto [active, moved] = selected_numbers();
      if (active == 0) return;
      // Leaving out a few rows takes longer than multiplying their zeros.
      selected = whole_tiles(active) < kept.count;
      if (selected) kept = {selection.order, active, kAnyOrder, active};
      if (selected && formed)
        check(launch_move_rows<T>(gradients(), vocab_, gradient_stride(), selection, moved, stream_));
    }
    if (kept.count == 0) return;
    float* numbers = nullptr;
    if constexpr (kScales) {
      numbers = numbers_.mutable_data_ptr<float>();
      check(launch_gradient_scale(kept.tokens, by_logprobs, by_entropy, kept.count, static_cast<float>(logit_scale_),
                                  numbers, stream_));
    }
    if (!formed) {
      const A* scale = nullptr;
      if constexpr (kScales) scale = numbers;
      check(launch_head_gradient<L, T>(rows, chunk.may_count, stats, by_logprobs, by_entropy, scale,
                                       static_cast<A>(softcap_), selected ? selection.slots : nullptr, gradients(),
                                       gradient_stride(), stream_));
    }
    multiply(kept, selected ? fill_tile(kept.count) : kept.count, rows.mask, numbers);
  }

  // Called when all gradients have been added.
  void finish() {
    if (!has_weight_sum_) torch::stable::zero_(grad_weight);
  }

  Tensor grad_hidden;  // [tokens, hidden_size], the dtype of hidden; empty unless needed
  Tensor grad_weight;  // [vocab, hidden_size], summed and kept in A, or rounded to T after each chunk
  Tensor grad_bias;    // [vocab], in A

 private:
  // Gradients in float16 are scaled to about 1, because numbers like 1e-8 would become 0.
  static constexpr bool kScales = std::is_same_v<T, Float16>;
  static constexpr ScalarType kSums = sizeof(A) == sizeof(double) ? ScalarType::Double : ScalarType::Float;
  static constexpr ScalarType kLogits = std::is_same_v<L, double>     ? ScalarType::Double
                                        : std::is_same_v<L, float>    ? ScalarType::Float
                                        : std::is_same_v<L, BFloat16> ? ScalarType::BFloat16
                                                                      : ScalarType::Half;

  // Rows are multiplied in multiples of 16, filled up with arbitrary rows: for fewer rows cuBLAS uses other kernels,
  // which sum in another order (measured on an H200). So the bits of a token's log-prob do not depend on the other
  // tokens of the call, and an unchanged policy has ratio 1.
  static constexpr int64_t kRowBlock = 16;
  static int64_t whole_blocks(int64_t rows) { return (rows + kRowBlock - 1) / kRowBlock * kRowBlock; }

  static void check(int error) { check_launch("the linear head", error); }

  L* workspace() { return static_cast<L*>(workspace_.mutable_data_ptr()); }

  // Waits for the device and returns the numbers of the selection.
  std::pair<int64_t, int64_t> selected_numbers() {
    const Tensor numbers = on_host(torch::stable::narrow(selection_, 0, 0, 2 * sizeof(int64_t)));
    const auto* values = static_cast<const int64_t*>(numbers.const_data_ptr());
    return {values[0], values[1]};
  }

  // The hidden states of each row, with `readable` rows in all: a part of `hidden`, or a gathered copy.
  const T* rows_of_hidden(const RowChunk& chunk, int64_t readable, const bool* mask) {
    if (chunk.first != kAnyOrder && chunk.first + readable <= hidden_.size(0))
      return data_of<T>(hidden_) + chunk.first * width_;
    if (!gathered_) gathered_ = torch::stable::new_zeros(hidden_, {whole_blocks(capacity_), width_});
    T* const to = static_cast<T*>(gathered_->mutable_data_ptr());
    check(launch_gather_rows<T>(data_of<T>(hidden_), width_, chunk.tokens, mask, chunk.count, to, stream_));
    return to;
  }

  // Writes zeros after `count` rows of gradients, up to a whole tile; returns the number of rows with them.
  int64_t fill_tile(int64_t count) {
    const int64_t multiplied = whole_tiles(count);
    clear(gradients() + count * gradient_stride(), (multiplied - count) * gradient_stride());
    return multiplied;
  }
  void clear(T* data, int64_t elements) {
    check(cudaMemsetAsync(data, 0, sizeof(T) * static_cast<size_t>(elements), static_cast<cudaStream_t>(stream_)));
  }

  // Multiplies the first `multiplied` rows of the workspace: d loss / d x of these tokens, and zeros after them.
  void multiply(const RowChunk& kept, int64_t multiplied, const bool* mask, const float* numbers) {
    const Matrix<const T> gradient{gradients(), gradient_stride()};
    const float* device_alpha = numbers ? numbers + 1 : nullptr;
    if (needs_.hidden) {
      T* to = static_cast<T*>(grad_hidden.mutable_data_ptr());
      if (kept.first != kAnyOrder) {
        to += kept.first * width_;
      } else {
        if (!by_hidden_) by_hidden_ = fresh(hidden_, {whole_blocks(capacity_), width_});
        to = static_cast<T*>(by_hidden_->mutable_data_ptr());
      }
      blas_.template multiply<T, T>(multiplied, width_, vocab_, logit_scale_, gradient, false,
                                    {data_of<T>(weight_), width_}, false, 0.0, {to, width_}, device_alpha);
      if (kept.first == kAnyOrder)
        check(launch_scatter_rows<T>(to, width_, kept.tokens, kept.count,
                                     static_cast<T*>(grad_hidden.mutable_data_ptr()), stream_));
    }
    if (needs_.weight) {
      const Matrix<const T> x{rows_of_hidden(kept, multiplied, mask), width_};
      if (multiplied > kept.count)
        clear(static_cast<T*>(gathered_->mutable_data_ptr()) + kept.count * width_, (multiplied - kept.count) * width_);
      const auto add = [&](auto* sum) {
        blas_.template multiply<T>(vocab_, width_, multiplied, logit_scale_, gradient, true, x, false,
                                   has_weight_sum_ ? 1.0 : 0.0,
                                   Matrix<std::remove_pointer_t<decltype(sum)>>{sum, width_}, device_alpha);
      };
      if (grad_weight.scalar_type() == hidden_.scalar_type())
        add(static_cast<T*>(grad_weight.mutable_data_ptr()));
      else
        add(static_cast<A*>(grad_weight.mutable_data_ptr()));
      has_weight_sum_ = true;
    }
    if (needs_.bias) {
      const A* factor = nullptr;
      if constexpr (kScales) factor = device_alpha;
      check(launch_add_columns<T>(gradients(), kept.count, vocab_, gradient_stride(), static_cast<A>(logit_scale_),
                                  factor, grad_bias.mutable_data_ptr<A>(), stream_));
    }
  }

  Tensor hidden_, weight_;
  OptionalTensor bias_;
  double logit_scale_, softcap_;
  int64_t vocab_, width_, stride_, capacity_;
  LinearNeeds needs_;
  bool can_wait_, has_weight_sum_ = false;
  void* stream_;
  Cublas blas_;
  Tensor workspace_, selection_, numbers_;
  OptionalTensor gathered_, by_hidden_;
};

// Calls function(T{}, L{}) with the dtype of the head and that of its logits.
template <class Function>
auto with_head_types(const LinearArguments& in, const Function& function) {
  return with_float_type("hidden", in.hidden, [&](auto head) {
    using T = decltype(head);
    if constexpr (sizeof(T) == 2)
      return in.rounded_logits ? function(T{}, T{}) : function(T{}, Accumulator<T>{});
    else
      return function(T{}, T{});
  });
}

}  // namespace kc
