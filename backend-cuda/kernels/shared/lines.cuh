// Transforms of a line of P numbers to and from SIDE = 2P - 1 frequencies, by plain sums. A frequency is computed
// together with the opposite frequency, whose roots are the conjugates. Defined in front: REAL, P, THREADS.
#pragma once

#include "shared/complex.cuh"

#define SIDE (2 * P - 1)
// Frequencies of a line whose sums are unrolled: as many as fit into the instruction cache.
#define OUT (P * (int)sizeof(REAL) > 24 ? 2 : P - 1)

// e^(-2πi j / SIDE).
__device__ void fill_roots(Complex* roots) {
  for (int j = threadIdx.x; j < SIDE; j += THREADS) {
    double s, c;
    sincospi(2.0 * j / SIDE, &s, &c);
    roots[j] = {(REAL)c, (REAL)-s};
  }
}

// Forward transform of a line: calls put(k, sum) for all frequencies k.
template <class Put>
__device__ __forceinline__ void forward(const Complex (&in)[P], const Complex* roots, Put put) {
  Complex all = in[0];
#pragma unroll
  for (int i = 1; i < P; ++i) all.re += in[i].re, all.im += in[i].im;
  put(0, all);
#pragma unroll OUT
  for (int k = 1; k < P; ++k) {
    Complex even = in[0], odd = {0, 0};
    int at = 0;
#pragma unroll
    for (int i = 1; i < P; ++i) {
      at += k;
      if (at >= SIDE) at -= SIDE;
      const Complex w = roots[at];
      even.re += in[i].re * w.re, even.im += in[i].im * w.re;
      odd.re -= in[i].im * w.im, odd.im += in[i].re * w.im;
    }
    put(k, Complex{even.re + odd.re, even.im + odd.im});
    put(SIDE - k, Complex{even.re - odd.re, even.im - odd.im});
  }
}

// Inverse transform of a line: sums get(k) over all frequencies k, at the P points.
template <class Get>
__device__ __forceinline__ void inverse(Complex (&out)[P], const Complex* roots, Get get) {
  const Complex first = get(0);
#pragma unroll
  for (int x = 0; x < P; ++x) out[x] = first;
#pragma unroll OUT
  for (int k = 1; k < P; ++k) {
    const Complex u = get(k), v = get(SIDE - k);
    const Complex even = {u.re + v.re, u.im + v.im}, odd = {u.im - v.im, v.re - u.re};
    int at = 0;
#pragma unroll
    for (int x = 0; x < P; ++x) {
      const Complex w = roots[at];
      out[x].re += even.re * w.re + odd.re * w.im;
      out[x].im += even.im * w.re + odd.im * w.im;
      at += k;
      if (at >= SIDE) at -= SIDE;
    }
  }
}
