// Arithmetic of the pair loops.
#pragma once

#include "shared/intrinsics.cuh"

// 1/sqrt(x) to the last bit or two for normal x. Infinite or NaN at 0, for subnormal x, and if the square root
// overflows. The caller looks for sums that are not finite and repeats them with a test for zero distances.
__device__ __forceinline__ float bare_rsqrt(float x) { return rsqrt_seed(x); }

// In f64: a seed y of about 20 bits and one step of third order, y(1 + e/2 + 3e²/8) with e = 1 - x y².
__device__ __forceinline__ double bare_rsqrt(double x) {
  const double y = rsqrt_seed(x);
  const double e = fma(-x * y, y, 1.0);
  return fma(fma(0.375, e, 0.5), y * e, y);
}

// Whether x is neither infinite nor NaN.
template <class T>
__device__ __forceinline__ bool finite(T x) {
  return x - x == 0;
}
