// P2P: the near field of each leaf.
//
// In front of this file: REAL, STRENGTHS, VALUES, BLOCKS (of a multiprocessor), SPLIT, MOST and TILE_BYTES (group.cuh),
// FRAMED, `guarded_pair` and `bare_pair` as for direct.cu, whose rule for zero distances holds here too. With FRAMED
// coordinates are taken relative to the leaf in units of its side; else they are the caller's.

#include "shared/level.cuh"
#include "shared/real.cuh"
#include "shared/source.cuh"
#include "shared/group.cuh"

#define LEVEL_ROW (LEVEL_HEAD + STRENGTHS + VALUES)
// The targets of leaf items[blockIdx.x], in groups. A block is a warp. `same`: targets are the sources, and each skips
// itself.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    p2p(const Boxes* boxes, const double* corner, const double* levels, const u32* items, const u64* starts,
        const u32* row, u32 same, const double* source_xyz, u64 sources, const double* strengths,
        const double* target_xyz, u64 targets, double* values) {
  __shared__ Source tile[TILE];
  const Boxes t = *boxes;
  const u32 b = items[blockIdx.x];
  const uint2 range = t.target_range[b];
  const double* level = levels + LEVEL_ROW * t.level[b];
  double center[3] = {0, 0, 0};
  double scale = 1;
#if FRAMED
  center_of(t, b, corner, level[0], center);
  scale = 1 / level[0];
#endif
  REAL params[4];
  for (int k = 0; k < 4; ++k) params[k] = (REAL)level[1 + k];
  double factors[STRENGTHS];
  for (int c = 0; c < STRENGTHS; ++c) factors[c] = level[LEVEL_HEAD + c];
  const u32 lane = threadIdx.x % LANES, slice = threadIdx.x / LANES;

  for_groups(range, [&](auto each, u32 first) {
    constexpr int EACH = decltype(each)::value;
    auto target = [&](int n) { return min(first + n * LANES + lane, range.y - 1); };
    REAL x[EACH][3];
    double sum[KEPT(EACH)][VALUES] = {};
#pragma unroll
    for (int n = 0; n < EACH; ++n)
      for (int a = 0; a < 3; ++a) x[n][a] = (REAL)((target_xyz[a * targets + target(n)] - center[a]) * scale);

    // First the boxes that hold none of the targets, tiles filled across boxes; then, if targets are sources, the others,
    // a tile from one box, where each target skips itself.
    for (u32 own = 0; own <= same; ++own) {
      const u64 end = starts[b + 1];
      // Of the next 32 boxes of the row their ranges, and which of them are to be done.
      u64 e = starts[b];
      uint2 ranges = {};
      u32 left = 0, begin = 0, stop = 0;
      for (bool more = true; more;) {
        u32 filled = 0;
        __syncwarp();
        while (filled < TILE) {
          if (begin == stop) {
            if (own && filled > 0) break;
            while (left == 0 && e < end) {
              ranges = e + lane_id() < end ? t.source_range[row[e + lane_id()]] : make_uint2(0, 0);
              const bool overlap = same && ranges.x < range.y && range.x < ranges.y;
              left = __ballot_sync(~0u, ranges.x < ranges.y && overlap == (own == 1));
              e += 32;
            }
            if (left == 0) {
              more = false;
              break;
            }
            const int next = __ffs(left) - 1;
            left &= left - 1;
            begin = __shfl_sync(~0u, ranges.x, next), stop = __shfl_sync(~0u, ranges.y, next);
          }
          const u32 count = min(stop - begin, TILE - filled);
          for (u32 j = threadIdx.x; j < count; j += THREADS) {
            Source y = {};
            for (int a = 0; a < 3; ++a) y.v[a] = (REAL)((source_xyz[a * sources + begin + j] - center[a]) * scale);
            for (int c = 0; c < STRENGTHS; ++c)
              y.v[3 + c] = (REAL)(strengths[(u64)(begin + j) * STRENGTHS + c] * factors[c]);
            tile[filled + j] = y;
          }
          filled += count;
          begin += count;
        }
        __syncwarp();
        // The last chunk is filled up with a source without strength.
        const u32 whole = (filled + CHUNK - 1) / CHUNK * CHUNK;
        if (filled + threadIdx.x < whole) {
          Source y = tile[0];
          for (int c = 0; c < STRENGTHS; ++c) y.v[3 + c] = 0;
          tile[filled + threadIdx.x] = y;
        }
        __syncwarp();

        // Pairs are tested only if a sum is not finite.
        for (bool careful = false;; careful = true) {
          REAL part[EACH][VALUES] = {};
          auto add = [&](auto pair, const Source& y, int n, REAL dx, const REAL* q) {
            REAL u[VALUES];
            pair(params, dx, x[n][1] - y.v[1], x[n][2] - y.v[2], q, u);
#pragma unroll
            for (int k = 0; k < VALUES; ++k) part[n][k] += u[k];
          };
          // With a source that may be one of the targets: that one gets another distance and no strength.
          auto skipping = [&](auto pair, u32 j) {
            const Source y = tile[j];
            const u32 position = begin - filled + j;
#pragma unroll
            for (int n = 0; n < EACH; ++n) {
              const bool self = own && target(n) == position;
              REAL q[STRENGTHS];
#pragma unroll
              for (int c = 0; c < STRENGTHS; ++c) q[c] = self ? REAL(0) : y.v[3 + c];
              add(pair, y, n, self ? REAL(1) : x[n][0] - y.v[0], q);
            }
          };
          auto bare = [](auto... of) { bare_pair(of...); };
          auto guarded = [](auto... of) { guarded_pair(of...); };
          if (careful) {
            for (u32 j = slice; j < filled; j += SPLIT) skipping(guarded, j);
          } else if (own) {
            for (u32 j = slice; j < filled; j += SPLIT) skipping(bare, j);
          } else {
            for (const Source *at = tile + slice, *last = tile + whole; at < last; at += CHUNK) {
#pragma unroll
              for (int i = 0; i < CHUNK; i += SPLIT) {
                const Source y = at[i];
#pragma unroll
                for (int n = 0; n < EACH; ++n) add(bare, y, n, x[n][0] - y.v[0], y.v + 3);
              }
            }
          }
          if (!join(part) && !careful) continue;
          for_kept(part, slice, [&](int n, int k, double mine) { sum[n][k] += mine; });
          break;
        }
      }
    }
    add_kept<EACH>(sum, first, range.y, level + LEVEL_HEAD + STRENGTHS, values);
  });
}
