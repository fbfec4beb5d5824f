// L2P and M2P: equivalent densities on the surfaces of boxes to values at the targets of a leaf.
//
// In front of this file: REAL, STRENGTHS (of a density), VALUES, THREADS, and `bare_pair`. Targets never
// lie on the surface whose density they see.

#include "shared/level.cuh"
#include "shared/real.cuh"
#include "shared/source.cuh"

#define LEVEL_ROW (LEVEL_HEAD + VALUES)
#define TILE 64

// A block for each of `items` (leaves), which sees the densities of the row of boxes with its number. Values
// are added to those of the targets. surface: x, y, z of n points of a unit box.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    from_surface(const Boxes* boxes, const double* corner, const double* levels, const u32* items, const u64* starts,
                 const u32* row, const double* surface, u32 n, const REAL* densities, const double* xyz, u64 points,
                 double* values) {
  __shared__ Source tile[TILE];
  const Boxes t = *boxes;
  const u32 b = items[blockIdx.x];
  const uint2 range = t.target_range[b];
  for (u32 first = range.x; first < range.y; first += THREADS) {
    const u32 i = first + threadIdx.x, at = min(i, range.y - 1);
    double sum[VALUES];
#pragma unroll
    for (int k = 0; k < VALUES; ++k) sum[k] = 0;
    for (u64 e = starts[b]; e < starts[b + 1]; ++e) {
      const u32 s = row[e];
      const double* level = levels + LEVEL_ROW * t.level[s];
      double center[3];
      center_of(t, s, corner, level[0], center);
      const double scale = 1 / level[0];
      REAL params[4], x[3], part[VALUES];
      for (int k = 0; k < 4; ++k) params[k] = (REAL)level[1 + k];
      for (int a = 0; a < 3; ++a) x[a] = (REAL)((xyz[a * points + at] - center[a]) * scale);
#pragma unroll
      for (int k = 0; k < VALUES; ++k) part[k] = 0;
      for (u32 begin = 0; begin < n; begin += TILE) {
        const u32 count = min((u32)TILE, n - begin);
        __syncthreads();
        for (u32 j = threadIdx.x; j < count; j += THREADS) {
          for (int a = 0; a < 3; ++a) tile[j].v[a] = (REAL)surface[a * n + begin + j];
          for (int c = 0; c < STRENGTHS; ++c) tile[j].v[3 + c] = densities[((u64)s * STRENGTHS + c) * n + begin + j];
        }
        __syncthreads();
        add_tile(params, tile, count, x, part);
      }
#pragma unroll
      for (int k = 0; k < VALUES; ++k) sum[k] += (double)part[k] * level[LEVEL_HEAD + k];
    }
    if (i < range.y)
      for (int k = 0; k < VALUES; ++k) values[(u64)i * VALUES + k] += sum[k];
  }
}
