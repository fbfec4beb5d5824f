// Arithmetic of pair functions that are printed to add their values (fmm_traits::Tape::cuda_adding).
#pragma once

#include "shared/intrinsics.cuh"

// 1/x to the last bit or two for normal x.
__device__ __forceinline__ float reciprocal(float x) { return reciprocal_seed(x); }
// A seed y of 20 bits and one step of third order: y (1 + e + e²) with e = 1 - x y.
__device__ __forceinline__ double reciprocal(double x) {
  const double y = reciprocal_seed(x), e = fma(-x, y, 1.0);
  return fma(fma(e, e, e), y, y);
}

__device__ __forceinline__ bool is_zero(float x) { return x == 0; }
// Integers decide, so that the test takes no turn of the units for f64.
__device__ __forceinline__ bool is_zero(double x) {
  return ((__double2hiint(x) & 0x7fffffff) | __double2loint(x)) == 0;
}
