// Edges of one kind sorted by operator, lists of boxes, and both ends of a run: strengths into tree order, values
// into the caller's order.

#include "shared/boxes.cuh"

#define M2M 0
#define L2L 1

// For each edge of M2M or L2L: the receiving box, and the number of its operator, 8 · (level of the child) + octant
// of the child. An edge that does not join a box and its child sets `refused` to its receiver. One warp per box.
extern "C" __global__ void edge_keys(const Boxes* boxes, const u8* octants, u32 count, u32 kind, const u64* starts,
                                     const u32* sources, u64* keys, u32* targets, u32* refused) {
  const Boxes t = *boxes;
  const u32 b = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (b >= count) return;
  for (u64 e = starts[b] + lane_id(); e < starts[b + 1]; e += 32) {
    const u32 s = sources[e];
    targets[e] = b;
    const u32 child = kind == M2M ? s : b;
    if (t.parent[child] != (kind == M2M ? b : s)) atomicMin(refused, b);
    keys[e] = 8ull * t.level[child] + octants[child];
  }
}

// to[i] = from[order[i]].
extern "C" __global__ void take(const u32* from, const u32* order, u64 n, u32* to) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] = from[order[i]];
}

// The first edge of each operator: starts[k] is the position of the first key ≥ k, for k = 0 … operators. Keys are
// sorted.
extern "C" __global__ void key_starts(const u64* keys, u64 n, u32 operators, u64* starts) {
  const u32 k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k > operators) return;
  u64 lo = 0, hi = n;
  while (lo < hi) {
    const u64 middle = lo + (hi - lo) / 2;
    if (keys[middle] < k)
      lo = middle + 1;
    else
      hi = middle;
  }
  starts[k] = lo;
}

// Flags of the boxes that receive an edge of one of up to three kinds; then the list of flagged boxes. starts: prefix
// sums of the flags.
extern "C" __global__ void with_edges(u32 count, const u64* a, const u64* b, const u64* c, u32* flags) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) flags[i] = a[i] < a[i + 1] || b[i] < b[i + 1] || c[i] < c[i + 1];
}
extern "C" __global__ void list_boxes(u32 count, const u32* flags, const u64* starts, u32* boxes) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count && flags[i]) boxes[starts[i]] = i;
}

// Keys that sort boxes by falling number of targets, in units of `grain`.
extern "C" __global__ void size_keys(const Boxes* boxes, const u32* items, u32 count, u32 grain, u32 most, u64* keys) {
  const Boxes t = *boxes;
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) keys[i] = most - min((targets_in(t, items[i]) + grain - 1) / grain, most);
}

// The largest magnitude of the first `linear` of `width` strengths in n rows, hatted for the root by `factors`. (The
// others are attributes of a source.) The result is the bits of the number; bits of magnitudes have the same order as
// magnitudes. *largest must be zero before.
extern "C" __global__ void largest(const double* x, u64 n, u32 width, u32 linear, const double* factors, u64* largest) {
  u64 mine = 0;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n * width; i += (u64)gridDim.x * blockDim.x)
    if (i % width < linear) mine = max(mine, (u64)__double_as_longlong(fabs(x[i]) * factors[i % width]));
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
extern "C" __global__ void scatter(const double* given, const u32* order, u64 n, u32 width, u32 linear, const u64* largest,
                                   double* strengths) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n * width)
    strengths[i] = given[(u64)order[i / width] * width + i % width] / unit_of(i % width < linear ? largest : nullptr);
}
// Copies rows of `width` values into the caller's order, times the unit and `factor`.
extern "C" __global__ void gather(const double* values, const u32* order, u64 n, u32 width, const u64* largest,
                                  double factor, double* out) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n * width) out[(u64)order[i / width] * width + i % width] = values[i] * (factor * unit_of(largest));
}
