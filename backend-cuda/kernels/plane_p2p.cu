// P2P in the plane.
//
// Defined in front: REAL, shared/field.cuh, BLOCKS, SPLIT, MOST and TILE_BYTES (group.cuh), FRAMED, REAL_FORM, and the
// pair functions `whole_pair` and `real_pair` of the kernel, printed from its tape. They add the VALUES values of a
// target, which are the potentials, then the derivatives of the first potential along x and y, xx and xy. `real_pair`
// leaves out the last strength; without REAL_FORM there is no such function.
//
// With FRAMED, REAL is f32: coordinates are relative to the leaf, in units of its scale, each in two pieces (the nearest
// f32, and the rest). A difference of two coordinates then has the digits of f32 however close the points are, down to 2^-48
// of the scale.

#include "shared/field.cuh"
#include "shared/pyramid.cuh"
#include "shared/real.cuh"

// A source in shared memory.
#if FRAMED
struct alignas(8) Source {
  float x, y, rest_x, rest_y, strengths[STRENGTHS];
};
#else
struct alignas(16) Source {
  double x, y, strengths[STRENGTHS];
};
#endif
#include "shared/group.cuh"

// A source in the caller's units.
struct Wide {
  double x, y, strengths[STRENGTHS];
};

#if FRAMED
struct Point {
  float x, y, rest_x, rest_y;
};
__device__ __forceinline__ Point framed(double x, double y) {
  const float a = (float)x, b = (float)y;
  return {a, b, (float)(x - a), (float)(y - b)};
}
#define DIFFERENCE(from, at, x) ((from.x - at.x) + (from.rest_##x - at.rest_##x))
#else
struct Point {
  double x, y;
};
__device__ __forceinline__ Point framed(double x, double y) { return {x, y}; }
#define DIFFERENCE(from, at, x) (from.x - at.x)
#endif

// Adds source s to the sums at a target. WHOLE: with the last strength.
template <bool WHOLE>
__device__ __forceinline__ void add_pair(const Point& at, const Source& s, const REAL* params, REAL (&sum)[VALUES]) {
  const REAL x = DIFFERENCE(at, s, x), y = DIFFERENCE(at, s, y);
#if REAL_FORM
  if constexpr (!WHOLE) return real_pair(params, x, y, 0, s.strengths, sum);
#endif
  whole_pair(params, x, y, 0, s.strengths, sum);
}

// *found becomes 1 if the last strength of any of n sources is not 0. 0 before.
extern "C" __global__ void plane_imaginary(const double* strengths, u64 n, u32* found) {
  bool mine = false;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x)
    mine = mine || strengths[STRENGTHS * (i + 1) - 1] != 0;
  if (__any_sync(~0u, mine) && lane_id() == 0) atomicMax(found, 1u);
}

struct Near {
  const u64* starts;
  const u32* row;
  const double *source_x, *source_y, *strengths, *target_x, *target_y;
  double* values;
};

template <bool WHOLE>
__device__ __forceinline__ void sum_leaf(const Pyramid& p, const Near& near, u32 k, Source* tile) {
  const uint2 range = points_of(p.target_start, k);
  const u32 first_leaf = level_start(p.depth);
  double2 center = make_double2(0, 0);
  double inverse = 1;
  // The logarithm of the unit of length, if sources have charges.
  REAL params[1] = {0};
#if FRAMED
  center = p.center[first_leaf + k];
  inverse = 1 / scale_of(p, first_leaf + k);
  if (CHARGES) params[0] = -(REAL)log(inverse);
#endif
  const u32 lane = threadIdx.x % LANES, slice = threadIdx.x / LANES;
  const Groups groups = groups_of(length(range), LANES, MOST);
  for (u32 g = blockIdx.y; g < groups.count; g += gridDim.y) with_group(targets_of_group(range, groups, g), [&](auto each, u32 first) {
    constexpr int EACH = decltype(each)::value, UNROLL = EACH < 3 ? 4 : 2;
    Point at[EACH];
    double sum[KEPT(EACH)][VALUES] = {};
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
      const u32 i = min(first + n * LANES + lane, range.y - 1);
      at[n] = framed((near.target_x[i] - center.x) * inverse, (near.target_y[i] - center.y) * inverse);
    }
    auto sources = [&](u64 e) { return points_of(p.source_start, near.row[e] - first_leaf); };
    auto put = [&](u32 begin, u32 count, u32 filled) {
      auto read = [&](u32 j) {
        const u64 from = begin + j;
        Wide s = {near.source_x[from], near.source_y[from]};
        for (int c = 0; c < STRENGTHS; ++c) s.strengths[c] = near.strengths[from * STRENGTHS + c];
        return s;
      };
      read_ahead<2>(count, read, [&](u32 j, const Wide& wide) {
        const Point y = framed((wide.x - center.x) * inverse, (wide.y - center.y) * inverse);
        Source s;
        s.x = y.x, s.y = y.y;
#if FRAMED
        s.rest_x = y.rest_x, s.rest_y = y.rest_y;
#endif
        // A pole is a length times a value.
#pragma unroll
        for (int c = 0; c < STRENGTHS; ++c) s.strengths[c] = (REAL)(wide.strengths[c] * (c < CHARGES ? 1 : inverse));
        if (j < count) tile[filled + j] = s;
      });
    };
    for_tiles(near.starts[k], near.starts[k + 1], sources, put, [&](u32 filled) {
      REAL part[EACH][VALUES] = {};
#pragma unroll UNROLL
      for (u32 j = slice; j < filled; j += SPLIT) {
        const Source s = tile[j];
#pragma unroll
        for (int n = 0; n < EACH; ++n) add_pair<WHOLE>(at[n], s, params, part[n]);
      }
      join(part);
      for_kept(part, slice, [&](int n, int v, double mine) { sum[n][v] += mine; });
    });
    // In the caller's units of length. f′ and f″ have the derivatives along y with the other sign.
    double factors[VALUES];
#pragma unroll
    for (int v = 0; v < VALUES; ++v) {
      factors[v] = v < REALS ? 1 : v < REALS + 2 ? inverse : inverse * inverse;
      if (v >= REALS && (v - REALS) % 2) factors[v] = -factors[v];
    }
    add_kept<EACH>(sum, first, range.y, factors, near.values);
  });
}

// Sums the near field of leaf blockIdx.x, group by group. A block is one warp. *imaginary: whether any last strength is
// not 0, which is half of the work.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    plane_p2p(const Pyramid* pyramid, const u32* imaginary, const u64* starts, const u32* row, const double* source_x,
              const double* source_y, const double* strengths, const double* target_x, const double* target_y,
              double* values) {
  __shared__ Source tile[TILE];
  const Pyramid p = *pyramid;
  const u32 k = blockIdx.x;
  if (starts[k] == starts[k + 1]) return;
  const Near near = {starts, row, source_x, source_y, strengths, target_x, target_y, values};
  if (REAL_FORM && !*imaginary)
    sum_leaf<false>(p, near, k, tile);
  else
    sum_leaf<true>(p, near, k, tile);
}
