// Products on the tensor cores. In f64 directly; in f32 by splitting each number into two halves in TF32 and adding
// three products. Defined in front: REAL.
#pragma once

#include "shared/intrinsics.cuh"
#include "shared/warp.cuh"

// Splits a number into the sum of two numbers with the 11 bits of TF32, rounding the first. The tensor core drops at
// most the last bit of the second.
__device__ __forceinline__ void halves(float x, u32& high, u32& low) {
  high = (__float_as_uint(x) + 0x1000) & 0xffffe000u;
  low = __float_as_uint(x - __uint_as_float(high));
}

// As `halves`, but truncates the first number instead of rounding it. This saves an instruction; the tensor core
// drops up to two bits of the second number.
__device__ __forceinline__ void cut(float x, u32& high, u32& low) {
  high = __float_as_uint(x) & 0xffffe000u;
  low = __float_as_uint(x - __uint_as_float(high));
}

// Adds all I · J products of matrices a and b of a warp.
template <int I, int J>
__device__ __forceinline__ void add_products(double (&c)[I][J][4], const double (&a)[I][4], const double (&b)[J][2]) {
#pragma unroll
  for (int i = 0; i < I; ++i)
#pragma unroll
    for (int j = 0; j < J; ++j) multiply_add_16x8x8(c[i][j], a[i], b[j]);
}
// In f32, three of the four products of halves are added. The product of the two low halves is below rounding.
template <int I, int J>
__device__ __forceinline__ void add_products(float (&c)[I][J][4], const float (&a)[I][4], const float (&b)[J][2]) {
  u32 high_a[I][4], low_a[I][4], high_b[J][2], low_b[J][2];
#pragma unroll
  for (int i = 0; i < 4 * I; ++i) halves(a[i / 4][i % 4], high_a[i / 4][i % 4], low_a[i / 4][i % 4]);
#pragma unroll
  for (int i = 0; i < 2 * J; ++i) halves(b[i / 2][i % 2], high_b[i / 2][i % 2], low_b[i / 2][i % 2]);
#pragma unroll
  for (int term = 0; term < 3; ++term)
#pragma unroll
    for (int i = 0; i < I; ++i)
#pragma unroll
      for (int j = 0; j < J; ++j)
        multiply_add_16x8x8(c[i][j], term == 0 ? low_a[i] : high_a[i], term == 1 ? low_b[j] : high_b[j]);
}
