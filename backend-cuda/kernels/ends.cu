// Both ends of an evaluation: strengths of the caller into tree order, values into arrays of the caller.
//
// The caller's numbers are f32 or f64. Numbers that are not finite are noted, not refused: the host reads the notes
// after the evaluation. `order` is the index of each point in the caller's arrays; null for points in that order.

#include "shared/warp.cuh"

// A note: the complement of 4 · index + kind (0 NaN, 1 infinite, 2 negative and infinite). Because of the complement,
// atomicMax keeps the number with the lowest index. 0 means that all numbers are finite. Example: NaN at index 5 is
// ~20.
template <class T>
__device__ __forceinline__ void note(T x, u64 index, u64* found) {
  if (x - x == 0) return;
  atomicMax(found, ~(4 * index + (x != x ? 0 : x > 0 ? 1 : 2)));
}

// The largest magnitude of the first `linear` of `width` strengths in n rows, hatted for the root by `factors`. (The
// others are attributes of a source.) The result is the bits of the number; bits of magnitudes have the same order as
// magnitudes. *largest must be zero before.
template <class T>
__device__ __forceinline__ void largest_of(const T* x, u64 n, u32 width, u32 linear, const double* factors,
                                           u64* largest) {
  u64 mine = 0;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n * width; i += (u64)gridDim.x * blockDim.x)
    if (i % width < linear) mine = max(mine, (u64)__double_as_longlong(fabs((double)x[i]) * factors[i % width]));
#pragma unroll
  for (int d = 1; d < 32; d *= 2) mine = max(mine, __shfl_xor_sync(~0u, mine, d));
  if (lane_id() == 0) atomicMax(largest, mine);
}

// The unit of strengths: the power of two at or below the largest magnitude (1 if all are zero, or without `largest`).
// Strengths are divided by it, so that sums stay in the range of f32 whatever the caller's units.
__device__ __forceinline__ double unit_of(const u64* largest) {
  // Exponent bits alone; subnormal numbers give 0.
  const u64 bits = largest ? *largest & 0x7ffull << 52 : 0;
  return bits == 0 || bits == 0x7ffull << 52 ? 1.0 : __longlong_as_double((long long)bits);
}

// Copies rows of `width` strengths into tree order, the first `linear` divided by their unit.
template <class T>
__device__ __forceinline__ void scatter_of(const T* given, const u32* order, u64 n, u32 width, u32 linear,
                                           const u64* largest, double* strengths, u64* found) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n * width) return;
  const u64 row = i / width, from = (order ? order[row] : row) * width + i % width;
  const T x = given[from];
  note(x, from, found);
  strengths[i] = (double)x / unit_of(i % width < linear ? largest : nullptr);
}

// Marks a column whose negative is a value.
#define MINUS (1u << 31)

// Copies `count` of the `width` values of each row into an array of the caller, times the unit and `factor`. With
// `places`, the places of the caller's rows in tree order, threads follow the array of the caller: then a row is read by
// one access of 32 bytes, and the array is written in order. Otherwise threads follow `order`.
template <class T>
__device__ __forceinline__ void gather_of(const double* values, const u32* order, const u32* places, u64 n, u32 width,
                                          const u32* columns, u32 count, const u64* largest, double factor, T* out,
                                          u64* found) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n * count) return;
  const u64 at = i / count, row = places ? places[at] : at, to = (order ? order[at] : at) * count + i % count;
  const u32 column = columns[i % count];
  const double value = values[row * width + (column & ~MINUS)];
  const T x = (T)((column & MINUS ? -value : value) * (factor * unit_of(largest)));
  note(x, to, found);
  out[to] = x;
}

extern "C" __global__ void largest_f32(const float* x, u64 n, u32 width, u32 linear, const double* factors, u64* largest) {
  largest_of(x, n, width, linear, factors, largest);
}
extern "C" __global__ void scatter_f32(const float* given, const u32* order, u64 n, u32 width, u32 linear,
                                       const u64* largest, double* strengths, u64* found) {
  scatter_of(given, order, n, width, linear, largest, strengths, found);
}
extern "C" __global__ void gather_f32(const double* values, const u32* order, const u32* places, u64 n, u32 width,
                                      const u32* columns, u32 count, const u64* largest, double factor, float* out,
                                      u64* found) {
  gather_of(values, order, places, n, width, columns, count, largest, factor, out, found);
}

extern "C" __global__ void largest_f64(const double* x, u64 n, u32 width, u32 linear, const double* factors, u64* largest) {
  largest_of(x, n, width, linear, factors, largest);
}
extern "C" __global__ void scatter_f64(const double* given, const u32* order, u64 n, u32 width, u32 linear,
                                       const u64* largest, double* strengths, u64* found) {
  scatter_of(given, order, n, width, linear, largest, strengths, found);
}
extern "C" __global__ void gather_f64(const double* values, const u32* order, const u32* places, u64 n, u32 width,
                                      const u32* columns, u32 count, const u64* largest, double factor, double* out,
                                      u64* found) {
  gather_of(values, order, places, n, width, columns, count, largest, factor, out, found);
}

// Widens points in f32.
extern "C" __global__ void widen_f32(const float* x, u64 n, double* y) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i];
}

// The place of each row of the caller in tree order.
extern "C" __global__ void places(const u32* order, u64 n, u32* to) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[order[i]] = (u32)i;
}
