// Boxes of an octree, and Morton keys. What pyramid.cuh also has – is_leaf, parent_of, level_at, frame_of, sources_of,
// targets_of – serves kernels that take either tree (tree.cuh). Twin of fmm-tree/src/{morton,lists}.rs. Compiled
// without fused multiply-adds, so that keys equal those of the CPU to the bit.
#pragma once

#include "shared/frame.cuh"

#define KEY_LEVELS 21

// Addresses of the arrays of a tree, with one entry per box (three for `anchor`), and the root cube.
struct Boxes {
  const u32* parent;
  const u32* child_start;
  const u8* child_count;
  const u8* level;
  const u64* anchor;
  const uint2* source_range;
  const uint2* target_range;
  // Lower corner and side of the root.
  double corner[3], side;
};
static_assert(sizeof(Boxes) == 11 * 8, "the host sends seven addresses and four numbers");

__device__ __forceinline__ bool is_leaf(const Boxes& t, u32 b) { return t.child_count[b] == 0; }
__device__ __forceinline__ u32 parent_of(const Boxes& t, u32 b) { return t.parent[b]; }
__device__ __forceinline__ u32 level_at(const Boxes& t, u32 b) { return t.level[b]; }
__device__ __forceinline__ uint2 sources_of(const Boxes& t, u32 b) { return t.source_range[b]; }
__device__ __forceinline__ uint2 targets_of(const Boxes& t, u32 b) { return t.target_range[b]; }
__device__ __forceinline__ u32 sources_in(const Boxes& t, u32 b) { return length(t.source_range[b]); }
__device__ __forceinline__ u32 targets_in(const Boxes& t, u32 b) { return length(t.target_range[b]); }
// The centre is the corner of the root plus an exact multiple of the side.
__device__ __forceinline__ Frame frame_of(const Boxes& t, u32 b) {
  const double h = ldexp(t.side, -(int)t.level[b]);
  Frame f;
  for (int a = 0; a < 3; ++a) f.center[a] = t.corner[a] + ((double)t.anchor[3ull * b + a] + 0.5) * h;
  f.side = h;
  return f;
}

// Rows of boxes.
struct BoxRows {
  const u64* starts;
  const u32* data;
};
static_assert(sizeof(BoxRows) == 16, "the host sends two addresses");

// Whether two cubes share at least a point.
__device__ __forceinline__ bool touch(const Boxes& t, u32 a, u32 b) {
  if (t.level[a] > t.level[b]) {
    const u32 c = a;
    a = b;
    b = c;
  }
  const u32 d = t.level[b] - t.level[a];
  bool all = true;
#pragma unroll
  for (int x = 0; x < 3; ++x) {
    const u64 coarse = t.anchor[3ull * a + x], fine = t.anchor[3ull * b + x];
    all = all && (coarse << d) <= fine + 1 && fine <= (coarse + 1) << d;
  }
  return all;
}

// The position of the first of n sorted keys that is at least `key`.
template <class T, class Key>
__device__ __forceinline__ u64 first_at_least(const T* keys, u64 n, Key key) {
  u64 lo = 0, hi = n;
  while (lo < hi) {
    const u64 middle = lo + (hi - lo) / 2;
    if (keys[middle] < key)
      lo = middle + 1;
    else
      hi = middle;
  }
  return lo;
}

// Moves bit i of a 21-bit number to bit 3i.
__device__ __forceinline__ u64 spread(u64 x) {
  x = (x | x << 32) & 0x001f00000000ffffull;
  x = (x | x << 16) & 0x001f0000ff0000ffull;
  x = (x | x << 8) & 0x100f00f00f00f00full;
  x = (x | x << 4) & 0x10c30c30c30c30c3ull;
  return (x | x << 2) & 0x1249249249249249ull;
}

// The cell of a coordinate that is given in units of cells.
__device__ __forceinline__ u64 cell_of(double x) {
  const u64 last = (1ull << KEY_LEVELS) - 1;
  if (!(x > 0)) return 0;
  return x >= (double)last ? last : (u64)x;
}

// Key of a point in the cube with lower corner `corner` and density = 2^21 / side, the cells per unit length.
__device__ __forceinline__ u64 key_of(const double* p, const double* corner, double density) {
  u64 key = 0;
#pragma unroll
  for (int a = 0; a < 3; ++a) key |= spread(cell_of(__dmul_rn(__dsub_rn(p[a], corner[a]), density))) << a;
  return key;
}

// Octant, in a box of level `level`, of the point with this key.
__device__ __forceinline__ u32 octant_of(u64 key, u32 level) {
  return (u32)(key >> (3 * (KEY_LEVELS - 1 - level % KEY_LEVELS))) & 7;
}
