// P2P: the near field of each leaf, in tasks (task.cuh).
//
// Defined in front of this file: REAL, STRENGTHS, LINEAR (strengths without attributes), VALUES, BLOCKS (per
// multiprocessor), SPLIT, MOST and TILE_BYTES (group.cuh), FRAMED, LEVELS (least number of rows of `levels`), and
// `guarded_pair` and `bare_pair` as for direct.cu. The rule for zero distances is that of direct.cu.
//
// With FRAMED, REAL is f32, and coordinates are taken relative to the leaf, in units of its side; otherwise they are
// the caller's. If the targets of a group lie in a small part of the leaf, coordinates are relative to the group's first
// target, in units of the side of a box of a deeper level that still holds the group. A coordinate rounded to f32 loses
// the digits of short distances. Pairs closer than CLOSE are therefore summed again by `exact_pair`, in f64 and from
// differences of the caller's coordinates. So are all pairs of a tile whose sum leaves the range of f32.

#include "shared/level.cuh"
#include "shared/real.cuh"
#include "shared/source.cuh"

#if FRAMED
// A source in shared memory, and its position in tree order.
#define SOURCE_BYTES (sizeof(Source) + sizeof(u32))
#endif
#include "shared/group.cuh"

#define LEVEL_ROW (LEVEL_HEAD + STRENGTHS + VALUES)
// Whether loops are unrolled half as much, so that they fit into the instruction cache. In f32 with several values
// loops are the longest.
#define SHORT (sizeof(REAL) == 4 && VALUES > 1)
// Whether pairs within the leaf are tested for zero distances at once. In f64 with several values there are no
// registers for a second loop without the test.
#define TESTED (sizeof(REAL) == 8 && VALUES > 1)
// Sources that a thread reads before it uses the first, so that it waits for memory once. Rows of many strengths would
// take too many registers.
#define AHEAD (STRENGTHS > 4 ? 1 : 2)
// Distance, in units of the side of the frame, below which a pair is summed again in f64. Coordinates of targets are at most 1/2 and
// are rounded by 2^-25 at most, those of close sources too. At the distance CLOSE this changes the distance by at most
// 2^-24 √3 / CLOSE = 1.3e-5 of itself, and by some 4e-6 in the mean. Larger values cost time
// on surfaces, where half of the tiles hold a closer pair.
#define CLOSE (1.0f / 128)
// Distance, in the same unit, below which a distance computed in f32 may have no correct digit.
#define TINY (1.0f / (1 << 20))
// Most levels by which the frame of a group is smaller than that of its leaf. The farthest sources then have coordinates of
// 2^13, whose powers up to the ninth stay in the range of f32.
#define DEEPER 12u
// Written as in the kernels of inverse distances, so that the compiler computes it once.
#define SQUARE(x, y, z) fmaf(x, x, fmaf(y, y, (z) * (z)))

// A source in the caller's units.
struct Wide {
  double x[3], q[STRENGTHS];
};

#if FRAMED
// The caller's arrays, and the frame of a group.
struct Near {
  const double *level, *source_xyz, *strengths, *target_xyz;
  u64 sources, targets;
  double center[3], scale;
};

// Whether source y can be closer than CLOSE to a target whose coordinates are at most `reach` in size.
__device__ __forceinline__ bool may_be_close(const Source& y, float reach) {
  return fmaxf(fmaxf(fabsf(y.v[0]), fabsf(y.v[1])), fabsf(y.v[2])) < reach + CLOSE;
}

// Which of the 32 sources of a tile from `base` on can be close, as bits.
__device__ __forceinline__ u32 those_close(u32 base, const Source* tile, u32 filled, float reach) {
  const u32 j = base + lane_id();
  return __ballot_sync(~0u, j < filled && may_be_close(tile[j], reach));
}

// Corrects the sums of targets first … end - 1 over a tile for close pairs. For each source closer than CLOSE, the pair
// in f64 is added and the pair in f32 is subtracted. The pair in f32 is computed a second time here, so a difference in
// rounding to the pair that the loop added remains. Closer than TINY the pair in f32 is too wrong to be subtracted:
// then the 32 targets around are summed over the whole tile in f64. `all` does this for all targets. Bit k of the
// result says that targets first + 32k … have the whole sum of the tile, and that the caller drops its sums in f32. The
// function is not inlined, so that this rare work takes no registers from the loops. One thread per target.
__device__ __noinline__ u32 sum_exactly(const Near& near, bool all, u64 own, u32 first, u32 end, const Source* tile,
                                        const u32* place, u32 filled, float reach, double* values) {
  REAL params[PARAMETERS];
  for (int k = 0; k < PARAMETERS; ++k) params[k] = (REAL)near.level[k];
  const double* factors = near.level + LEVEL_HEAD;
  u32 complete = 0;
  for (u32 at = first; at < end; at += THREADS) {
    const u32 i = at + threadIdx.x;
    double x[3] = {}, sum[VALUES];
    for (int a = 0; a < 3 && i < end; ++a) x[a] = near.target_xyz[a * near.targets + i];
    for (bool whole = all;; whole = true) {
      bool tiny = false;
      for (int k = 0; k < VALUES; ++k) sum[k] = 0;
      for (u32 base = 0; base < filled; base += THREADS) {
        u32 left = whole ? ~0u >> (THREADS - min(filled - base, THREADS)) : those_close(base, tile, filled, reach);
        for (; left; left &= left - 1) {
          const u32 j = base + __ffs(left) - 1;
          const u64 from = place[j];
          if (from == own + i || i >= end || tiny) continue;
          const Source y = tile[j];
          REAL d[3];
          for (int a = 0; a < 3; ++a) d[a] = (REAL)((x[a] - near.center[a]) * near.scale) - y.v[a];
          const REAL square = SQUARE(d[0], d[1], d[2]);
          if (!whole && square >= CLOSE * CLOSE) continue;
          double exact[3], q[STRENGTHS], u[VALUES];
          for (int a = 0; a < 3; ++a) exact[a] = (x[a] - near.source_xyz[a * near.sources + from]) * near.scale;
          // For two points at the same place f32 and f64 give the same value.
          if (!whole && exact[0] == 0 && exact[1] == 0 && exact[2] == 0) continue;
          for (int c = 0; c < STRENGTHS; ++c) q[c] = near.strengths[from * STRENGTHS + c] * factors[c];
          exact_pair(near.level, exact[0], exact[1], exact[2], q, u);
          for (int k = 0; k < VALUES; ++k) sum[k] += u[k];
          if (whole) continue;
          // At a distance of zero in f32 both computations have the same value.
          tiny = square > 0 && square < TINY * TINY;
          REAL fast[VALUES];
          guarded_pair(params, d[0], d[1], d[2], y.v + 3, fast);
          for (int k = 0; k < VALUES; ++k) {
            sum[k] -= fast[k];
            tiny = tiny || !finite(fast[k]);
          }
        }
      }
      if (whole) complete |= 1u << (at - first) / THREADS;
      if (whole || !__any_sync(~0u, tiny)) break;
    }
    for (int k = 0; k < VALUES && i < end; ++k) values[(u64)i * VALUES + k] += sum[k] * factors[STRENGTHS + k];
  }
  __syncwarp();
  return complete;
}
#endif

// Sums task blockIdx.x. A block is one warp. Target i is source own + i, which it skips; if targets are no sources, `own`
// is the largest number (NONE), and no source has that position.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    p2p(const Boxes* boxes, const Task* tasks, const u64* starts, const double* levels, const u32* row, u32 own,
        const double* source_xyz, u64 sources, const double* strengths, const double* target_xyz, u64 targets,
        u32 held, double* partial, double* values) {
  __shared__ Source tile[TILE];
#if FRAMED
  // The position of each source of the tile.
  __shared__ u32 place[TILE];
#endif
  const Boxes t = *boxes;
  const Work work = work_of(t, tasks[blockIdx.x], starts, held, partial, values);
  const u32 b = work.leaf;
  const uint2 range = t.target_range[b], group = work.targets;
#if FRAMED
  u32 depth = t.level[b];
  Frame frame = frame_of(t, b);
  // If the group lies in a small part of the leaf, its frame is centered at its first target.
  REAL width = 0;
  for (u32 i = group.x + lane_id(); i < group.y; i += THREADS)
    for (int a = 0; a < 3; ++a) {
      const double* along = target_xyz + a * targets;
      width = fmaxf(width, fabsf((REAL)((along[i] - along[group.x]) * (1 / frame.side))));
    }
  width = warp_largest(width);
  if (width < 0.125f && depth + 1 < LEVELS) {
    for (int a = 0; a < 3; ++a) frame.center[a] = target_xyz[a * targets + group.x];
    const u32 deepest = min(depth + DEEPER, LEVELS - 1u);
    for (; width <= 0.25f && depth < deepest; width *= 2) ++depth, frame.side /= 2;
  }
  // In registers the frame would slow the loops down.
  __shared__ Near near;
  if (lane_id() == 0)
    near = {levels + LEVEL_ROW * depth, source_xyz, strengths, target_xyz, sources, targets,
            {frame.center[0], frame.center[1], frame.center[2]}, 1 / frame.side};
  __syncwarp();
  const double *level = near.level, *center = near.center, scale = near.scale;
#else
  const double *level = levels + LEVEL_ROW * t.level[b], center[3] = {0, 0, 0}, scale = 1;
#endif
  REAL params[PARAMETERS];
#pragma unroll
  for (int k = 0; k < PARAMETERS; ++k) params[k] = (REAL)level[k];
  double factors[STRENGTHS];
  for (int c = 0; c < STRENGTHS; ++c) factors[c] = level[LEVEL_HEAD + c];
  const u32 lane = threadIdx.x % LANES, slice = threadIdx.x / LANES;

  with_group(group, [&](auto each, u32 first) {
    constexpr int EACH = decltype(each)::value, UNROLL = (EACH < 4 ? 4 : 2) / (SHORT ? 2 : 1);
    auto target = [&](int n) { return min(first + n * LANES + lane, group.y - 1); };
    REAL x[EACH][3];
    double sum[KEPT(EACH)][VALUES] = {};
#pragma unroll
    for (int n = 0; n < EACH; ++n)
      for (int a = 0; a < 3; ++a) x[n][a] = (REAL)((target_xyz[a * targets + target(n)] - center[a]) * scale);
#if FRAMED
    // The largest size of a coordinate of the group's targets. Few sources are within CLOSE of the cube that it bounds.
    // Those that are targets of the leaf are compared with the group in the loop over them, the others when they are put
    // into the tile.
    REAL reach = 0;
#pragma unroll
    for (int n = 0; n < EACH; ++n)
      for (int a = 0; a < 3; ++a) reach = fmaxf(reach, fabsf(x[n][a]));
    reach = warp_largest(reach);
    // The square of the smallest distance of a pair of the tile that can be close, without self pairs.
    REAL nearest = 1;
    auto see = [&](REAL x, REAL y, REAL z) { nearest = fminf(nearest, SQUARE(x, y, z)); };
#else
    auto see = [](REAL, REAL, REAL) {};
#endif

    // The points of the leaf itself: their first slot in the tile, their number, and which target the first is.
    u32 own_slot = 0, own_count = 0, own_begin = 0;
    auto put = [&](u32 begin, u32 count, u32 filled) {
      // As positions of targets, of which those of the leaf are one range.
      const bool itself = begin < (u64)own + range.y && (u64)own + range.x < begin + count;
      if (itself) own_begin = begin - own, own_slot = filled, own_count = count;
      auto read = [&](u32 j) {
        const u64 from = begin + j;
        Wide y;
        for (int a = 0; a < 3; ++a) y.x[a] = source_xyz[a * sources + from];
        for (int c = 0; c < STRENGTHS; ++c) y.q[c] = strengths[from * STRENGTHS + c];
        return y;
      };
      read_ahead<AHEAD>(count, read, [&](u32 j, const Wide& wide) {
        Source y = {};
        for (int a = 0; a < 3; ++a) y.v[a] = (REAL)((wide.x[a] - center[a]) * scale);
        for (int c = 0; c < STRENGTHS; ++c) y.v[3 + c] = (REAL)(wide.q[c] * factors[c]);
        if (j < count) tile[filled + j] = y;
#if FRAMED
        if (j < count) place[filled + j] = begin + j;
        u32 left = itself ? 0 : __ballot_sync(~0u, j < count && may_be_close(y, reach));
        for (; left; left &= left - 1) {
          REAL at[3];
          for (int a = 0; a < 3; ++a) at[a] = __shfl_sync(~0u, y.v[a], __ffs(left) - 1);
#pragma unroll
          for (int n = 0; n < EACH; ++n) see(x[n][0] - at[0], x[n][1] - at[1], x[n][2] - at[2]);
        }
#endif
      });
    };
    for_tiles(work.begin, work.end, [&](u64 e) { return sources_of(t, row[e]); }, put, [&](u32 filled) {
      // Levels of care about zero distances. 0: no pair is tested. 1: pairs within the leaf are tested. 2: all pairs
      // are tested. 3: all pairs are summed in f64. The level rises when a sum is not finite. In untested pairs within
      // the leaf, a target skips itself by a distance of 1 and strength 0.
      for (u32 care = TESTED;; care = care == 0 && own_count > 0 ? 1 : max(care + 1, 2)) {
        REAL part[EACH][VALUES] = {};
        for (u32 piece = 0; piece < 3 && care < 3; ++piece) {
          const u32 from = piece == 0 ? 0 : piece == 1 ? own_slot : own_slot + own_count;
          const u32 to = piece == 0 ? own_slot : piece == 1 ? own_slot + own_count : filled;
          if (care == 2 || (care == 1 && piece == 1)) {
            for (u32 j = from + slice; j < to; j += SPLIT) {
              const Source y = tile[j];
              // The position of this source if it belongs to the leaf.
              const u32 itself = j - own_slot < own_count ? own_begin + (j - own_slot) : ~0u;
#pragma unroll
              for (int n = 0; n < EACH; ++n) {
                REAL u[VALUES];
                const REAL d[3] = {x[n][0] - y.v[0], x[n][1] - y.v[1], x[n][2] - y.v[2]};
                guarded_pair(params, d[0], d[1], d[2], y.v + 3, u);
                const bool self = target(n) == itself;
                if (!self) see(d[0], d[1], d[2]);
#pragma unroll
                for (int k = 0; k < VALUES; ++k) part[n][k] += self ? REAL(0) : u[k];
              }
            }
          } else if (!TESTED && piece == 1) {
            for (u32 j = from + slice; j < to; j += SPLIT) {
              const Source y = tile[j];
              const u32 itself = own_begin + (j - own_slot);
#pragma unroll
              for (int n = 0; n < EACH; ++n) {
                REAL u[VALUES], q[STRENGTHS];
                const bool self = target(n) == itself;
                const REAL dx = self ? REAL(1) : x[n][0] - y.v[0], dy = x[n][1] - y.v[1], dz = x[n][2] - y.v[2];
#pragma unroll
                for (int c = 0; c < STRENGTHS; ++c) q[c] = self && c < LINEAR ? REAL(0) : y.v[3 + c];
                bare_pair(params, dx, dy, dz, q, u);
                see(dx, dy, dz);
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
                const REAL d[3] = {x[n][0] - y.v[0], x[n][1] - y.v[1], x[n][2] - y.v[2]};
                bare_pair(params, d[0], d[1], d[2], y.v + 3, u);
#pragma unroll
                for (int k = 0; k < VALUES; ++k) part[n][k] += u[k];
              }
            }
          }
        }
        if (!join(part) && care < (FRAMED ? 3 : 2)) continue;
        // Bit k: the sums of targets first + 32k … are complete.
        u32 complete = 0;
#if FRAMED
        if (care == 3 || __any_sync(~0u, nearest < CLOSE * CLOSE))
          complete = sum_exactly(near, care == 3, own, group.x, group.y, tile, place, filled, reach, work.sums);
#endif
        for_kept(part, slice, [&](int n, int k, double mine) {
          const u32 of = (n * SPLIT + slice) * LANES + lane;
          sum[n][k] += complete >> of / 32 & 1 ? 0.0 : mine;
        });
        break;
      }
      own_slot = own_count = own_begin = 0;
#if FRAMED
      nearest = 1;
#endif
    });
    add_kept<EACH>(sum, first, group.y, level + LEVEL_HEAD + STRENGTHS, work.sums);
  });
}
