// P2P in the plane: Γ log|z_j - z| and m/(z_j - z), and their derivatives (adaptive2d/src/laurent).
//
// Defined in front: REAL, shared/field.cuh, BLOCKS, SPLIT, MOST and TILE_BYTES (group.cuh), FRAMED.
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

// Added to a squared distance in f64, so that 1/z of a pair at one place is 0 times a finite number.
#define AT_ZERO 1e-300

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

__device__ __forceinline__ float reciprocal(float x) { return reciprocal_seed(x); }
// A seed y of 20 bits and one step of third order: y (1 + e + e²) with e = 1 - x y.
__device__ __forceinline__ double reciprocal(double x) {
  const double y = reciprocal_seed(x), e = fma(-x, y, 1.0);
  return fma(fma(e, e, e), y, y);
}

// Adds source s to the sums at a target. With d = z_j - z and g = 1/d, Γ log d has the derivatives -Γg and -Γg², and mg has
// mg² and 2mg³. IMAGINARY: whether poles have imaginary parts. ln_unit: the logarithm of the unit of length.
template <bool IMAGINARY>
__device__ __forceinline__ void add_pair(const Point& at, const Source& s, REAL ln_unit, REAL (&sum)[VALUES]) {
  const REAL x = DIFFERENCE(s, at, x), y = DIFFERENCE(s, at, y);
#if CHARGES
  const REAL charge = s.strengths[0];
  const bool apart = x != 0 || y != 0;
  const REAL square = apart ? fma(x, x, y * y) : REAL(1);
  sum[0] = fma(charge, apart ? fma(REAL(0.5), log(square), ln_unit) : REAL(0), sum[0]);
#elif FRAMED
  const REAL square = x != 0 || y != 0 ? fma(x, x, y * y) : REAL(1);
#else
  const REAL square = fma(x, x, fma(y, y, AT_ZERO));
#endif
#if POLES || DERIVATIVES
  const REAL w = reciprocal(square);
#if POLES && !DERIVATIVES && !CHARGES
  if constexpr (!IMAGINARY) {
    const REAL q = s.strengths[STRENGTHS - 2] * w;
    sum[0] = fma(q, x, sum[0]);
    if constexpr (COMPLEX) sum[1] = fma(-q, y, sum[1]);
    return;
  }
#endif
  REAL re = x * w, im = -(y * w);
  const REAL g_re = re, g_im = im;
#pragma unroll
  for (int n = 0; n <= DERIVATIVES; ++n) {
    // re and im are those of g^(n + 1); derivative n begins at value `to`, and value 1 may be missing.
    const int to = n == 0 ? 0 : REALS + 2 * (n - 1);
    const bool whole = n > 0 || COMPLEX;
#if POLES
    const REAL factor = n == 2 ? 2 : 1, m_re = factor * s.strengths[STRENGTHS - 2];
    if (IMAGINARY) {
      const REAL m_im = factor * s.strengths[STRENGTHS - 1];
      sum[to] = fma(-m_im, im, sum[to]);
      if (whole) sum[to + 1] = fma(m_im, re, sum[to + 1]);
    }
    sum[to] = fma(m_re, re, sum[to]);
    if (whole) sum[to + 1] = fma(m_re, im, sum[to + 1]);
#endif
#if CHARGES
    // The charge's derivative n + 1 has the same power of g.
    if (n < DERIVATIVES) {
      const int next = REALS + 2 * n;
      sum[next] = fma(-charge, re, sum[next]);
      sum[next + 1] = fma(-charge, im, sum[next + 1]);
    }
#endif
    const REAL old = re;
    re = fma(re, g_re, -(im * g_im));
    im = fma(old, g_im, im * g_re);
  }
#endif
}

// *found becomes 1 if any of n complex strengths has an imaginary part. 0 before.
extern "C" __global__ void plane_imaginary(const double* strengths, u64 n, u32* found) {
  bool mine = false;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x)
    mine = mine || strengths[2 * i + 1] != 0;
  if (__any_sync(~0u, mine) && lane_id() == 0) atomicMax(found, 1u);
}

struct Near {
  const u64* starts;
  const u32* row;
  const double *source_x, *source_y, *strengths, *target_x, *target_y;
  double* values;
};

template <bool IMAGINARY>
__device__ __forceinline__ void sum_leaf(const Pyramid& p, const Near& near, u32 k, Source* tile) {
  const uint2 range = points_of(p.target_start, k);
  const u32 first_leaf = level_start(p.depth);
  double2 center = make_double2(0, 0);
  double inverse = 1;
  REAL ln_unit = 0;
#if FRAMED
  center = p.center[first_leaf + k];
  inverse = 1 / scale_of(p, first_leaf + k);
  ln_unit = CHARGES ? -(REAL)log(inverse) : 0;
#endif
  const u32 lane = threadIdx.x % LANES, slice = threadIdx.x / LANES;
  for_groups(range, [&](auto each, u32 first) {
    constexpr int EACH = decltype(each)::value, UNROLL = EACH < 3 ? 4 : 2;
    Point at[EACH];
    double sum[KEPT(EACH)][VALUES] = {};
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
      const u32 i = min(first + n * LANES + lane, range.y - 1);
      at[n] = framed((near.target_x[i] - center.x) * inverse, (near.target_y[i] - center.y) * inverse);
    }
    // A tile may hold sources of several boxes, so that all tiles but the last are full. `ranges` holds the source
    // ranges of 32 boxes of the row, one per lane.
    const u64 end = near.starts[k + 1];
    u64 e = near.starts[k];
    uint2 ranges = {};
    u32 next = 32, begin = 0, stop = 0;
    for (bool more = true; more;) {
      u32 filled = 0;
      __syncwarp();
      while (filled < TILE) {
        if (begin == stop) {
          if (e == end) {
            more = false;
            break;
          }
          if (next == 32) {
            ranges = e + lane_id() < end ? points_of(p.source_start, near.row[e + lane_id()] - first_leaf) : make_uint2(0, 0);
            next = 0;
          }
          begin = __shfl_sync(~0u, ranges.x, next), stop = __shfl_sync(~0u, ranges.y, next);
          ++next, ++e;
        }
        const u32 count = min(stop - begin, (u32)TILE - filled);
        for (u32 j = threadIdx.x; j < count; j += THREADS) {
          const u64 from = begin + j;
          const Point y = framed((near.source_x[from] - center.x) * inverse, (near.source_y[from] - center.y) * inverse);
          Source s;
          s.x = y.x, s.y = y.y;
#if FRAMED
          s.rest_x = y.rest_x, s.rest_y = y.rest_y;
#endif
          // A pole is a length times a value.
#pragma unroll
          for (int c = 0; c < STRENGTHS; ++c)
            s.strengths[c] = (REAL)(near.strengths[from * STRENGTHS + c] * (c < CHARGES ? 1 : inverse));
          tile[filled + j] = s;
        }
        filled += count;
        begin += count;
      }
      __syncwarp();
      REAL part[EACH][VALUES] = {};
#pragma unroll UNROLL
      for (u32 j = slice; j < filled; j += SPLIT) {
        const Source s = tile[j];
#pragma unroll
        for (int n = 0; n < EACH; ++n) add_pair<IMAGINARY>(at[n], s, ln_unit, part[n]);
      }
      join(part);
      for_kept(part, slice, [&](int n, int v, double mine) { sum[n][v] += mine; });
    }
    // In the caller's units of length.
    double factors[VALUES];
#pragma unroll
    for (int v = 0; v < VALUES; ++v) factors[v] = v < REALS ? 1 : v < REALS + 2 ? inverse : inverse * inverse;
    add_kept<EACH>(sum, first, range.y, factors, near.values);
  });
}

// Sums the near field of leaf blockIdx.x, group by group. A block is one warp. *imaginary: whether the poles of a complex
// field have imaginary parts, which is half of the work; a real field takes them as they are.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    plane_p2p(const Pyramid* pyramid, const u32* imaginary, const u64* starts, const u32* row, const double* source_x,
              const double* source_y, const double* strengths, const double* target_x, const double* target_y,
              double* values) {
  __shared__ Source tile[TILE];
  const Pyramid p = *pyramid;
  const u32 k = blockIdx.x;
  if (starts[k] == starts[k + 1]) return;
  const Near near = {starts, row, source_x, source_y, strengths, target_x, target_y, values};
  if (COMPLEX && !*imaginary)
    sum_leaf<false>(p, near, k, tile);
  else
    sum_leaf<true>(p, near, k, tile);
}
