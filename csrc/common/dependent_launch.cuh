// Kernels of one stream that overlap (programmatic dependent launch, sm_90 and newer): a kernel lets the next one start
// early. If the next one was launched with the attribute for this, it waits before it reads the first one's results.
#pragma once

#include <cuda_runtime.h>

namespace kc {

__device__ __forceinline__ void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when the previous kernel has ended and its results are visible. In an ordinary launch it returns at once.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace kc
