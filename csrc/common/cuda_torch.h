// Helpers for the torch side of a CUDA op: the device guard, the caller's stream, and the check after a launch.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/tensor.h>

#include <stdexcept>
#include <string>

namespace kc {

// Makes the tensor's device current for this scope and gives torch's current stream of that device.
class CudaScope {
 public:
  explicit CudaScope(const torch::stable::Tensor& tensor) : guard_(tensor.get_device_index()) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream_));
  }
  void* stream() const { return stream_; }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  void* stream_ = nullptr;
};

inline void check_launch(const char* op, int error) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(op) +
                           " could not launch: " + cudaGetErrorString(static_cast<cudaError_t>(error)));
}

}  // namespace kc
