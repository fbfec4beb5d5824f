// From points in the caller's order to their bounding box, their keys, and arrays in tree order.

#include "shared/boxes.cuh"

// A bounding box, and the index of the first coordinate that is not finite (2^64 - 1: none).
struct Bounds {
  double low[3], high[3];
  u64 bad;
};
static_assert(sizeof(Bounds) == 56, "the host reads seven numbers");

__device__ Bounds nothing() {
  Bounds b;
  for (int a = 0; a < 3; ++a) {
    b.low[a] = __longlong_as_double(0x7ff0000000000000ll);
    b.high[a] = -b.low[a];
  }
  b.bad = ~0ull;
  return b;
}

__device__ Bounds join(Bounds a, const Bounds& b) {
  for (int i = 0; i < 3; ++i) {
    a.low[i] = fmin(a.low[i], b.low[i]);
    a.high[i] = fmax(a.high[i], b.high[i]);
  }
  a.bad = min(a.bad, b.bad);
  return a;
}

// Joins the bounds of all threads of a block of 256. Thread 0 gets the result.
__device__ Bounds join_block(Bounds mine) {
  __shared__ Bounds all[256];
  all[threadIdx.x] = mine;
  for (u32 half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) all[threadIdx.x] = join(all[threadIdx.x], all[threadIdx.x + half]);
  }
  return all[0];
}

// The bounds of the points of each block.
extern "C" __global__ void __launch_bounds__(256) bounds(const double* points, u64 n, Bounds* parts) {
  Bounds mine = nothing();
  const u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    for (int a = 0; a < 3; ++a) {
      const double x = points[3 * i + a];
      mine.low[a] = fmin(mine.low[a], x);
      mine.high[a] = fmax(mine.high[a], x);
      if (!(x - x == 0)) mine.bad = min(mine.bad, 3 * i + a);
    }
  }
  const Bounds all = join_block(mine);
  if (threadIdx.x == 0) parts[blockIdx.x] = all;
}

// Joins the bounds of all blocks into parts[0]. One block.
extern "C" __global__ void __launch_bounds__(256) join_bounds(Bounds* parts, u32 count) {
  Bounds mine = nothing();
  for (u32 i = threadIdx.x; i < count; i += blockDim.x) mine = join(mine, parts[i]);
  const Bounds all = join_block(mine);
  if (threadIdx.x == 0) parts[0] = all;
}

// Keys of the points. frame: the corner of the root (three numbers), and the cells per unit length.
extern "C" __global__ void point_keys(const double* points, u64 n, const double* frame, u64* keys) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) keys[i] = key_of(points + 3 * i, frame, frame[3]);
}

// Writes the points (N×3) in the given order as three arrays, xyz[axis · n + position].
extern "C" __global__ void gather(const double* points, const u32* order, u64 n, double* xyz) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const double* p = points + 3ull * order[i];
  for (int a = 0; a < 3; ++a) xyz[a * n + i] = p[a];
}
