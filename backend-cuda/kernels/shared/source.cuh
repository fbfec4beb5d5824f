// A source in shared memory: x, y, z, strengths, padded to whole 16-byte words, so that a thread reads it in
// few instructions; and the sum over a tile of them. In front: REAL, STRENGTHS, VALUES, `bare_pair`.
#pragma once

#include "shared/warp.cuh"

#define WORD (16 / (int)sizeof(REAL))
#define ROW ((3 + STRENGTHS + WORD - 1) / WORD * WORD)
struct alignas(16) Source {
  REAL v[ROW];
};
static_assert(sizeof(Source) == ROW * sizeof(REAL), "rows are packed");

// Adds the values at x of `count` sources, none of which lies there.
__device__ __forceinline__ void add_tile(const REAL* params, const Source* tile, u32 count, const REAL* x, REAL* sum) {
  for (u32 j = 0; j < count; ++j) {
    REAL u[VALUES];
    const Source y = tile[j];
    bare_pair(params, x[0] - y.v[0], x[1] - y.v[1], x[2] - y.v[2], y.v + 3, u);
#pragma unroll
    for (int k = 0; k < VALUES; ++k) sum[k] += u[k];
  }
}
