// Solid harmonics by recursion, column by column (a column is all degrees of one m). Twin of
// fmm-kernels/src/spherical/basis.rs. Defined in front: REAL.
#pragma once

#include "shared/warp.cuh"

// The coefficients of the recursion for (n, m), as `Basis::coefficients` returns them. Stored at `triangle(n, m)`.
struct alignas(2 * sizeof(REAL)) Step {
  REAL a, b;
};
__device__ __forceinline__ u32 triangle(u32 n, u32 m) { return n * (n + 1) / 2 + m; }

// A point, and the cosine and sine of R_m^m at the point.
struct Harmonics {
  REAL x, y, z, r2, cosine, sine;

  __device__ __forceinline__ void begin(const double* at, double factor) {
    x = (REAL)at[0], y = (REAL)at[1], z = (REAL)at[2];
    r2 = x * x + (y * y + z * z);
    cosine = (REAL)factor, sine = 0;
  }
  // From m − 1 to m.
  __device__ __forceinline__ void next(const Step& step) {
    const REAL c = cosine, s = sine;
    cosine = step.a * (x * c - y * s);
    sine = step.a * (x * s + y * c);
  }
};

// Calls visit(n, cosines, sines) for n = m … order − 1. Both arguments are REAL (&)[EACH], one number per point.
template <int EACH, class Visit>
__device__ __forceinline__ void for_column(const Harmonics (&at)[EACH], const Step* steps, u32 m, u32 order, Visit visit) {
  REAL c[EACH], s[EACH], before_c[EACH] = {}, before_s[EACH] = {};
#pragma unroll
  for (int i = 0; i < EACH; ++i) c[i] = at[i].cosine, s[i] = at[i].sine;
  visit(m, c, s);
  for (u32 n = m + 1; n < order; ++n) {
    const Step step = steps[triangle(n, m)];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const REAL a = step.a * at[i].z, b = step.b * at[i].r2;
      const REAL next_c = a * c[i] - b * before_c[i], next_s = a * s[i] - b * before_s[i];
      before_c[i] = c[i], before_s[i] = s[i];
      c[i] = next_c, s[i] = next_s;
    }
    visit(n, c, s);
  }
}

// Starts the recursion at point i, in units of the box. Singular harmonics are regular ones at the inverted point,
// divided by r.
__device__ __forceinline__ void place(Harmonics& at, const double* xyz, u64 points, u64 i, const double* center, double scale,
                                      bool singular) {
  double x[3], factor = 1;
  for (int a = 0; a < 3; ++a) x[a] = (xyz[a * points + i] - center[a]) * scale;
  if (singular) {
    const double inverse = 1 / (x[0] * x[0] + (x[1] * x[1] + x[2] * x[2]));
    for (int a = 0; a < 3; ++a) x[a] *= inverse;
    factor = sqrt(inverse);
  }
  at.begin(x, factor);
}
