// Tensors of the stable ABI with as few calls of the dispatcher as possible: an op makes about a dozen tensors, and
// each call of the dispatcher takes about a microsecond.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <vector>

#include "common/checks.h"

namespace kc {

// Returns the tensor itself if it is contiguous, otherwise a contiguous copy.
inline Tensor dense(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

// An uninitialised tensor on the device of `like`.
inline Tensor fresh(const Tensor& like, const std::vector<int64_t>& sizes, ScalarType type) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= sizes[d] > 0 ? sizes[d] : 1;
  }
  int32_t device_type = 0, device_index = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &device_index));
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(),
                                                  static_cast<int32_t>(type), device_type, device_index, &handle));
  return Tensor(handle);
}
inline Tensor fresh(const Tensor& like, const std::vector<int64_t>& sizes) {
  return fresh(like, sizes, like.scalar_type());
}

// The shape of the tokens of a call: packed (one after another), or padded (sequences of equal length).
struct TokenShape {
  std::vector<int64_t> sizes;  // {tokens}, or {sequences, length}

  int64_t count() const { return is_padded() ? sizes[0] * sizes[1] : sizes[0]; }
  bool is_padded() const { return sizes.size() == 2; }
  int64_t length() const { return is_padded() ? sizes[1] : 0; }  // of each sequence; 0 where they are packed
};

inline std::vector<int64_t> sizes_of(const Tensor& tensor) {
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < tensor.dim(); ++d) sizes.push_back(tensor.size(d));
  return sizes;
}

// Returns the shape of the tokens of a tensor whose last dimension holds `features` numbers for each token.
inline TokenShape tokens_with(const char* name, const Tensor& tensor, const char* features) {
  check(tensor.dim() == 2 || tensor.dim() == 3, name, " must have shape [tokens, ", features,
        "] or [sequences, length, ", features, "]; got ", shape_of(tensor));
  TokenShape shape{sizes_of(tensor)};
  shape.sizes.pop_back();
  return shape;
}

// Checks a tensor with one value for each token: of the shape of the tokens, or [tokens] in the same order.
inline void check_token_values(const char* name, const Tensor& tensor, const TokenShape& shape) {
  if (!shape.is_padded()) return check_vector(name, tensor, shape.count(), "tokens");
  const bool is_flat = tensor.dim() == 1 && tensor.size(0) == shape.count();
  const bool is_same = tensor.dim() == 2 && tensor.size(0) == shape.sizes[0] && tensor.size(1) == shape.sizes[1];
  check(is_flat || is_same, name, " must have shape [sequences, length] = [", shape.sizes[0], ", ", shape.sizes[1],
        "]; got ", shape_of(tensor));
}

}  // namespace kc
