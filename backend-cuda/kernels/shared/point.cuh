// A point at which the field of a row of harmonics is summed. Multipoles are summed at the inverted point.
//
// Defined in front: REAL, VALUES, SINGULAR (1: M2P).
#pragma once

#include "shared/real.cuh"
#include "shared/warp.cuh"

// A point y, the real and imaginary part of (x + iy)^m, and the values summed so far.
struct Point {
  REAL y[3], r2, rho, cosine, sine, value[VALUES];

  // From m − 1 to m.
  __device__ __forceinline__ void next() {
    const REAL c = cosine;
    cosine = y[0] * c - y[1] * sine;
    sine = y[0] * sine + y[1] * c;
  }
};

// Starts the sum at the point `x`, relative to the centre of the box. `scale` is 1 / (side of the box).
__device__ __forceinline__ void begin(Point& at, const double (&x)[3], double scale) {
#pragma unroll
  for (int a = 0; a < 3; ++a) at.y[a] = (REAL)(x[a] * scale);
  at.r2 = at.y[0] * at.y[0] + (at.y[1] * at.y[1] + at.y[2] * at.y[2]);
  if (SINGULAR) {
    if (at.r2 < REAL(1e36)) {
      at.rho = bare_rsqrt(at.r2);
      const REAL inverse = at.rho * at.rho;
#pragma unroll
      for (int a = 0; a < 3; ++a) at.y[a] *= inverse;
    } else {
      // The point is so far away that the square leaves the range of f32. At distances beyond this range the field is 0.
      REAL most = 0, square = 0;
#pragma unroll
      for (int a = 0; a < 3; ++a) most = max(most, abs(at.y[a]));
      const REAL inverse = finite(most) ? 1 / most : REAL(0);
#pragma unroll
      for (int a = 0; a < 3; ++a) {
        at.y[a] = inverse > 0 ? at.y[a] * inverse : REAL(0);
        square += at.y[a] * at.y[a];
      }
      const REAL rho = inverse > 0 ? bare_rsqrt(square) : REAL(0);
      at.rho = rho * inverse;
#pragma unroll
      for (int a = 0; a < 3; ++a) at.y[a] *= rho * at.rho;
    }
    at.r2 = at.rho * at.rho;
  }
  at.cosine = 1, at.sine = 0;
#pragma unroll
  for (int k = 0; k < VALUES; ++k) at.value[k] = 0;
}
