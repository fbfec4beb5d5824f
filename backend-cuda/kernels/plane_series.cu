// Stages of Laurent and Taylor series in the plane (adaptive2d/src/laurent, with the same scaling): P2M, M2M, M2L, P2L,
// L2L, L2P, M2P. The shifts are algorithms 3.4 to 3.6 of Goude & Engblom (2012).
//
// Defined in front: REAL, ORDER (p), shared/field.cuh, BLOCKS (blocks of M2L per multiprocessor), and LARGEST_RATIO (the
// largest ρ/|r| whose p-th power is in range).
//
// Coefficient j of box b is number j · boxes + b, so that neighbouring boxes lie side by side. A shift is done by one
// thread, with all coefficients in registers.

#include "shared/complex.cuh"
#include "shared/field.cuh"
#include "shared/fold.cuh"
#include "shared/pyramid.cuh"

#define TERMS (ORDER + 1)
#define WARP_BLOCK 128
__device__ __forceinline__ Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
__device__ __forceinline__ Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
__device__ __forceinline__ Complex operator*(Complex a, Complex b) {
  return {a.re * b.re - a.im * b.im, a.im * b.re + a.re * b.im};
}
__device__ __forceinline__ Complex scaled(Complex a, REAL s) { return {a.re * s, a.im * s}; }
// a b + c
__device__ __forceinline__ Complex multiply_add(Complex a, Complex b, Complex c) {
  return {fma(-a.im, b.im, fma(a.re, b.re, c.re)), fma(a.im, b.re, fma(a.re, b.im, c.im))};
}
__device__ __forceinline__ REAL square_of(Complex a) { return fma(a.re, a.re, a.im * a.im); }
__device__ __forceinline__ Complex inverse(Complex a) {
  const REAL w = 1 / square_of(a);
  return {a.re * w, -(a.im * w)};
}
// 1/j, 0 for j = 0.
__device__ __forceinline__ constexpr REAL inverse_of(int j) { return j == 0 ? REAL(0) : REAL(1.0 / j); }

// A frame: (point - center) / scale.
struct Basis {
  double2 center;
  double inverse, scale;
};
__device__ __forceinline__ Basis basis_of(const Pyramid& p, u32 b) {
  const double scale = scale_of(p, b);
  return {p.center[b], 1 / scale, scale};
}
__device__ __forceinline__ Complex within(const Basis& f, double x, double y) {
  return {(REAL)((x - f.center.x) * f.inverse), (REAL)((y - f.center.y) * f.inverse)};
}

// a[j] ← a[j] z^j, j ≥ 1.
__device__ __forceinline__ void times_powers(Complex (&a)[TERMS], Complex z) {
  Complex power = z;
#pragma unroll
  for (int j = 1; j < TERMS; ++j) {
    a[j] = a[j] * power;
    power = power * z;
  }
}

__device__ __forceinline__ void load(Complex (&a)[TERMS], const Complex* from, u64 boxes, u32 b) {
#pragma unroll
  for (int j = 0; j < TERMS; ++j) a[j] = from[j * boxes + b];
}

// Sums series over the lanes of a warp; adds them to the series of box b, or replaces it.
__device__ __forceinline__ void sum_over_warp(Complex (&a)[TERMS], REAL* kept, u32& first, u32& count) {
  REAL v[2 * TERMS];
#pragma unroll
  for (int j = 0; j < TERMS; ++j) v[2 * j] = a[j].re, v[2 * j + 1] = a[j].im;
  first = 0, count = 2 * TERMS;
  fold<2 * TERMS, 16>(v, first, count);
#pragma unroll
  for (int i = 0; i < (2 * TERMS + 31) / 32; ++i) kept[i] += v[i];
}
__device__ __forceinline__ void store(const REAL* kept, u32 first, u32 count, Complex* to, u64 boxes, u32 b, bool add) {
#pragma unroll
  for (int i = 0; i < (2 * TERMS + 31) / 32; ++i) {
    if (i >= count) continue;
    const u32 n = first + i;
    REAL* at = (REAL*)(to + (n / 2) * boxes + b) + n % 2;
    *at = add ? *at + kept[i] : kept[i];
  }
}

// Adds to `sum` the multipole (or the LOCAL) of points begin, begin + 32, … before `end`. With ζ = (z_j - z_0)/ρ, a charge
// Γ adds Γ and -Γ ζ^j/j to a multipole, Γ ln|z_j - z_0| and -Γ ζ^-j/j to a local; a pole m adds -(m/ρ) ζ^(j-1) and
// (m/ρ) ζ^-(j+1).
template <bool LOCAL>
__device__ __forceinline__ void add_points(const Basis& f, const double* x, const double* y, const double* strengths,
                                           u32 begin, u32 end, Complex (&sum)[TERMS]) {
  const REAL ln_scale = CHARGES && LOCAL ? (REAL)log(f.scale) : REAL(0);
  for (u32 i = begin; i < end; i += 32) {
    const double* own = strengths + (u64)i * STRENGTHS;
    const Complex z = within(f, x[i], y[i]), ratio = LOCAL ? inverse(z) : z;
    Complex charge = {}, pole = {};
    if (CHARGES) {
      const REAL q = (REAL)own[0];
      sum[0].re += LOCAL ? q * (REAL(0.5) * log(square_of(z)) + ln_scale) : q;
      charge = scaled(ratio, q);
    }
    if (POLES) {
      const double per_length = LOCAL ? f.inverse : -f.inverse;
      pole = {(REAL)(own[STRENGTHS - 2] * per_length), (REAL)(own[STRENGTHS - 1] * per_length)};
      if (LOCAL) {
        pole = pole * ratio;
        sum[0] = sum[0] + pole;
        pole = pole * ratio;
      }
    }
#pragma unroll
    for (int j = 1; j < TERMS; ++j) {
      if (CHARGES) {
        sum[j] = {fma(charge.re, -inverse_of(j), sum[j].re), fma(charge.im, -inverse_of(j), sum[j].im)};
        charge = charge * ratio;
      }
      if (POLES) {
        sum[j] = sum[j] + pole;
        pole = pole * ratio;
      }
    }
  }
}

// P2M: one warp per leaf. Every leaf gets a series.
extern "C" __global__ void __launch_bounds__(WARP_BLOCK)
    plane_p2m(const Pyramid* pyramid, const double* x, const double* y, const double* strengths,
              Complex* multipoles) {
  const Pyramid p = *pyramid;
  const u32 k = warp_index(), b = level_start(p.depth) + k;
  if (b >= p.boxes) return;
  const uint2 own = points_of(p.source_start, k);
  Complex sum[TERMS] = {};
  add_points<false>(basis_of(p, b), x, y, strengths, own.x + lane_id(), own.y, sum);
  REAL kept[(2 * TERMS + 31) / 32] = {};
  u32 first, count;
  sum_over_warp(sum, kept, first, count);
  store(kept, first, count, multipoles, p.boxes, b, false);
}

// P2L: one warp per leaf. starts are indexed by leaf.
extern "C" __global__ void __launch_bounds__(WARP_BLOCK)
    plane_p2l(const Pyramid* pyramid, const u64* starts, const u32* row, const double* x, const double* y,
              const double* strengths, Complex* locals) {
  const Pyramid p = *pyramid;
  const u32 first_leaf = level_start(p.depth), k = warp_index(), b = first_leaf + k;
  if (b >= p.boxes || starts[k] == starts[k + 1]) return;
  const Basis f = basis_of(p, b);
  Complex sum[TERMS] = {};
  for (u64 e = starts[k]; e < starts[k + 1]; ++e) {
    const uint2 from = points_of(p.source_start, row[e] - first_leaf);
    add_points<true>(f, x, y, strengths, from.x + lane_id(), from.y, sum);
  }
  REAL kept[(2 * TERMS + 31) / 32] = {};
  u32 first, count;
  sum_over_warp(sum, kept, first, count);
  store(kept, first, count, locals, p.boxes, b, true);
}

// A shift along the pyramid: the vector r between the centres of child and parent, as ratios.
struct Shift {
  // ρ_child/r, r/ρ_parent, ρ_child/ρ_parent.
  Complex u, v;
  REAL t;
  // Whether the centres are far enough apart for powers of r.
  bool apart;
};
// r points from the box that receives to the box that gives.
__device__ __forceinline__ Shift shift_of(const Pyramid& p, u32 child, u32 parent, bool up) {
  const double2 c = p.center[child], q = p.center[parent];
  const double x = up ? c.x - q.x : q.x - c.x, y = up ? c.y - q.y : q.y - c.y;
  const double small = scale_of(p, child), large = scale_of(p, parent);
  const double rx = x / small, ry = y / small, square = rx * rx + ry * ry;
  Shift s;
  s.t = (REAL)(small / large);
  s.v = {(REAL)(x / large), (REAL)(y / large)};
  s.apart = sqrt(square) * LARGEST_RATIO > 1;
  s.u = s.apart ? Complex{(REAL)(rx / square), (REAL)(-ry / square)} : Complex{0, 0};
  return s;
}

// M2M and L2L of boxes with almost the same centre, where powers of 1/r would overflow: rare, so that the coefficients
// may lie in memory.
__device__ __noinline__ void m2m_plain(Complex* a, Shift s) {
  Complex power = {s.t, 0};
  for (int j = 1; j < TERMS; ++j) a[j] = a[j] * power, power = scaled(power, s.t);
  for (int k = ORDER; k >= 2; --k)
    for (int j = k; j <= ORDER; ++j) a[j] = multiply_add(s.v, a[j - 1], a[j]);
  if (!CHARGES) return;
  power = s.v;
  for (int j = 1; j <= ORDER; ++j) {
    a[j] = a[j] - scaled(a[0] * power, REAL(1) / j);
    power = power * s.v;
  }
}
__device__ __noinline__ void l2l_plain(Complex* b, Shift s) {
  const Complex minus = {-s.v.re, -s.v.im};
  for (int k = 0; k <= ORDER; ++k)
    for (int j = ORDER - k; j < ORDER; ++j) b[j] = multiply_add(minus, b[j + 1], b[j]);
  Complex power = {s.t, 0};
  for (int j = 1; j < TERMS; ++j) b[j] = b[j] * power, power = scaled(power, s.t);
}
#define IN_MEMORY(a, work)                           \
  {                                                  \
    Complex copy[TERMS];                             \
    for (int j = 0; j < TERMS; ++j) copy[j] = a[j];  \
    work;                                            \
    for (int j = 0; j < TERMS; ++j) a[j] = copy[j];  \
  }

// M2M into the boxes of `level`: one thread per child. Four lanes add up to a parent.
extern "C" __global__ void __launch_bounds__(WARP_BLOCK) plane_m2m(const Pyramid* pyramid, u32 level, Complex* multipoles) {
  const Pyramid p = *pyramid;
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x, first = level_start(level + 1), boxes = level_start(level + 2) - first;
  const u32 child = first + (i < boxes ? i : boxes - 1), parent = (child - 1) / 4;
  Complex a[TERMS];
  load(a, multipoles, p.boxes, child);
  const Shift s = shift_of(p, child, parent, true);
  if (s.apart) {
    times_powers(a, s.u);
    // Algorithm 3.4 b. Within a sweep from the last term down, no sum waits for another.
#pragma unroll
    for (int k = 2; k <= ORDER; ++k)
#pragma unroll
      for (int j = ORDER; j >= k; --j) a[j] = a[j] + a[j - 1];
    if (CHARGES) {
#pragma unroll
      for (int j = 1; j < TERMS; ++j) a[j] = a[j] - scaled(a[0], inverse_of(j));
    }
    times_powers(a, s.v);
  } else {
    IN_MEMORY(a, m2m_plain(copy, s));
  }
#pragma unroll
  for (int j = 0; j < TERMS; ++j) {
#pragma unroll
    for (int d = 1; d < 4; d *= 2) {
      a[j].re += __shfl_xor_sync(~0u, a[j].re, d);
      a[j].im += __shfl_xor_sync(~0u, a[j].im, d);
    }
    if (i < boxes && i % 4 == 0) multipoles[j * (u64)p.boxes + parent] = a[j];
  }
}

// L2L into the boxes of `level`: one thread per box.
extern "C" __global__ void __launch_bounds__(WARP_BLOCK) plane_l2l(const Pyramid* pyramid, u32 level, Complex* locals) {
  const Pyramid p = *pyramid;
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x, b = level_start(level) + i, parent = (b - 1) / 4;
  if (b >= level_start(level + 1)) return;
  Complex a[TERMS];
  load(a, locals, p.boxes, parent);
  const Shift s = shift_of(p, b, parent, false);
  if (s.apart) {
    times_powers(a, s.v);
#pragma unroll
    for (int k = 0; k <= ORDER; ++k)
#pragma unroll
      for (int j = ORDER - k; j < ORDER; ++j) a[j] = a[j] - a[j + 1];
    times_powers(a, s.u);
  } else {
    IN_MEMORY(a, l2l_plain(copy, s));
  }
#pragma unroll
  for (int j = 0; j < TERMS; ++j) {
    Complex* at = locals + j * (u64)p.boxes + b;
    *at = *at + a[j];
  }
}

// M2L: one warp per target box from `first` on, one lane per edge. Sets all locals. Algorithm 3.6, whose second half is done
// in the order of `plane_m2m`.
extern "C" __global__ void __launch_bounds__(WARP_BLOCK, BLOCKS)
    plane_m2l(const Pyramid* pyramid, const u64* starts, const u32* row, const Complex* multipoles, Complex* locals) {
  const Pyramid p = *pyramid;
  const u32 t = warp_index();
  if (t >= p.boxes) return;
  const u64 end = starts[t + 1];
  const double2 center = p.center[t];
  const double scale = scale_of(p, t);
  REAL kept[(2 * TERMS + 31) / 32] = {};
  // Where the fold leaves its sums does not depend on the numbers.
  u32 first = 0, count = 0;
  for (u64 e = starts[t]; e < end; e += 32) {
    const bool there = e + lane_id() < end;
    Complex a[TERMS], u = {}, v = {};
    REAL ln = 0;
    if (there) {
      const u32 s = row[e + lane_id()];
      const double x = p.center[s].x - center.x, y = p.center[s].y - center.y, square = x * x + y * y, w = 1 / square;
      const double from = scale_of(p, s) * w, to = scale * w;
      u = {(REAL)(-(x * from)), (REAL)(y * from)};
      v = {(REAL)(x * to), (REAL)(-(y * to))};
      if (CHARGES) ln = (REAL)(0.5 * log(square));
      load(a, multipoles, p.boxes, s);
    } else {
#pragma unroll
      for (int j = 0; j < TERMS; ++j) a[j] = {0, 0};
    }
    const Complex a0 = a[0];
    times_powers(a, u);
#pragma unroll
    for (int j = 0; j < ORDER; ++j) a[j] = a[j + 1];
    a[ORDER] = {0, 0};
#pragma unroll
    for (int k = 2; k <= ORDER; ++k)
#pragma unroll
      for (int j = ORDER - k; j < ORDER; ++j) a[j] = a[j] + a[j + 1];
#pragma unroll
    for (int k = 1; k <= ORDER; ++k)
#pragma unroll
      for (int j = ORDER; j >= k; --j) a[j] = a[j] + a[j - 1];
    if (CHARGES) {
      a[0] = a[0] + scaled(a0, ln);
#pragma unroll
      for (int j = 1; j < TERMS; ++j) a[j] = a[j] - scaled(a0, inverse_of(j));
    }
    times_powers(a, v);
    sum_over_warp(a, kept, first, count);
  }
  if (starts[t] == end) {
    for (u32 j = lane_id(); j < TERMS; j += 32) locals[j * (u64)p.boxes + t] = {0, 0};
  } else {
    store(kept, first, count, locals, p.boxes, t, false);
  }
}

// Adds or sets the values of a target: f, f′ and f″, the derivatives in units of 1/`scale` and its square.
__device__ __forceinline__ void give(double* values, u32 i, const Complex (&f)[3], double inverse, bool add) {
  double* to = values + (u64)i * VALUES;
  double v[6], factor = 1;
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    v[2 * k] = f[k].re * factor, v[2 * k + 1] = f[k].im * factor;
    factor *= inverse;
  }
#pragma unroll
  for (int k = 0; k < VALUES; ++k) {
    const double own = v[k == 0 ? 0 : k + 2 - REALS];
    to[k] = add ? to[k] + own : own;
  }
}

// L2P: one warp per leaf. Sets the values of all targets. Horner's rule for L, L′ and L″/2.
extern "C" __global__ void __launch_bounds__(WARP_BLOCK)
    plane_l2p(const Pyramid* pyramid, const double* x, const double* y, const Complex* locals, double* values) {
  const Pyramid p = *pyramid;
  const u32 k = warp_index(), b = level_start(p.depth) + k;
  if (b >= p.boxes) return;
  const uint2 own = points_of(p.target_start, k);
  const Basis f = basis_of(p, b);
  for (u32 i = own.x + lane_id(); i < own.y; i += 32) {
    const Complex z = within(f, x[i], y[i]);
    Complex sum[3] = {};
#pragma unroll 8
    for (int j = ORDER; j >= 0; --j) {
      if (DERIVATIVES > 1) sum[2] = multiply_add(sum[2], z, sum[1]);
      if (DERIVATIVES > 0) sum[1] = multiply_add(sum[1], z, sum[0]);
      sum[0] = multiply_add(sum[0], z, locals[j * (u64)p.boxes + b]);
    }
    sum[2] = scaled(sum[2], 2);
    give(values, i, sum, f.inverse, false);
  }
}

// M2P: one warp per leaf. starts are indexed by leaf. Horner's rule in w = ρ/(z - z_0): Σ a_j w^j, its derivative
// (a_0 - Σ j a_j w^j) w/ρ and its second (-a_0 + Σ j (j + 1) a_j w^j) w²/ρ².
extern "C" __global__ void __launch_bounds__(WARP_BLOCK)
    plane_m2p(const Pyramid* pyramid, const u64* starts, const u32* row, const double* x, const double* y,
              const Complex* multipoles, double* values) {
  const Pyramid p = *pyramid;
  const u32 k = warp_index(), b = level_start(p.depth) + k;
  if (b >= p.boxes || starts[k] == starts[k + 1]) return;
  const uint2 own = points_of(p.target_start, k);
  for (u64 e = starts[k]; e < starts[k + 1]; ++e) {
    const u32 s = row[e];
    const Basis f = basis_of(p, s);
    const REAL ln_scale = CHARGES ? (REAL)log(f.scale) : REAL(0);
    for (u32 i = own.x + lane_id(); i < own.y; i += 32) {
      const Complex z = within(f, x[i], y[i]), w = inverse(z);
      Complex sum[3] = {};
#pragma unroll 8
      for (int j = ORDER; j >= 1; --j) {
        const Complex a = multipoles[j * (u64)p.boxes + s];
        if (DERIVATIVES > 1) sum[2] = multiply_add(sum[2], w, scaled(a, (REAL)(j * (j + 1))));
        if (DERIVATIVES > 0) sum[1] = multiply_add(sum[1], w, scaled(a, -(REAL)j));
        sum[0] = multiply_add(sum[0], w, a);
      }
      const Complex a0 = multipoles[s];
      sum[0] = sum[0] * w;
      sum[1] = multiply_add(sum[1], w, a0) * w;
      sum[2] = multiply_add(sum[2], w, scaled(a0, -1)) * (w * w);
      if (CHARGES) sum[0] = sum[0] + scaled(a0, REAL(0.5) * log(square_of(z)) + ln_scale);
      give(values, i, sum, f.inverse, true);
    }
  }
}
