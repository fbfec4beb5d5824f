// The boxes of a small problem: those that hold some of the points of an octree. Twin of fmm-tree/src/thin.rs.

#include "shared/boxes.cuh"

// Sets the flag of the root, and of each box that holds one of the sources (or targets) at some positions.
extern "C" __global__ void holding(const Boxes* tree, const u32* positions, u32 count, u32 of_targets, u32* flags) {
  const Boxes t = *tree;
  const u32 k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k == 0) flags[0] = 1;
  if (k >= count) return;
  const u32 at = positions[k];
  const uint2* ranges = of_targets ? t.target_range : t.source_range;
  for (u32 b = 0; t.child_count[b] > 0;) {
    // The first child whose range ends behind the point.
    u32 child = t.child_start[b];
    const u32 last = child + t.child_count[b] - 1;
    while (child < last && ranges[child].y <= at) ++child;
    flags[child] = 1;
    b = child;
  }
}

// The boxes with a flag as a tree of their own. `starts` are the prefix sums of the flags, so that the new number of a
// box is the number of flags before it. Eight words for each: parent, first child (0 for a leaf), number of children,
// octant, and the ranges of its sources and targets among those at the positions. And the anchor of each.
extern "C" __global__ void small_boxes(const Boxes* tree, u32 count, const u32* flags, const u64* starts,
                                       const u8* octant, const u32* sources, u32 n_sources, const u32* targets,
                                       u32 n_targets, u32* words, u64* anchor) {
  const Boxes t = *tree;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count || !flags[b]) return;
  const u64 i = starts[b];
  const u32 child = t.child_start[b], children = t.child_count[b];
  const u32 few = children > 0 ? (u32)(starts[child + children] - starts[child]) : 0;
  u32* own = words + 8 * i;
  own[0] = b == 0 ? NONE : (u32)starts[t.parent[b]];
  own[1] = few > 0 ? (u32)starts[child] : 0;
  own[2] = few;
  own[3] = octant[b];
  own[4] = (u32)first_at_least(sources, n_sources, t.source_range[b].x);
  own[5] = (u32)first_at_least(sources, n_sources, t.source_range[b].y);
  own[6] = (u32)first_at_least(targets, n_targets, t.target_range[b].x);
  own[7] = (u32)first_at_least(targets, n_targets, t.target_range[b].y);
  for (int a = 0; a < 3; ++a) anchor[3 * i + a] = t.anchor[3ull * b + a];
}
