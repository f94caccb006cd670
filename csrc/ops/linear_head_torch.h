// A language-model head that never stores all logits: a few rows at a time are computed in one workspace, overwritten
// by their gradient, and multiplied into the gradients of hidden states and weight.
#pragma once

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/linear_arguments.h"
#include "ops/linear_token_logprobs.h"
#include "ops/token_logprobs.h"
#include "ops/token_logprobs_torch.h"

namespace kc {

// T is the dtype of hidden states and weight; logits and their gradients are in A. A 16-bit weight is converted a tile
// of columns at a time, so that the logits are float32 without a float32 copy of the head.
template <class T>
class LinearHead {
 public:
  using A = Accumulator<T>;
  static constexpr int64_t kWorkspaceBytes = int64_t{256} << 20;
  static constexpr int64_t kTileColumns = 4096;
  // Rows are multiplied in multiples of 16, filled up with zeros: for the rows beyond a multiple of their block (MKL: 8
  // in float32, 16 in float64) BLAS libraries use another kernel, which rounds differently. So the bits of a token's
  // log-prob do not depend on the other tokens of the call, and an unchanged policy has ratio 1.
  static constexpr int64_t kRowBlock = 16;

  LinearHead(const LinearArguments& in, LinearNeeds needs)
      : hidden_(dense(in.hidden)),
        weight_(dense(in.weight)),
        vocab_(in.weight.size(0)),
        width_(in.hidden.size(1)),
        needs_(needs) {
    if (in.bias) bias_ = dense(torch::stable::to(*in.bias, kType));
    scaling_.bias = bias_ ? data_of<A>(*bias_) : nullptr;
    scaling_.logit_scale = in.logit_scale;
    scaling_.softcap = in.softcap;
    const int64_t row_bytes = std::max<int64_t>(1, vocab_) * static_cast<int64_t>(sizeof(A));
    capacity_ = in.chunk_rows ? in.chunk_rows : std::max<int64_t>(16, kWorkspaceBytes / row_bytes);
    capacity_ = std::max<int64_t>(1, std::min(capacity_, hidden_.size(0)));
    workspace_ = fresh(hidden_, {whole_blocks(capacity_), vocab_}, kType);
    grad_hidden = torch::stable::new_zeros(hidden_, {needs.hidden ? hidden_.size(0) : 0, width_});
    grad_weight = torch::stable::new_zeros(hidden_, {needs.weight ? vocab_ : 0, width_}, kType);
    grad_bias = torch::stable::new_zeros(hidden_, {needs.bias ? vocab_ : 0}, kType);
  }

  int64_t capacity() const { return capacity_; }
  int64_t vocab() const { return vocab_; }

  // Computes the logits of `count` tokens, at most capacity(), in the workspace; `rows` holds the other fields of the
  // result.
  LogitRows<A> logits(const int64_t* tokens, int64_t count, LogitRows<A> rows) {
    const int64_t multiplied = whole_blocks(count);
    Tensor x = gather(tokens, count, multiplied);
    Tensor all = torch::stable::narrow(workspace_, 0, 0, multiplied);
    for_tiles([&](int64_t begin, int64_t columns, Tensor tile) {
      Tensor out = torch::stable::narrow(all, 1, begin, columns);
      TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_mm_out(out.get(), x.get(), torch::stable::transpose(tile, 0, 1).get()));
    });
    A* data = workspace_.template mutable_data_ptr<A>();
    if (!scaling_.is_identity())
      torch::stable::parallel_for(0, count, row_grain(vocab_), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) scale_logits_row(scaling_, data + i * vocab_, vocab_);
      });
    rows.logits = data;
    rows.places.stride = rows.vocab = vocab_;
    rows.tokens = tokens;
    return rows;
  }

  void score(const LogitRows<A>& rows, const TokenStats<A>& stats, int64_t count) const {
    torch::stable::parallel_for(0, count, row_grain(vocab_),
                                [&](int64_t begin, int64_t end) { token_logprobs_rows(rows, stats, begin, end); });
  }

  // Adds the gradient of these rows, which are in the workspace and are overwritten. Rows without gradient are not
  // multiplied.
  void add_gradient(const LogitRows<A>& rows, const TokenStats<A>& stats, const A* grad_logprobs, const A* grad_entropy,
                    int64_t count) {
    std::vector<int64_t> active, tokens;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t t = rows.tokens[i];
      if ((grad_logprobs && grad_logprobs[t] != 0) || (grad_entropy && grad_entropy[t] != 0)) {
        active.push_back(i);
        tokens.push_back(t);
      }
    }
    const auto kept = static_cast<int64_t>(active.size());
    if (kept == 0 || !needs_.any()) return;
    A* data = workspace_.template mutable_data_ptr<A>();
    torch::stable::parallel_for(0, kept, row_grain(vocab_), [&](int64_t begin, int64_t end) {
      std::vector<A> logits_row(scaling_.softcap != 0.0 ? static_cast<size_t>(vocab_) : 0);
      for (int64_t k = begin; k < end; ++k) {
        const int64_t i = active[static_cast<size_t>(k)];
        A* row = data + i * vocab_;
        std::copy_n(row, logits_row.size(), logits_row.data());
        token_logprobs_grad_rows(rows, stats, grad_logprobs, grad_entropy, data, rows.places, i, i + 1);
        scale_gradient_row(scaling_, logits_row.data(), row, vocab_);
      }
    });
    for (int64_t k = 0; k < kept; ++k)  // close the gaps; a row only moves up
      if (active[static_cast<size_t>(k)] != k)
        std::memcpy(data + k * vocab_, data + active[static_cast<size_t>(k)] * vocab_,
                    sizeof(A) * static_cast<size_t>(vocab_));
    multiply(tokens, kept);
  }

  Tensor grad_hidden;  // [tokens, hidden_size], the dtype of hidden; empty unless needed
  Tensor grad_weight;  // [vocab, hidden_size], summed in A
  Tensor grad_bias;    // [vocab], summed in A

 private:
  static constexpr ScalarType kType = sizeof(A) == sizeof(double) ? ScalarType::Double : ScalarType::Float;
  static constexpr bool kWiden = sizeof(T) != sizeof(A);

  template <class Visit>
  void for_tiles(const Visit& visit) {
    const int64_t columns = kWiden ? kTileColumns : std::max<int64_t>(1, vocab_);
    for (int64_t begin = 0; begin < vocab_; begin += columns) {
      const int64_t count = std::min(columns, vocab_ - begin);
      Tensor tile = torch::stable::narrow(weight_, 0, begin, count);
      visit(begin, count, kWiden ? torch::stable::to(tile, kType) : tile);
    }
  }

  static int64_t whole_blocks(int64_t rows) { return (rows + kRowBlock - 1) / kRowBlock * kRowBlock; }

  // The hidden states of `count` tokens, and zeros up to `rows`.
  Tensor gather(const int64_t* tokens, int64_t count, int64_t rows) {
    const bool in_a_row = count == rows && count > 0 && tokens[count - 1] - tokens[0] == count - 1;  // tokens rise
    Tensor x = in_a_row ? torch::stable::narrow(hidden_, 0, tokens[0], count) : fresh(hidden_, {rows, width_});
    if (!in_a_row) {
      const T* from = data_of<T>(hidden_);
      T* to = static_cast<T*>(x.mutable_data_ptr());
      const size_t row_bytes = sizeof(T) * static_cast<size_t>(width_);
      for (int64_t i = 0; i < count; ++i)
        std::memcpy(static_cast<void*>(to + i * width_), from + tokens[i] * width_, row_bytes);
      std::memset(static_cast<void*>(to + count * width_), 0, row_bytes * static_cast<size_t>(rows - count));
    }
    return kWiden ? torch::stable::to(x, kType) : x;
  }

  // Multiplies the first rows of the workspace, d loss / d product of these tokens. Rows are filled up to whole blocks
  // here, too: for fewer rows MKL computes dot products, whose sums over a large vocabulary lose digits (measured: an
  // error of 2e-5 instead of 6e-7).
  void multiply(const std::vector<int64_t>& tokens, int64_t count) {
    const int64_t multiplied = whole_blocks(count);
    A* data = workspace_.template mutable_data_ptr<A>();
    std::fill(data + count * vocab_, data + multiplied * vocab_, A(0));
    Tensor gradient = torch::stable::narrow(workspace_, 0, 0, multiplied);
    Tensor x = gather(tokens.data(), count, multiplied);
    Tensor by_hidden = fresh(hidden_, {needs_.hidden ? multiplied : 0, width_}, kType);
    for_tiles([&](int64_t begin, int64_t columns, Tensor tile) {
      Tensor part = torch::stable::narrow(gradient, 1, begin, columns);
      if (needs_.hidden) {
        const double keep = begin == 0 ? 0.0 : 1.0;
        TORCH_ERROR_CODE_CHECK(
            aoti_torch_cpu_addmm_out(by_hidden.get(), by_hidden.get(), part.get(), tile.get(), keep, 1.0));
      }
      if (needs_.weight) {
        Tensor sum = torch::stable::narrow(grad_weight, 0, begin, columns);
        TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_addmm_out(sum.get(), sum.get(),
                                                        torch::stable::transpose(part, 0, 1).get(), x.get(), 1.0, 1.0));
      }
    });
    if (needs_.hidden) {
      const Tensor rounded = torch::stable::to(by_hidden, hidden_.scalar_type());
      const T* from = data_of<T>(rounded);
      T* to = static_cast<T*>(grad_hidden.mutable_data_ptr());
      for (int64_t k = 0; k < count; ++k)
        std::memcpy(static_cast<void*>(to + tokens[static_cast<size_t>(k)] * width_), from + k * width_,
                    sizeof(T) * static_cast<size_t>(width_));
    }
    if (needs_.bias) {
      A* sum = grad_bias.template mutable_data_ptr<A>();
      torch::stable::parallel_for(0, vocab_, 4096, [&](int64_t begin, int64_t end) {
        for (int64_t k = 0; k < count; ++k)
          for (int64_t j = begin; j < end; ++j) sum[j] += data[k * vocab_ + j];
      });
    }
  }

  Tensor hidden_, weight_, workspace_;
  OptionalTensor bias_;
  HeadScaling<A> scaling_;
  int64_t vocab_, width_, capacity_ = 0;
  LinearNeeds needs_;
};

// Contiguous copies of the other tensors that the rows need, which live as long as this object.
template <class A>
struct TokenInputs {
  TokenInputs(const Tensor& ids_in, const Tensor& temperature_in, const OptionalTensor& mask_in)
      : ids(dense(ids_in)), temperature(dense(temperature_in)), mask(contiguous_or_none(mask_in)) {
    rows.ids = data_of<int64_t>(ids);
    set_temperature(rows, temperature);
    rows.mask = mask ? data_of<bool>(*mask) : nullptr;
  }

  // The unmasked tokens of [begin, end), in ascending order.
  std::vector<int64_t> unmasked(int64_t begin, int64_t end) const {
    std::vector<int64_t> tokens;
    for (int64_t t = begin; t < end; ++t)
      if (!rows.mask || rows.mask[t]) tokens.push_back(t);
    return tokens;
  }

  Tensor ids, temperature;
  OptionalTensor mask;
  LogitRows<A> rows;
};

}  // namespace kc
