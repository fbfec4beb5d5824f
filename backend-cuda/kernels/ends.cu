// Both ends of an evaluation: strengths of the caller into tree order, values into arrays of the caller.
//
// The caller's numbers are f32 or f64. Numbers that are not finite are noted, not refused: the host reads the notes
// after the evaluation. Lists of rows may be null: then row i is row i.

#include "shared/warp.cuh"

// A note: the complement of 4 · index + kind (0 NaN, 1 infinite, 2 negative and infinite). Because of the complement,
// atomicMax keeps the number with the lowest index. 0 means that all numbers are finite. Example: NaN at index 5 is
// ~20. Without `found` nothing is noted.
template <class T>
__device__ __forceinline__ void note(T x, u64 index, u64* found) {
  if (!found || x - x == 0) return;
  atomicMax(found, ~(4 * index + (x != x ? 0 : x > 0 ? 1 : 2)));
}

// The bits of |x| · factor, which have the same order as magnitudes. The bits of a finite x are at most those of the
// largest number, the bits of NaN and infinity are above.
template <class T>
__device__ __forceinline__ u64 magnitude(T x, double factor) {
  const u64 bits = (u64)__double_as_longlong(fabs((double)x) * factor), most = 0x7fefffffffffffffull;
  return x - x == 0 ? min(bits, most) : bits;
}

// The largest magnitude of the first `linear` of `width` strengths in n rows, hatted for the root by `factors`, if there
// are some. (The others are attributes of a source.) The result is the bits of the number. *largest must be zero, or
// another such result, before.
template <class T>
__device__ __forceinline__ void largest_of(const T* x, u64 n, u32 width, u32 linear, const double* factors,
                                           u64* largest, u64* found) {
  u64 mine = 0;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n * width; i += (u64)gridDim.x * blockDim.x) {
    note(x[i], i, found);
    if (i % width < linear) mine = max(mine, magnitude(x[i], factors ? factors[i % width] : 1.0));
  }
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

// Copies n rows of `width` strengths from the rows `from` to the rows `to`, the first `linear` divided by their unit.
template <class T>
__device__ __forceinline__ void scatter_of(const T* given, const u32* from, const u32* to, u64 n, u32 width, u32 linear,
                                           const u64* largest, double* strengths, u64* found) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n * width) return;
  const u64 row = i / width, column = i % width, at = (from ? from[row] : row) * width + column;
  const T x = given[at];
  note(x, at, found);
  strengths[(to ? to[row] : row) * width + column] = (double)x / unit_of(column < linear ? largest : nullptr);
}

// Marks a column whose negative is a value.
#define MINUS (1u << 31)

// An array with some columns of the values, in f32 (`single`) or f64.
struct Output {
  void* to;
  u32 columns, single;
};
static_assert(sizeof(Output) == 16, "the host sends an address and two numbers");

// Column j of up to four arrays, whose columns are counted through: the array, its number, and the column in it.
struct Place {
  Output out;
  u32 array, column;
};
__device__ __forceinline__ Place place_of(u32 j, const Output& a, const Output& b, const Output& c, const Output& d) {
  if (j < a.columns) return {a, 0, j};
  j -= a.columns;
  if (j < b.columns) return {b, 1, j};
  j -= b.columns;
  if (j < c.columns) return {c, 2, j};
  return {d, 3, j - c.columns};
}

// Stores a value, and notes it if it is not finite.
__device__ __forceinline__ void put(const Output& out, u64 at, double value, u64* found) {
  if (out.single) {
    const float x = (float)value;
    note(x, at, found);
    ((float*)out.to)[at] = x;
  } else {
    note(value, at, found);
    ((double*)out.to)[at] = value;
  }
}

// Copies values of n rows of `width` values from the rows `from` to the rows `to` of up to four arrays, times the unit and
// `factor`. columns[j]: the column of `values` for column j of the arrays, which are counted through, with MINUS if the
// negative is meant. `values` begins with row `held`. If `to` is null, and `from` has the places of the caller's rows in tree
// order, the arrays are written in order and rows are read at random, four values by one access. found[k]: the note of array
// k.
extern "C" __global__ void gather(u32 held, const double* values, const u32* from, const u32* to, u64 n, u32 width,
                                  const u32* columns, const u64* largest, double factor, Output a, Output b, Output c,
                                  Output d, u64* found) {
  const u32 all = a.columns + b.columns + c.columns + d.columns;
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x, row = i / all;
  if (row >= n) return;
  const Place p = place_of((u32)(i - row * all), a, b, c, d);
  const u32 column = columns[i - row * all];
  const double value = values[((from ? from[row] : row) - held) * width + (column & ~MINUS)];
  const u64 at = (to ? to[row] : row) * p.out.columns + p.column;
  put(p.out, at, (column & MINUS ? -value : value) * (factor * unit_of(largest)), found ? found + p.array : nullptr);
}

// Copies n rows of a message, which another rank has made of its values, to the rows `to` of up to four arrays of the
// caller. The rows for array a begin at byte start_a of the message, in the type of the array, and so on.
extern "C" __global__ void deliver(const u8* message, u64 start_a, u64 start_b, u64 start_c, u64 start_d, const u32* to,
                                   u64 n, Output a, Output b, Output c, Output d, u64* found) {
  const u32 all = a.columns + b.columns + c.columns + d.columns;
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x, row = i / all;
  if (row >= n) return;
  const Place p = place_of((u32)(i - row * all), a, b, c, d);
  const u8* const rows = message + (p.array == 0 ? start_a : p.array == 1 ? start_b : p.array == 2 ? start_c : start_d);
  const u64 from = row * p.out.columns + p.column, at = (u64)to[row] * p.out.columns + p.column;
  put(p.out, at, p.out.single ? (double)((const float*)rows)[from] : ((const double*)rows)[from], found + p.array);
}

extern "C" __global__ void largest_f32(const float* x, u64 n, u32 width, u32 linear, const double* factors, u64* largest,
                                       u64* found) {
  largest_of(x, n, width, linear, factors, largest, found);
}
extern "C" __global__ void scatter_f32(const float* given, const u32* from, const u32* to, u64 n, u32 width, u32 linear,
                                       const u64* largest, double* strengths, u64* found) {
  scatter_of(given, from, to, n, width, linear, largest, strengths, found);
}

extern "C" __global__ void largest_f64(const double* x, u64 n, u32 width, u32 linear, const double* factors, u64* largest,
                                       u64* found) {
  largest_of(x, n, width, linear, factors, largest, found);
}
extern "C" __global__ void scatter_f64(const double* given, const u32* from, const u32* to, u64 n, u32 width, u32 linear,
                                       const u64* largest, double* strengths, u64* found) {
  scatter_of(given, from, to, n, width, linear, largest, strengths, found);
}

// Widens points in f32.
extern "C" __global__ void widen_f32(const float* x, u64 n, double* y) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i];
}

// The places in tree order of the caller's rows first … first + count - 1. order: the row of each of n places.
extern "C" __global__ void places(const u32* order, u64 n, u32 first, u32 count, u32* to) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && order[i] - first < count) to[order[i] - first] = (u32)i;
}
