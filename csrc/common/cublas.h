// Matrix products by the cuBLAS that torch has loaded, on torch's own handle with its stream, workspace and math mode,
// so `torch.backends.cuda.matmul.allow_tf32` applies here, too. This project does not link cuBLAS: four functions are
// looked up at run time and declared here, as in cuBLAS 11, 12 and 13.
#pragma once

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <library_types.h>
#include <torch/csrc/stable/c/shim.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "common/half.h"

namespace kc {

struct CublasFunctions {
  int (*gemm)(void* handle, int transpose_a, int transpose_b, int m, int n, int k, const void* alpha, const void* a,
              cudaDataType a_type, int lda, const void* b, cudaDataType b_type, int ldb, const void* beta, void* c,
              cudaDataType c_type, int ldc, int compute_type, int algorithm);
  int (*get_math_mode)(void* handle, int* mode);
  int (*set_math_mode)(void* handle, int mode);
  int (*set_pointer_mode)(void* handle, int mode);

  static const CublasFunctions& get() {
    static const CublasFunctions found = [] {
      void* const torch = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
      const auto function = [&](const char* name) {
        void* address =
            torch ? dlsym(torch, name) : nullptr;  // also searches the libraries on which libtorch_cuda depends
        if (!address) address = dlsym(RTLD_DEFAULT, name);
        if (!address) throw std::runtime_error(std::string("this torch has loaded no cuBLAS with ") + name);
        return address;
      };
      CublasFunctions functions;
      functions.gemm = reinterpret_cast<decltype(functions.gemm)>(function("cublasGemmEx"));
      functions.get_math_mode = reinterpret_cast<decltype(functions.get_math_mode)>(function("cublasGetMathMode"));
      functions.set_math_mode = reinterpret_cast<decltype(functions.set_math_mode)>(function("cublasSetMathMode"));
      functions.set_pointer_mode =
          reinterpret_cast<decltype(functions.set_pointer_mode)>(function("cublasSetPointerMode_v2"));
      return functions;
    }();
    return found;
  }
};

template <class T>
constexpr cudaDataType cuda_type() {
  if constexpr (std::is_same_v<T, double>) return CUDA_R_64F;
  if constexpr (std::is_same_v<T, float>) return CUDA_R_32F;
  if constexpr (std::is_same_v<T, BFloat16>) return CUDA_R_16BF;
  return CUDA_R_16F;
}

// A matrix in memory whose rows are `stride` elements apart.
template <class T>
struct Matrix {
  T* data;
  int64_t stride;
};

// Computes products on the device and stream that are current when it is made.
class Cublas {
 public:
  Cublas() : cublas_(CublasFunctions::get()) {
    TORCH_ERROR_CODE_CHECK(torch_get_current_cuda_blas_handle(&handle_));
    require(cublas_.get_math_mode(handle_, &mode_));
    require(cublas_.set_math_mode(handle_, mode_ | kFullPrecisionReduction));
  }
  ~Cublas() { cublas_.set_math_mode(handle_, mode_); }
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  // c [m, n] = alpha a b + beta c with a [m, k] and b [k, n], each of which may be stored transposed. Sums are in
  // double for double, otherwise in float. With `device_numbers` (alpha, 0, 1 on the device) alpha is read from there,
  // and beta must be 0 or 1.
  template <class T, class C>
  void multiply(int64_t m, int64_t n, int64_t k, double alpha, Matrix<const T> a, bool transpose_a, Matrix<const T> b,
                bool transpose_b, double beta, Matrix<C> c, const float* device_numbers = nullptr) const {
    if (m == 0 || n == 0) return;
    constexpr bool kDouble = sizeof(T) == sizeof(double);
    const float narrow[2] = {static_cast<float>(alpha), static_cast<float>(beta)};
    const double wide[2] = {alpha, beta};
    const void* alpha_at = kDouble ? static_cast<const void*>(&wide[0]) : &narrow[0];
    const void* beta_at = kDouble ? static_cast<const void*>(&wide[1]) : &narrow[1];
    if (device_numbers) {
      alpha_at = device_numbers;
      beta_at = device_numbers + (beta == 0 ? 1 : 2);
      require(cublas_.set_pointer_mode(handle_, 1));
    }
    // cuBLAS is column-major: our rows are its columns, and c^T = b^T a^T.
    const int status = cublas_.gemm(handle_, transpose_b, transpose_a, static_cast<int>(n), static_cast<int>(m),
                                    static_cast<int>(k), alpha_at, b.data, cuda_type<T>(), static_cast<int>(b.stride),
                                    a.data, cuda_type<T>(), static_cast<int>(a.stride), beta_at, c.data, cuda_type<C>(),
                                    static_cast<int>(c.stride), kDouble ? 70 : 68, -1);
    if (device_numbers) cublas_.set_pointer_mode(handle_, 0);
    require(status);
  }

 private:
  // Partial sums in 16 bits are allowed by default.
  static constexpr int kFullPrecisionReduction = 16;

  static void require(int status) {
    if (status != 0) throw std::runtime_error("cuBLAS failed with status " + std::to_string(status));
  }

  const CublasFunctions& cublas_;
  void* handle_ = nullptr;
  int mode_ = 0;
};

}  // namespace kc
