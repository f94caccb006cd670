// Reductions over the 32 lanes of a warp in a fixed tree, so the bits are the same in every lane and every time.
#pragma once

#include <cuda_runtime.h>

namespace kc {

template <class V>
__device__ __forceinline__ V warp_sum(V value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}
template <class V>
__device__ __forceinline__ V warp_max(V value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = fmax(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

}  // namespace kc
