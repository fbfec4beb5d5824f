// P2P: the near field of each leaf.
//
// Defined in front of this file: REAL, STRENGTHS, LINEAR (strengths without attributes), VALUES, BLOCKS (per
// multiprocessor), SPLIT, MOST and TILE_BYTES (group.cuh), FRAMED, and `guarded_pair` and `bare_pair` as for direct.cu.
// The rule for zero distances is that of direct.cu. With FRAMED, coordinates are taken relative to the leaf, in units
// of its side; otherwise they are the caller's.

#include "shared/level.cuh"
#include "shared/real.cuh"
#include "shared/source.cuh"
#include "shared/group.cuh"

#define LEVEL_ROW (LEVEL_HEAD + STRENGTHS + VALUES)
// Whether loops are unrolled half as much, so that they fit into the instruction cache. In f32 with several values
// loops are the longest.
#define SHORT (sizeof(REAL) == 4 && VALUES > 1)
// Whether pairs within the leaf are tested for zero distances at once. In f64 with several values there are no
// registers for a second loop without the test.
#define TESTED (sizeof(REAL) == 8 && VALUES > 1)

// Sums the near field of leaf items[blockIdx.x], group by group. A block is one warp. `same`: targets are the
// sources, and each skips itself.
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
  REAL params[PARAMETERS];
#pragma unroll
  for (int k = 0; k < PARAMETERS; ++k) params[k] = (REAL)level[1 + k];
  double factors[STRENGTHS];
  for (int c = 0; c < STRENGTHS; ++c) factors[c] = level[LEVEL_HEAD + c];
  const u32 lane = threadIdx.x % LANES, slice = threadIdx.x / LANES;

  for_groups(range, [&](auto each, u32 first) {
    constexpr int EACH = decltype(each)::value, UNROLL = (EACH < 4 ? 4 : 2) / (SHORT ? 2 : 1);
    auto target = [&](int n) { return min(first + n * LANES + lane, range.y - 1); };
    REAL x[EACH][3];
    double sum[KEPT(EACH)][VALUES] = {};
#pragma unroll
    for (int n = 0; n < EACH; ++n)
      for (int a = 0; a < 3; ++a) x[n][a] = (REAL)((target_xyz[a * targets + target(n)] - center[a]) * scale);

    // A tile may hold sources of several boxes, so that all tiles but the last are full. `ranges` holds the source
    // ranges of 32 boxes of the row, one per lane.
    const u64 end = starts[b + 1];
    u64 e = starts[b];
    uint2 ranges = {};
    u32 next = 32, begin = 0, stop = 0;
    for (bool more = true; more;) {
      // The points of the leaf itself: their first slot in the tile, their number, and the position of the first.
      u32 filled = 0, own_slot = 0, own_count = 0, own_begin = 0;
      __syncwarp();
      while (filled < TILE) {
        if (begin == stop) {
          if (e == end) {
            more = false;
            break;
          }
          if (next == 32) {
            ranges = e + lane_id() < end ? t.source_range[row[e + lane_id()]] : make_uint2(0, 0);
            next = 0;
          }
          begin = __shfl_sync(~0u, ranges.x, next), stop = __shfl_sync(~0u, ranges.y, next);
          ++next, ++e;
        }
        const u32 count = min(stop - begin, TILE - filled);
        for (u32 j = threadIdx.x; j < count; j += THREADS) {
          Source y = {};
          for (int a = 0; a < 3; ++a) y.v[a] = (REAL)((source_xyz[a * sources + begin + j] - center[a]) * scale);
          for (int c = 0; c < STRENGTHS; ++c) y.v[3 + c] = (REAL)(strengths[(u64)(begin + j) * STRENGTHS + c] * factors[c]);
          tile[filled + j] = y;
        }
        if (same && begin < range.y && range.x < begin + count) own_begin = begin, own_slot = filled, own_count = count;
        filled += count;
        begin += count;
      }
      __syncwarp();

      // Levels of care about zero distances. 0: no pair is tested. 1: pairs within the leaf are tested. 2: all pairs
      // are tested. The level rises when a sum is not finite. In untested pairs within the leaf, a target skips
      // itself by a distance of 1 and strength 0.
      for (u32 care = TESTED;; care = care == 0 && own_count > 0 ? 1 : 2) {
        REAL part[EACH][VALUES] = {};
        for (u32 piece = 0; piece < 3; ++piece) {
          const u32 from = piece == 0 ? 0 : piece == 1 ? own_slot : own_slot + own_count;
          const u32 to = piece == 0 ? own_slot : piece == 1 ? own_slot + own_count : filled;
          if (care == 2 || (care == 1 && piece == 1)) {
            for (u32 j = from + slice; j < to; j += SPLIT) {
              const Source y = tile[j];
              // The position of this source if it belongs to the leaf.
              const u32 own = j - own_slot < own_count ? own_begin + (j - own_slot) : ~0u;
#pragma unroll
              for (int n = 0; n < EACH; ++n) {
                REAL u[VALUES];
                guarded_pair(params, x[n][0] - y.v[0], x[n][1] - y.v[1], x[n][2] - y.v[2], y.v + 3, u);
                const bool self = target(n) == own;
#pragma unroll
                for (int k = 0; k < VALUES; ++k) part[n][k] += self ? REAL(0) : u[k];
              }
            }
          } else if (!TESTED && piece == 1) {
            for (u32 j = from + slice; j < to; j += SPLIT) {
              const Source y = tile[j];
              const u32 own = own_begin + (j - own_slot);
#pragma unroll
              for (int n = 0; n < EACH; ++n) {
                REAL u[VALUES], q[STRENGTHS];
                const bool self = target(n) == own;
#pragma unroll
                for (int c = 0; c < STRENGTHS; ++c) q[c] = self && c < LINEAR ? REAL(0) : y.v[3 + c];
                bare_pair(params, self ? REAL(1) : x[n][0] - y.v[0], x[n][1] - y.v[1], x[n][2] - y.v[2], q, u);
#pragma unroll
                for (int k = 0; k < VALUES; ++k) part[n][k] += u[k];
              }
            }
          } else {
#pragma unroll UNROLL
            for (u32 j = from + slice; j < to; j += SPLIT) {
              const Source y = tile[j];
#pragma unroll
              for (int n = 0; n < EACH; ++n) {
                REAL u[VALUES];
                bare_pair(params, x[n][0] - y.v[0], x[n][1] - y.v[1], x[n][2] - y.v[2], y.v + 3, u);
#pragma unroll
                for (int k = 0; k < VALUES; ++k) part[n][k] += u[k];
              }
            }
          }
        }
        if (!join(part) && care < 2) continue;
        for_kept(part, slice, [&](int n, int k, double mine) { sum[n][k] += mine; });
        break;
      }
    }
    add_kept<EACH>(sum, first, range.y, level + LEVEL_HEAD + STRENGTHS, values);
  });
}
