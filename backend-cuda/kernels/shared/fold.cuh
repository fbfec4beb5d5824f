// Sums of many numbers over a warp.
#pragma once

#include "shared/warp.cuh"

// Sums each of N numbers over the lanes of a warp, and spreads the sums over the lanes: lane l then holds the sums of
// numbers `first` … first + count - 1 in v[0] … v[count - 1], at most (N + 31) / 32 of them. Each step halves the
// numbers of a lane: it keeps one half, and gives the other half to the lane that keeps it. Call with D = 16, first = 0,
// count = N.
template <int N, int D, class T>
__device__ __forceinline__ void fold(T* v, u32& first, u32& count) {
  if constexpr (D > 0) {
    constexpr int HALF = (N + 1) / 2;
    const bool upper = lane_id() & D;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
      const T high = HALF + i < N ? v[HALF + i < N ? HALF + i : 0] : T(0);
      const T kept = upper ? high : v[i], given = upper ? v[i] : high;
      v[i] = kept + __shfl_xor_sync(~0u, given, D);
    }
    first += upper ? HALF : 0;
    count = upper ? (count > HALF ? count - HALF : 0) : (count < HALF ? count : HALF);
    fold<HALF, D / 2>(v, first, count);
  }
}
