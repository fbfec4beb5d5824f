// P2P: the near field of each leaf.
//
// In front of this file: REAL, STRENGTHS, VALUES, THREADS, FRAMED, `guarded_pair` and `bare_pair` as for
// direct.cu, whose rule for zero distances holds here too. With FRAMED coordinates are taken relative to
// the leaf in units of its side; else they are the caller's.

#include "shared/level.cuh"
#include "shared/real.cuh"

#define LEVEL_ROW (LEVEL_HEAD + STRENGTHS + VALUES)
#define TILE 128
#define NOWHERE (~0u)

// A block for each of `items` (leaves); `same`: targets are the sources, and each skips itself.
extern "C" __global__ void __launch_bounds__(THREADS)
    p2p(const Boxes* boxes, const double* corner, const double* levels, const u32* items, const u64* starts,
        const u32* row, u32 same, const double* source_xyz, u64 sources, const double* strengths,
        const double* target_xyz, u64 targets, double* values) {
  __shared__ REAL tile[TILE][3 + STRENGTHS];
  const Boxes t = *boxes;
  const u32 b = items[blockIdx.x];
  const double* level = levels + LEVEL_ROW * t.level[b];
  double center[3] = {0, 0, 0};
  double scale = 1;
#if FRAMED
  center_of(t, b, corner, level[0], center);
  scale = 1 / level[0];
#endif
  REAL params[4];
  for (int k = 0; k < 4; ++k) params[k] = (REAL)level[1 + k];
  const uint2 range = t.target_range[b];
  for (u32 first = range.x; first < range.y; first += THREADS) {
    const u32 i = first + threadIdx.x, at = min(i, range.y - 1);
    REAL x[3];
    for (int a = 0; a < 3; ++a) x[a] = (REAL)((target_xyz[a * targets + at] - center[a]) * scale);
    double sum[VALUES];
#pragma unroll
    for (int k = 0; k < VALUES; ++k) sum[k] = 0;
    // Where in the tile this target is.
    u32 own = NOWHERE;

    auto add_tile = [&](u32 count) {
      __syncthreads();
      REAL part[VALUES];
#pragma unroll
      for (int k = 0; k < VALUES; ++k) part[k] = 0;
#pragma unroll 4
      for (u32 j = 0; j < count; ++j) {
        REAL u[VALUES];
        bare_pair(params, x[0] - tile[j][0], x[1] - tile[j][1], x[2] - tile[j][2], tile[j] + 3, u);
#pragma unroll
        for (int k = 0; k < VALUES; ++k) part[k] += u[k];
      }
      bool good = own == NOWHERE;
#pragma unroll
      for (int k = 0; k < VALUES; ++k) good = good && finite(part[k]);
      if (!good) {
        for (int k = 0; k < VALUES; ++k) part[k] = 0;
        for (u32 j = 0; j < count; ++j) {
          if (j == own) continue;
          REAL u[VALUES];
          guarded_pair(params, x[0] - tile[j][0], x[1] - tile[j][1], x[2] - tile[j][2], tile[j] + 3, u);
          for (int k = 0; k < VALUES; ++k) part[k] += u[k];
        }
      }
#pragma unroll
      for (int k = 0; k < VALUES; ++k) sum[k] += (double)part[k];
      own = NOWHERE;
      __syncthreads();
    };

    // Tiles are filled across boxes, so that all but the last are full.
    u32 filled = 0;
    for (u64 e = starts[b]; e < starts[b + 1]; ++e) {
      const uint2 from = t.source_range[row[e]];
      for (u32 begin = from.x; begin < from.y;) {
        const u32 count = min(from.y - begin, TILE - filled);
        for (u32 j = threadIdx.x; j < count; j += THREADS) {
          REAL* to = tile[filled + j];
          for (int a = 0; a < 3; ++a) to[a] = (REAL)((source_xyz[a * sources + begin + j] - center[a]) * scale);
          for (int c = 0; c < STRENGTHS; ++c)
            to[3 + c] = (REAL)(strengths[(u64)(begin + j) * STRENGTHS + c] * level[LEVEL_HEAD + c]);
        }
        if (same && at - begin < count) own = filled + at - begin;
        filled += count;
        begin += count;
        if (filled == TILE) {
          add_tile(TILE);
          filled = 0;
        }
      }
    }
    if (filled > 0) add_tile(filled);
    if (i < range.y)
#pragma unroll
      for (int k = 0; k < VALUES; ++k) values[(u64)i * VALUES + k] += sum[k] * level[LEVEL_HEAD + STRENGTHS + k];
  }
}
