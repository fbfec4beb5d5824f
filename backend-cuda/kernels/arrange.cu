// Edges of one kind sorted by operator, and lists of boxes.

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
