// P2P: the near field of each leaf.
//
// In front of this file: REAL, STRENGTHS, VALUES, THREADS, TARGETS (of a thread), FRAMED, `guarded_pair` and
// `bare_pair` as for direct.cu, whose rule for zero distances holds here too. With FRAMED coordinates are
// taken relative to the leaf in units of its side; else they are the caller's.

#include "shared/level.cuh"
#include "shared/real.cuh"
#include "shared/source.cuh"

#define LEVEL_ROW (LEVEL_HEAD + STRENGTHS + VALUES)
#define TILE 128
#define NOWHERE (~0u)

#if THREADS == 32
#define WAIT_FOR_ALL() __syncwarp()
#else
#define WAIT_FOR_ALL() __syncthreads()
#endif

// A number that is known when the program is compiled.
template <int N>
struct Number {
  static constexpr int value = N;
};

// A block for each of `items` (leaves); `same`: targets are the sources, and each skips itself.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    p2p(const Boxes* boxes, const double* corner, const double* levels, const u32* items, const u64* starts,
        const u32* row, u32 same, const double* source_xyz, u64 sources, const double* strengths,
        const double* target_xyz, u64 targets, double* values) {
  __shared__ Source tile[TILE];
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
  // `each.value` targets a thread, from `first` on; or one target for `split.value` threads, which share the sources.
  auto pass = [&](auto each, auto split, u32 first) {
    constexpr int EACH = decltype(each)::value, SPLIT = decltype(split)::value, LANES = THREADS / SPLIT;
    const u32 lane = threadIdx.x % LANES, slice = threadIdx.x / LANES;
    REAL x[EACH][3];
    double sum[EACH][VALUES];
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
      const u32 at = min(first + n * THREADS + lane, range.y - 1);
      for (int a = 0; a < 3; ++a) x[n][a] = (REAL)((target_xyz[a * targets + at] - center[a]) * scale);
      for (int k = 0; k < VALUES; ++k) sum[n][k] = 0;
    }
    // Position of the source at the start of the box that holds the targets, if that box is in the tile.
    u32 own_begin = NOWHERE, own_slot = 0, own_count = 0;

    // The sum of a tile at target n, testing every pair; `own`: the source that it skips.
    auto careful = [&](int n, u32 count, u32 own, REAL* part) {
#pragma unroll 4
      for (u32 j = slice; j < count; j += SPLIT) {
        REAL u[VALUES];
        const Source y = tile[j];
        guarded_pair(params, x[n][0] - y.v[0], x[n][1] - y.v[1], x[n][2] - y.v[2], y.v + 3, u);
#pragma unroll
        for (int k = 0; k < VALUES; ++k) part[k] += j == own ? REAL(0) : u[k];
      }
    };
    auto add_tile = [&](u32 count) {
      WAIT_FOR_ALL();
      REAL part[EACH][VALUES] = {};
      if (own_begin == NOWHERE) {
#pragma unroll 4
        for (u32 j = slice; j < count; j += SPLIT) {
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
#pragma unroll
      for (int n = 0; n < EACH; ++n) {
        const u32 at = min(first + n * THREADS + lane, range.y - 1);
        const u32 own = own_begin != NOWHERE && at - own_begin < own_count ? own_slot + at - own_begin : NOWHERE;
        bool good = own_begin == NOWHERE;
#pragma unroll
        for (int k = 0; k < VALUES; ++k) good = good && finite(part[n][k]);
        if (!good) {
          for (int k = 0; k < VALUES; ++k) part[n][k] = 0;
          careful(n, count, own, part[n]);
        }
#pragma unroll
        for (int k = 0; k < VALUES; ++k) sum[n][k] += (double)part[n][k];
      }
      own_begin = NOWHERE;
      WAIT_FOR_ALL();
    };

    // Tiles are filled across boxes, so that all but the last are full.
    u32 filled = 0;
    for (u64 e = starts[b]; e < starts[b + 1]; ++e) {
      const u32 s = row[e];
      const uint2 from = t.source_range[s];
      for (u32 begin = from.x; begin < from.y;) {
        const u32 count = min(from.y - begin, TILE - filled);
        for (u32 j = threadIdx.x; j < count; j += THREADS) {
          Source y = {};
          for (int a = 0; a < 3; ++a) y.v[a] = (REAL)((source_xyz[a * sources + begin + j] - center[a]) * scale);
          for (int c = 0; c < STRENGTHS; ++c)
            y.v[3 + c] = (REAL)(strengths[(u64)(begin + j) * STRENGTHS + c] * level[LEVEL_HEAD + c]);
          tile[filled + j] = y;
        }
        if (same && begin < range.y && range.x < begin + count) own_begin = begin, own_slot = filled, own_count = count;
        filled += count;
        begin += count;
        if (filled == TILE) {
          add_tile(TILE);
          filled = 0;
        }
      }
    }
    if (filled > 0) add_tile(filled);
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
#pragma unroll
      for (int d = LANES; d < THREADS; d *= 2)
        for (int k = 0; k < VALUES; ++k) sum[n][k] += __shfl_xor_sync(~0u, sum[n][k], d);
      const u32 i = first + n * THREADS + lane;
      if (i >= range.y || slice > 0) continue;
#pragma unroll
      for (int k = 0; k < VALUES; ++k) values[(u64)i * VALUES + k] += sum[n][k] * level[LEVEL_HEAD + STRENGTHS + k];
    }
  };
  // What is left for one target a thread is not computed for several, and few targets share the threads of a warp.
  for (u32 first = range.x; first < range.y;) {
    const u32 left = range.y - first;
#if THREADS == 32
    if (left <= THREADS / 2) {
      if (left <= THREADS / 4)
        pass(Number<1>(), Number<4>(), first);
      else
        pass(Number<1>(), Number<2>(), first);
      break;
    }
#endif
    if (TARGETS == 1 || left <= THREADS + (THREADS == 32 ? THREADS / 2 : 0)) {
      pass(Number<1>(), Number<1>(), first);
      first += THREADS;
    } else {
      pass(Number<TARGETS>(), Number<1>(), first);
      first += THREADS * TARGETS;
    }
  }
}
