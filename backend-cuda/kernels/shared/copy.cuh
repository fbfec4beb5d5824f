// Asynchronous copies into shared memory. Defined in front: REAL.
#pragma once

#include "shared/warp.cuh"

// Starts the copy of two numbers into shared memory (zeros if not `there`), and does not wait for it.
__device__ __forceinline__ void copy_two(REAL* to, const REAL* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
               "n"(2 * sizeof(REAL)), "r"(there ? (u32)(2 * sizeof(REAL)) : 0u)
               : "memory");
}
