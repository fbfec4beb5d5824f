// Complex numbers. In front: REAL.
#pragma once

#include "shared/warp.cuh"

struct alignas(2 * sizeof(REAL)) Complex {
  REAL re, im;
};

// sum += u w.
__device__ __forceinline__ void add_times(Complex& sum, const Complex& u, const Complex& w) {
  sum.re += u.re * w.re;
  sum.re -= u.im * w.im;
  sum.im += u.re * w.im;
  sum.im += u.im * w.re;
}
// sum += u conj(w).
__device__ __forceinline__ void add_times_conjugate(Complex& sum, const Complex& u, const Complex& w) {
  sum.re += u.re * w.re;
  sum.re += u.im * w.im;
  sum.im += u.im * w.re;
  sum.im -= u.re * w.im;
}
