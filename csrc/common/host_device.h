// KC_HOST_DEVICE marks a function that nvcc compiles for both sides, so that the CPU and the CUDA op share one formula.
#pragma once

#ifdef __CUDACC__
#define KC_HOST_DEVICE __host__ __device__ inline
#else
#define KC_HOST_DEVICE inline
#endif
