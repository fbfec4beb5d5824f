// The affine part of locals. Twin of fmm-kernels/src/equivalent/affine.rs. It has 4m numbers per box: for each of `m`
// components the value at the centre of the box and three slopes, in units of the box.
//
// Defined in front of this file: REAL, and MOST (at least the number of components).

#include "shared/level.cuh"

__device__ __forceinline__ REAL warp_sum(REAL x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}

// Removes the affine part from the check values of `items`, and stores it in `parts` together with the part that the
// parent hands down. One warp per box.
// * check: rows of `stride` numbers, component by component, at n points of `surface` (all x, then y, then z).
// * squares: sum of x² over the surface. slopes: the projection of slopes, 3m × 3m.
// * factor: converts a value from units of the parent to units of a child.
extern "C" __global__ void separate(const Boxes* boxes, const u8* octants, const u32* items, u32 count, u32 m, u32 n,
                                    const double* surface, double squares, const double* slopes, double factor,
                                    REAL* check, u32 stride, REAL* parts) {
  const Boxes t = *boxes;
  const u32 item = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (item >= count) return;
  const u32 b = items[item];
  REAL mean[MOST], all[MOST][3], kept[MOST][3];
#pragma unroll
  for (int c = 0; c < MOST; ++c) {
    if (c >= m) break;
    const REAL* u = check + (u64)b * stride + c * n;
    REAL sum[4] = {};
    for (u32 j = lane_id(); j < n; j += 32) {
      sum[0] += u[j];
#pragma unroll
      for (int a = 0; a < 3; ++a) sum[1 + a] += u[j] * (REAL)surface[a * n + j];
    }
    mean[c] = warp_sum(sum[0]) / (REAL)n;
#pragma unroll
    for (int a = 0; a < 3; ++a) all[c][a] = warp_sum(sum[1 + a]) / (REAL)squares;
  }
#pragma unroll
  for (int i = 0; i < 3 * MOST; ++i) {
    if (i >= 3 * m) break;
    kept[i / 3][i % 3] = 0;
#pragma unroll
    for (int j = 0; j < 3 * MOST; ++j) {
      if (j < 3 * m) kept[i / 3][i % 3] += (REAL)slopes[3 * m * i + j] * all[j / 3][j % 3];
    }
  }
#pragma unroll
  for (int c = 0; c < MOST; ++c) {
    if (c >= m) break;
    REAL* u = check + (u64)b * stride + c * n;
    for (u32 j = lane_id(); j < n; j += 32) {
      REAL field = mean[c];
#pragma unroll
      for (int a = 0; a < 3; ++a) field += kept[c][a] * (REAL)surface[a * n + j];
      u[j] -= field;
    }
    if (lane_id() > 0) continue;
    REAL part[4] = {mean[c], kept[c][0], kept[c][1], kept[c][2]};
    if (t.level[b] > 0) {
      const REAL* parent = parts + ((u64)t.parent[b] * m + c) * 4;
      part[0] += (REAL)factor * parent[0];
#pragma unroll
      for (int a = 0; a < 3; ++a) {
        const REAL half = (REAL)factor * (REAL)0.5 * parent[1 + a];
        part[1 + a] += half;
        part[0] += (octants[b] >> a & 1 ? (REAL)0.5 : (REAL)-0.5) * half;
      }
    }
    for (int k = 0; k < 4; ++k) parts[((u64)b * m + c) * 4 + k] = part[k];
  }
}
