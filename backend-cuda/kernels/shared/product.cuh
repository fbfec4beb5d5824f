// Products on the tensor cores. In f64 directly; in f32 by splitting each number into two halves in TF32 and adding
// three products. Defined in front: REAL.
#pragma once

#include "shared/warp.cuh"

// c += a b on the tensor cores: a is 16 × 8, b is 8 × 8. With g = lane / 4 and t = lane % 4, a lane holds these
// entries: a: (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4); b: (t, g), (t + 4, g); c: (g, 2t), (g, 2t + 1), (g + 8,
// 2t), (g + 8, 2t + 1).
__device__ __forceinline__ void add_product(double* c, const double* a, const double* b) {
#if __CUDA_ARCH__ >= 900
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
#pragma unroll
  for (int i = 0; i < 4; ++i)
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+d"(c[i % 2 * 2]), "+d"(c[i % 2 * 2 + 1])
        : "d"(a[i]), "d"(b[i / 2]));
#endif
}
__device__ __forceinline__ void add_product(float* c, const u32* a, const u32* b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

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
    for (int j = 0; j < J; ++j) add_product(c[i][j], a[i], b[j]);
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
        add_product(c[i][j], term == 0 ? low_a[i] : high_a[i], term == 1 ? low_b[j] : high_b[j]);
}
