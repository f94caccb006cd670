// The torch side of calls with rows of logits: checks that token_logprobs and the losses share.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <limits>
#include <optional>
#include <string>
#include <tuple>

#include "common/checks.h"
#include "common/half.h"
#include "common/tensors.h"
#include "ops/token_logprobs.h"

namespace kc {

using OptionalTensor = std::optional<Tensor>;

// An empty tensor may have a null pointer, which would mean "not given".
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

inline bool is_on_host(const Tensor& tensor) {
  return tensor.device().type() == DeviceType::CPU;
}

// Whether this is one number for all tokens on the host, which no kernel has to read from memory.
inline bool is_host_number(const Tensor& tensor) {
  return tensor.dim() == 0 && is_on_host(tensor);
}

// ids [tokens] in [0, vocab) where the mask is true or absent; temperature of the tokens' shape or 0-D and more than 0,
// in `accumulator`. The values of tensors on a GPU are not read, because that would mean waiting for it.
inline void check_tokens(const Tensor& ids, const Tensor& temperature, const OptionalTensor& mask,
                         const char* with_name, const Tensor& with, const TokenShape& shape, int64_t vocab,
                         ScalarType accumulator) {
  check_token_values("ids", ids, shape);
  check_dtype("ids", ids, ScalarType::Long);
  check_same_device("ids", ids, with_name, with);
  const bool is_number = temperature.dim() == 0;
  if (!is_number && !shape.is_padded())
    check(temperature.dim() == 1 && temperature.size(0) == shape.count(),
          "temperature must be a number or have shape [tokens] = [", shape.count(), "]; got ", shape_of(temperature));
  else if (!is_number)
    check_token_values("temperature", temperature, shape);
  check_dtype("temperature", temperature, accumulator);
  if (!is_host_number(temperature)) check_same_device("temperature", temperature, with_name, with);
  if (mask) {
    check_token_values("mask", *mask, shape);
    check_dtype("mask", *mask, ScalarType::Bool);
    check_same_device("mask", *mask, with_name, with);
  }
#ifndef KC_CUDA
  const Tensor flat_ids = dense(ids);
  const int64_t* id = data_of<int64_t>(flat_ids);
  OptionalTensor flat_mask;
  if (mask) flat_mask = dense(*mask);
  const bool* counts = flat_mask ? data_of<bool>(*flat_mask) : nullptr;
  for (int64_t t = 0; t < shape.count(); ++t) {
    check((counts && !counts[t]) || (id[t] >= 0 && id[t] < vocab), "ids[", t, "] must be in [0, ", vocab, "); got ",
          id[t]);
  }
#else
  static_cast<void>(vocab);
#endif
  if (!is_on_host(temperature)) return;
  const Tensor flat_temperature = dense(temperature);
  for (int64_t t = 0; t < temperature.numel(); ++t) {
    const double value = accumulator == ScalarType::Double ? data_of<double>(flat_temperature)[t]
                                                           : static_cast<double>(data_of<float>(flat_temperature)[t]);
    // Below the smallest normal float the inverse overflows.
    check(value >= std::numeric_limits<float>::min() && value <= std::numeric_limits<float>::max(),
          "temperature must be finite and more than 0; got ", value);
  }
}

// Checks the inputs of a backward that is called without its forward: one number for each token, in `accumulator`.
inline void check_saved(const OptionalTensor& grad_logprobs, const OptionalTensor& grad_entropy, const Tensor& logprobs,
                        const Tensor& entropy, const Tensor& max, const Tensor& sum, const TokenShape& shape,
                        ScalarType accumulator) {
  const auto check_one = [&](const char* name, const Tensor& tensor) {
    check_token_values(name, tensor, shape);
    check_dtype(name, tensor, accumulator);
  };
  if (grad_logprobs) check_one("grad_logprobs", *grad_logprobs);
  if (grad_entropy) check_one("grad_entropy", *grad_entropy);
  check_one("logprobs", logprobs);
  check_one("entropy", entropy);
  check_one("max", max);
  check_one("sum", sum);
}

// Number of rows for a thread, so that it gets about 32,000 elements.
inline int64_t row_grain(int64_t vocab) {
  return vocab >= 32768 ? 1 : 32768 / (vocab > 0 ? vocab : 1);
}

// Rows may have any stride; if the elements of a row are not adjacent, the tensor is copied.
inline Tensor with_dense_rows(const Tensor& logits) {
  const int64_t last = logits.dim() - 1;
  return logits.size(last) <= 1 || logits.stride(last) == 1 ? logits : torch::stable::contiguous(logits);
}

// The places of the rows of [tokens, vocab] or [sequences, length, vocab].
inline RowPlaces places_of(const Tensor& rows) {
  RowPlaces places;
  places.stride = rows.stride(rows.dim() - 2);
  if (rows.dim() == 3 && rows.size(0) > 1 && rows.stride(0) != rows.size(1) * places.stride) {
    places.inner = rows.size(1);
    places.outer_stride = rows.stride(0);
  }
  return places;
}

template <class T>
void set_temperature(LogitRows<T>& rows, const Tensor& temperature) {
  using A = Accumulator<T>;
  if (is_host_number(temperature))
    rows.temperature_value = *data_of<A>(temperature);
  else
    rows.temperature = data_of<A>(temperature);
  rows.temperature_per_token = temperature.dim() > 0;
}

template <class T>
LogitRows<T> rows_of(const Tensor& logits, const Tensor& ids, const Tensor& temperature, const OptionalTensor& mask) {
  LogitRows<T> rows;
  rows.logits = data_of<T>(logits);
  rows.places = places_of(logits);
  rows.vocab = logits.size(logits.dim() - 1);
  rows.ids = data_of<int64_t>(ids);
  set_temperature(rows, temperature);
  rows.mask = mask ? data_of<bool>(*mask) : nullptr;
  return rows;
}

inline OptionalTensor contiguous_or_none(const OptionalTensor& tensor) {
  return tensor ? OptionalTensor(dense(*tensor)) : std::nullopt;
}

// The op itself, for losses that begin with it: log-probs, entropy, and the two numbers of each row that the gradient
// needs.
std::tuple<Tensor, Tensor, Tensor, Tensor> token_logprobs(Tensor logits, Tensor ids, Tensor temperature,
                                                          OptionalTensor mask);

}  // namespace kc
