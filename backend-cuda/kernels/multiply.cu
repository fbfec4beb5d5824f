// A matrix times many vectors: surface solves, M2M, L2L. Vectors are rows of an array, selected by number.
//
// f64 runs on the tensor cores. f32 does not: three products of halves lose two bits, which the solves amplify, and
// they were not faster (measured in docs/notes/gpu-performance.md).
//
// Defined in front of this file: REAL.

#include "shared/tile.cuh"

// In f32 a thread has eight rows and four vectors: entry i of its 32 sums is row i / 4 and vector i % 4. Its rows and
// vectors are spread such that the reads of a warp, 16 bytes each, fall into distinct banks.
__device__ __forceinline__ u32 row_of(float, int i) { return threadIdx.x % 8 * 4 + i / 16 * 32 + i / 4 % 4; }
__device__ __forceinline__ u32 vector_of(float, int i) { return threadIdx.x / 8 + i % 4 * 16; }
__device__ __forceinline__ void add_tiles(float* sum, const Matrix& a, const Vectors& b) {
  const u32 row = row_of(0.f, 0), vector = vector_of(0.f, 0);
#pragma unroll
  for (int d = 0; d < DEPTH; d += 4) {
    float4 y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = *(const float4*)&b[vector + i * 16][d];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float4 x[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) x[i] = *(const float4*)&a[d + e][row + i * 32];
#pragma unroll
      for (int i = 0; i < 32; ++i) sum[i] += (&x[0].x)[i / 4] * (&y[i % 4].x)[e];
    }
  }
}
__device__ __forceinline__ void add_tiles(double* sum, const Matrix& a, const Vectors& b) {
  add_step(*(REAL(*)[2][4][4])sum, a, b);
}
__device__ __forceinline__ u32 row_of(double, int i) { return row_of(i); }
__device__ __forceinline__ u32 vector_of(double, int i) { return vector_of(i); }

// out[to[j]] = factor · matrix · in[from[j]], or with `add` out[to[j]] += …
// * With `starts`, the vectors of group g are j = starts[g] … starts[g + 1] − 1, and each group has a matrix of its
//   own. Without `starts`, there is one matrix, and j = 0 … count − 1.
// * Matrices have `rows` × `columns` numbers, column by column; both are even.
// * Vectors start `in_stride` (`out_stride`) numbers apart, which are even too. Without `from` (`to`), the vector is j.
// A block computes EDGE rows of EDGE vectors of one group.
extern "C" __global__ void __launch_bounds__(THREADS)
    multiply(const REAL* matrix, u32 rows, u32 columns, const REAL* in, u32 in_stride, const u32* from, REAL* out,
             u32 out_stride, const u32* to, const u64* starts, u32 count, double factor, u32 add) {
  __shared__ alignas(16) Matrix a[BUFFERS];
  __shared__ alignas(16) Vectors b[BUFFERS];
  u32 begin = 0, tile = blockIdx.x;
  if (starts) {
    for (u32 group = 0;; ++group, matrix += (u64)rows * columns) {
      begin = (u32)starts[group], count = (u32)starts[group + 1];
      const u32 tiles = (count - begin + EDGE - 1) / EDGE;
      if (tile < tiles) break;
      tile -= tiles;
    }
  }
  const u32 first_row = blockIdx.y * EDGE, first = begin + tile * EDGE, mine = first + threadIdx.x / 2;
  const bool row_there = first_row + threadIdx.x % 32 * 2 < rows;
  const REAL* vector = mine < count ? in + (u64)(from ? from[mine] : mine) * in_stride : nullptr;
  const u32 steps = (columns + DEPTH - 1) / DEPTH;
  u32 next = 0;
  auto copy = [&] {
    if (next < steps)
      copy_step(a[next % BUFFERS], b[next % BUFFERS], matrix + first_row, rows, columns, next * DEPTH, row_there, vector);
    ++next;
    commit_copies();
  };
  REAL sum[32] = {};
  for (u32 i = 0; i + 1 < BUFFERS; ++i) copy();
  for (u32 step = 0; step < steps; ++step) {
    wait_for_copies<BUFFERS - 2>();
    __syncthreads();
    copy();
    add_tiles(sum, a[step % BUFFERS], b[step % BUFFERS]);
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const u32 v = first + vector_of(REAL(), i), r = first_row + row_of(REAL(), i);
    if (v >= count || r >= rows) continue;
    REAL* target = out + (u64)(to ? to[v] : v) * out_stride + r;
    *target = (add ? *target : REAL(0)) + (REAL)factor * sum[i];
  }
}

// For each box b of `items`: row b of y becomes the sum of the rows row[starts[b]] … of x. x may be y. One thread per
// number.
extern "C" __global__ void add_rows(const u32* items, u32 count, const u64* starts, const u32* row, u32 length,
                                    const REAL* x, REAL* y) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= (u64)count * length) return;
  const u32 b = items[i / length], k = i % length;
  REAL sum = 0;
  for (u64 e = starts[b]; e < starts[b + 1]; ++e) sum += x[(u64)row[e] * length + k];
  y[(u64)b * length + k] = sum;
}

// Mirror images of square matrices with `side` rows. Matrix k becomes matrix images[k] >> 3 with the axes in the lower three
// bits reflected. A matrix without such axes stays as it is. odd[i] has the axes whose reflection changes the sign of row
// and column i. One block per column (x) and image (y).
extern "C" __global__ void mirror(REAL* matrices, const u32* images, const u32* odd, u32 side) {
  const u32 image = images[blockIdx.y], column = blockIdx.x, axes = image & 7;
  if (!axes) return;
  const REAL* from = matrices + ((u64)(image >> 3) * side + column) * side;
  REAL* to = matrices + ((u64)blockIdx.y * side + column) * side;
  for (u32 row = threadIdx.x; row < side; row += blockDim.x)
    to[row] = __popc(axes & (odd[row] ^ odd[column])) & 1 ? -from[row] : from[row];
}
