// Copies that nobody waits for yet. In front: REAL.
#pragma once

#include "shared/warp.cuh"

// Two numbers into shared memory, zeros unless `there`, without waiting for them.
__device__ __forceinline__ void copy_two(REAL* to, const REAL* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
               "n"(2 * sizeof(REAL)), "r"(there ? (u32)(2 * sizeof(REAL)) : 0u)
               : "memory");
}
