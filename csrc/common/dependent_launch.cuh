// Kernels of one stream that overlap (programmatic dependent launch, sm_90 and newer): a kernel lets the next one start
// early; that one, if it was launched with the attribute for it, waits before it reads what the first one writes.
#pragma once

#include <cuda_runtime.h>

namespace kc {

__device__ __forceinline__ void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns once the kernel before this one has ended and what it wrote is visible. At once in an ordinary launch.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace kc
