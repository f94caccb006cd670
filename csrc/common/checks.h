// Argument checks of the torch side. A failed check is a mistake of the caller and becomes Python's ValueError: up to
// torch 2.14, pybind11 gets the std::invalid_argument and converts it; for later versions see ops/_errors.py.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <sstream>
#include <stdexcept>
#include <string>

namespace kc {

using torch::headeronly::DeviceType;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

[[noreturn]] void fail_check(const std::string& message);

// check(x.dim() == 1, "rewards must be 1-D; got shape ", shape_of(x)).
template <typename... Parts>
void check(bool holds, const Parts&... parts) {
  if (holds) return;
  std::ostringstream message;
  (message << ... << parts);
  fail_check(message.str());
}

inline std::string shape_of(const Tensor& tensor) {
  std::ostringstream out;
  out << '[';
  for (int64_t d = 0; d < tensor.dim(); ++d) out << (d ? ", " : "") << tensor.size(d);
  out << ']';
  return out.str();
}

inline const char* name_of(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return "float32";
    case ScalarType::Double:
      return "float64";
    case ScalarType::Half:
      return "float16";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Bool:
      return "bool";
    case ScalarType::ComplexFloat:
      return "complex64";
    case ScalarType::ComplexDouble:
      return "complex128";
    default:
      return "another dtype";
  }
}

inline const char* name_of(DeviceType type) {
  switch (type) {
    case DeviceType::CPU:
      return "cpu";
    case DeviceType::CUDA:
      return "cuda";
    case DeviceType::Meta:
      return "meta";
    default:
      return "another device";
  }
}

// Checks that `name` is on the device of `with` (called `with_name`). The dispatcher looks at only one tensor argument.
inline void check_same_device(const char* name, const Tensor& tensor, const char* with_name, const Tensor& with) {
  check(tensor.device() == with.device(), name, " must be on the device of ", with_name, "; got ",
        name_of(tensor.device().type()), ':', tensor.device().index(), " and ", name_of(with.device().type()), ':',
        with.device().index());
}

inline void check_dtype(const char* name, const Tensor& tensor, ScalarType wanted) {
  check(tensor.scalar_type() == wanted, name, " must be ", name_of(wanted), "; got ", name_of(tensor.scalar_type()));
}

inline void check_vector(const char* name, const Tensor& tensor, int64_t length, const char* length_name) {
  check(tensor.dim() == 1 && tensor.size(0) == length, name, " must have shape [", length_name, "] = [", length,
        "]; got ", shape_of(tensor));
}

}  // namespace kc
