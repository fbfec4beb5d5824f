// P2M and P2L: from sources to rows of harmonics. Twin of `Sums` in backend-cpu/src/spherical/points.rs.
//
// Defined in front of this file: REAL, STRENGTHS, LENGTH (harmonics of the largest order).

#include "shared/level.cuh"
#include "shared/harmonics.cuh"

#define LEVEL_ROW (LEVEL_HEAD + STRENGTHS)
#define THREADS 32
// Sources per thread.
#define EACH 2

// For each box b of `items`, one warp: sums the harmonics below `order` of the sources of the boxes in row b,
// separately for each strength. The sparse matrix of each strength (`rows` rows: starts, columns, entries) turns the
// sums into the first `rows` of the `stride` numbers of box b. They overwrite row b of `out`, or with `add` are added
// to it.
extern "C" __global__ void __launch_bounds__(THREADS)
    to_harmonics(const Boxes* boxes, const double* levels, const u32* items, const u64* starts,
                 const u32* row, const Step* steps, u32 order, u32 singular, const u32* matrix, const u32* columns,
                 const REAL* entries, u32 rows, u32 stride, const double* xyz, u64 points, const double* strengths,
                 u32 add, REAL* out) {
  __shared__ REAL sums[LENGTH];
  const Boxes t = *boxes;
  const u32 b = items[blockIdx.x], lane = threadIdx.x;
  const double* level = levels + LEVEL_ROW * t.level[b];
  const Frame frame = frame_of(t, b);
  const double scale = 1 / frame.side;
  REAL* to = out + (u64)b * stride;
  for (u32 k = 0; k < STRENGTHS; ++k) {
    for (u32 i = lane; i < order * order; i += THREADS) sums[i] = 0;
    __syncwarp();
    for (u64 e = starts[b]; e < starts[b + 1]; ++e) {
      const uint2 range = t.source_range[row[e]];
      for (u32 begin = range.x; begin < range.y; begin += EACH * THREADS) {
        Harmonics at[EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
          const u32 j = begin + i * THREADS + lane;
          // Lanes beyond the end repeat the last source with strength 0.
          place(at[i], xyz, points, min(j, range.y - 1), frame.center, scale, singular);
          at[i].cosine *= j < range.y ? (REAL)(strengths[(u64)j * STRENGTHS + k] * level[LEVEL_HEAD + k]) : (REAL)0;
        }
        for (u32 m = 0; m < order; ++m) {
          if (m > 0) {
            const Step step = steps[triangle(m, m)];
#pragma unroll
            for (int i = 0; i < EACH; ++i) at[i].next(step);
          }
          for_column(at, steps, m, order, [&](u32 n, const REAL(&cosines)[EACH], const REAL(&sines)[EACH]) {
            REAL c = 0, s = 0;
#pragma unroll
            for (int i = 0; i < EACH; ++i) c += cosines[i], s += sines[i];
            // One half of the warp adds up the cosines, the other the sines.
            REAL mine = lane < 16 ? c : s;
            mine += __shfl_xor_sync(~0u, lane < 16 ? s : c, 16);
#pragma unroll
            for (int d = 8; d > 0; d /= 2) mine += __shfl_xor_sync(~0u, mine, d);
            if (lane == 0) sums[n * n + m] += mine;
            if (lane == 16 && m > 0) sums[n * n + n + m] += mine;
          });
        }
      }
    }
    __syncwarp();
    for (u32 i = lane; i < rows; i += THREADS) {
      REAL sum = k > 0 || add ? to[i] : (REAL)0;
      const u32* range = matrix + k * rows + i;
      for (u32 e = range[0]; e < range[1]; ++e) sum += entries[e] * sums[columns[e]];
      to[i] = sum;
    }
    __syncwarp();
  }
}
