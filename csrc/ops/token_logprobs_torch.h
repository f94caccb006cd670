// The torch side of a call about rows of logits: checks shared by token_logprobs and the losses.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <limits>
#include <optional>
#include <string>
#include <tuple>

#include "common/checks.h"
#include "common/half.h"
#include "ops/token_logprobs.h"

namespace kc {

using OptionalTensor = std::optional<Tensor>;

// An empty tensor may have a null pointer, which would say "not given".
template <class T>
const T* data_of(const Tensor& tensor) {
  static const T nothing{};
  return tensor.numel() > 0 ? static_cast<const T*>(tensor.const_data_ptr()) : &nothing;
}

inline ScalarType accumulator_of(ScalarType type) {
  return type == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

// Calls function(T{}) with the storage type of `tensor`.
template <class Function>
auto with_float_type(const char* name, const Tensor& tensor, const Function& function) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      return function(float{});
    case ScalarType::Double:
      return function(double{});
    case ScalarType::BFloat16:
      return function(BFloat16{});
    case ScalarType::Half:
      return function(Float16{});
    default:
      fail_check(std::string(name) + " must be float32, float64, bfloat16 or float16; got " +
                 name_of(tensor.scalar_type()));
  }
}

// ids [tokens] in [0, vocab) where the mask is true or absent; temperature [tokens] or 0-D and more than 0, in
// `accumulator`. What ids and temperature hold is read on the CPU only: on a GPU that would mean to wait for it.
inline void check_tokens(const Tensor& ids, const Tensor& temperature, const OptionalTensor& mask,
                         const char* with_name, const Tensor& with, int64_t tokens, int64_t vocab,
                         ScalarType accumulator) {
  check_vector("ids", ids, tokens, "tokens");
  check_dtype("ids", ids, ScalarType::Long);
  check_same_device("ids", ids, with_name, with);
  check(temperature.dim() == 0 || (temperature.dim() == 1 && temperature.size(0) == tokens),
        "temperature must be a number or have shape [tokens] = [", tokens, "]; got ", shape_of(temperature));
  check_dtype("temperature", temperature, accumulator);
  check_same_device("temperature", temperature, with_name, with);
  if (mask) {
    check_vector("mask", *mask, tokens, "tokens");
    check_dtype("mask", *mask, ScalarType::Bool);
    check_same_device("mask", *mask, with_name, with);
  }
#ifndef KC_CUDA
  const Tensor flat_ids = torch::stable::contiguous(ids);
  const int64_t* id = data_of<int64_t>(flat_ids);
  OptionalTensor flat_mask;
  if (mask) flat_mask = torch::stable::contiguous(*mask);
  const bool* counts = flat_mask ? data_of<bool>(*flat_mask) : nullptr;
  for (int64_t t = 0; t < tokens; ++t) {
    check((counts && !counts[t]) || (id[t] >= 0 && id[t] < vocab), "ids[", t, "] must be in [0, ", vocab, "); got ",
          id[t]);
  }
  const Tensor flat_temperature = torch::stable::contiguous(temperature);
  for (int64_t t = 0; t < temperature.numel(); ++t) {
    const double value = accumulator == ScalarType::Double ? data_of<double>(flat_temperature)[t]
                                                           : static_cast<double>(data_of<float>(flat_temperature)[t]);
    // Below the smallest normal float the inverse overflows.
    check(value >= std::numeric_limits<float>::min() && value <= std::numeric_limits<float>::max(),
          "temperature must be finite and more than 0; got ", value);
  }
#else
  static_cast<void>(vocab);
#endif
}

// What a backward is handed, should somebody call it without its forward: [tokens] each, in `accumulator`.
inline void check_saved(const OptionalTensor& grad_logprobs, const OptionalTensor& grad_entropy, const Tensor& logprobs,
                        const Tensor& entropy, const Tensor& max, const Tensor& sum, int64_t tokens,
                        ScalarType accumulator) {
  const auto check_one = [&](const char* name, const Tensor& tensor) {
    check_vector(name, tensor, tokens, "tokens");
    check_dtype(name, tensor, accumulator);
  };
  if (grad_logprobs) check_one("grad_logprobs", *grad_logprobs);
  if (grad_entropy) check_one("grad_entropy", *grad_entropy);
  check_one("logprobs", logprobs);
  check_one("entropy", entropy);
  check_one("max", max);
  check_one("sum", sum);
}

// Rows of about 32,000 elements are enough work for a thread.
inline int64_t row_grain(int64_t vocab) {
  return vocab >= 32768 ? 1 : 32768 / (vocab > 0 ? vocab : 1);
}

// Rows may lie any distance apart; elements of a row that do not lie side by side are copied.
inline Tensor with_dense_rows(const Tensor& logits) {
  return logits.size(1) <= 1 || logits.stride(1) == 1 ? logits : torch::stable::contiguous(logits);
}

template <class T>
LogitRows<T> rows_of(const Tensor& logits, const Tensor& ids, const Tensor& temperature, const OptionalTensor& mask) {
  LogitRows<T> rows;
  rows.logits = data_of<T>(logits);
  rows.stride = logits.stride(0);
  rows.vocab = logits.size(1);
  rows.ids = data_of<int64_t>(ids);
  rows.temperature = data_of<Accumulator<T>>(temperature);
  rows.temperature_per_token = temperature.dim() == 1;
  rows.mask = mask ? data_of<bool>(*mask) : nullptr;
  return rows;
}

inline OptionalTensor contiguous_or_none(const OptionalTensor& tensor) {
  return tensor ? OptionalTensor(torch::stable::contiguous(*tensor)) : std::nullopt;
}

// The op itself, for the loss that begins with it: log-probs, entropy, and the two numbers a row that the gradient
// needs.
std::tuple<Tensor, Tensor, Tensor, Tensor> token_logprobs(Tensor logits, Tensor ids, Tensor temperature,
                                                          OptionalTensor mask);

}  // namespace kc
