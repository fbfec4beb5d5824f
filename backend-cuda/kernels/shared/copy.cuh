// Asynchronous copies into shared memory. Defined in front: REAL.
#pragma once

#include "shared/intrinsics.cuh"
#include "shared/warp.cuh"

// Starts the copy of two numbers into shared memory (zeros if not `there`), and does not wait for it.
__device__ __forceinline__ void copy_two(REAL* to, const REAL* from, bool there) {
  copy_async<2 * sizeof(REAL)>(to, from, there);
}
