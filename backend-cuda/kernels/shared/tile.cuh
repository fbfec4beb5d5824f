// Products of a matrix with vectors. A block computes a tile of EDGE rows of EDGE vectors. Each of its four warps
// computes a quarter: 2 × 4 products of 16 × 8. Shared memory holds DEPTH columns per step, copied several steps
// ahead. Defined in front: REAL.
#pragma once

#include "shared/copy.cuh"
#include "shared/product.cuh"

#define EDGE 64
#define THREADS 128
#define DEPTH 8
#define BUFFERS 4

// DEPTH columns of the matrix, and DEPTH entries of EDGE vectors. Rows are padded so that the reads of a warp fall into
// distinct banks.
typedef REAL Matrix[DEPTH][EDGE + (sizeof(REAL) == 4 ? 8 : 4)];
typedef REAL Vectors[EDGE][DEPTH + 4];
static_assert(sizeof(Matrix) % 16 == 0 && sizeof(Vectors) % 16 == 0, "copies are of 16 bytes");

// Starts the copies of columns k … k + DEPTH of the matrix (`rows` × `columns`, column by column, both even; `matrix`
// points to the first row of the tile), and of the same entries of vector threadIdx.x / 2 (null: zeros). A thread
// copies two rows of the matrix; `row_there` says whether they exist.
__device__ __forceinline__ void copy_step(Matrix& a, Vectors& b, const REAL* matrix, u32 rows, u32 columns, u32 k,
                                          bool row_there, const REAL* vector) {
  const u32 warp = threadIdx.x / 32, row = threadIdx.x % 32 * 2, v = threadIdx.x / 2, part = threadIdx.x % 2 * 2;
#pragma unroll
  for (int i = 0; i < DEPTH / 4; ++i) {
    const u32 c = warp + 4 * i, e = part + 4 * i;
    const bool a_there = row_there && k + c < columns, b_there = vector != nullptr && k + e < columns;
    copy_two(&a[c][row], a_there ? matrix + (u64)(k + c) * rows + row : matrix, a_there);
    copy_two(&b[v][e], b_there ? vector + k + e : matrix, b_there);
  }
}

// Adds the products of one step to the sums.
__device__ __forceinline__ void add_step(REAL (&sum)[2][4][4], const Matrix& a, const Vectors& b) {
  const u32 warp = threadIdx.x / 32, g = lane_id() / 4, t = lane_id() % 4;
  const u32 row = warp % 2 * 32 + g, vector = warp / 2 * 32 + g;
  REAL x[2][4], y[4][2];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int e = i % 4;
    x[i / 4][e] = a[t + e / 2 * 4][row + i / 4 * 16 + e % 2 * 8];
    y[i / 2][i % 2] = b[vector + i / 2 * 8][t + i % 2 * 4];
  }
  add_products(sum, x, y);
}

// Row, and vector, within the tile, of entry i of the 32 sums of a thread.
__device__ __forceinline__ u32 row_of(int i) {
  return threadIdx.x / 32 % 2 * 32 + lane_id() / 4 + i / 16 * 16 + i % 4 / 2 * 8;
}
__device__ __forceinline__ u32 vector_of(int i) {
  return threadIdx.x / 64 * 32 + i / 4 % 4 * 8 + 2 * (lane_id() % 4) + i % 2;
}
