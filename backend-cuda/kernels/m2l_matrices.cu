// The dense matrices of M2L: the equivalent kernel from the inner surface of the source box to the inner surface of the
// target box.
//
// Defined in front of this file: REAL, STRENGTHS, VALUES, and `bare_pair` in f64.

#include "shared/real.cuh"
#include "shared/warp.cuh"

// Entry (row, column) of the matrix of offset o is at (o · columns + column) · rows + row. Rows and columns are ordered
// component by component. surface: n points, all x, then y, then z. offsets: target minus source, in sides.
extern "C" __global__ void m2l_matrices(const double* parameters, const double* surface, u32 n, const double* offsets,
                                        u32 count, REAL* out) {
  const u64 rows = (u64)VALUES * n, columns = (u64)STRENGTHS * n;
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  const u32 t = i % n, column = i / n % columns, o = i / n / columns;
  if (o >= count) return;
  const u32 s = column % n, strength = column / n;
  double q[STRENGTHS], u[VALUES];
#pragma unroll
  for (int c = 0; c < STRENGTHS; ++c) q[c] = c == strength;
  double r[3];
  for (int a = 0; a < 3; ++a) r[a] = surface[a * n + t] - surface[a * n + s] + offsets[3 * o + a];
  bare_pair(parameters, r[0], r[1], r[2], q, u);
#pragma unroll
  for (int k = 0; k < VALUES; ++k) out[(o * columns + column) * rows + (u64)k * n + t] = (REAL)u[k];
}
