// A matrix times many vectors: surface solves, M2M, M2L, L2L. Vectors are rows of an array, picked by number.
//
// In front of this file: REAL.

#include "shared/warp.cuh"

#define EDGE 64
#define DEPTH 16
#define THREADS 256

// out[to[j]] = (add ? out[to[j]] : 0) + factor · matrix · in[from[j]], j < count. The matrix has `rows` and
// `columns`, column by column; vectors start `in_stride` (`out_stride`) numbers apart; without `from` (`to`)
// the vector is j. A block computes EDGE rows of EDGE vectors, a thread 4 × 4 of them.
extern "C" __global__ void __launch_bounds__(THREADS)
    multiply(const REAL* matrix, u32 rows, u32 columns, const REAL* in, u32 in_stride, const u32* from, REAL* out,
             u32 out_stride, const u32* to, u32 count, double factor, u32 add) {
  __shared__ REAL a[DEPTH][EDGE], b[DEPTH][EDGE + 4];
  const u32 first_row = blockIdx.y * EDGE, first = blockIdx.x * EDGE;
  const u32 row = threadIdx.x % 16 * 4, vector = threadIdx.x / 16 * 4;
  // The vector that this thread loads, four numbers at a time.
  const u32 mine = threadIdx.x / 4, part = threadIdx.x % 4 * 4;
  const bool valid = first + mine < count;
  const REAL* source = valid ? in + (u64)(from ? from[first + mine] : first + mine) * in_stride : in;
  REAL sum[4][4] = {};
  for (u32 k = 0; k < columns; k += DEPTH) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < DEPTH * EDGE / THREADS; ++i) {
      const u32 at = threadIdx.x + i * THREADS, r = first_row + at % EDGE, c = k + at / EDGE;
      a[at / EDGE][at % EDGE] = r < rows && c < columns ? matrix[(u64)c * rows + r] : REAL(0);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      b[part + i][mine] = valid && k + part + i < columns ? source[k + part + i] : REAL(0);
    __syncthreads();
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      REAL x[4], y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = a[d][row + i], y[i] = b[d][vector + i];
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] += x[i] * y[j];
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const u32 v = first + vector + j;
    if (v >= count) continue;
    REAL* target = out + (u64)(to ? to[v] : v) * out_stride;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 r = first_row + row + i;
      if (r < rows) target[r] = (add ? target[r] : REAL(0)) + (REAL)factor * sum[i][j];
    }
  }
}
