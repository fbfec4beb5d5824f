// Tasks of P2P, L2P and M2P. A block has one task: a *group* of the targets of a leaf, and a *part* of its edges.
#pragma once

#include "shared/frame.cuh"

struct alignas(16) Task {
  u32 leaf, group;
  // The part, and the number of parts of the leaf.
  u16 part, parts;
  // The row of partial sums of the group's first target. NONE in part 0, whose sums are added to the values.
  u32 row;
};
static_assert(sizeof(Task) == 16, "the host allocates four numbers a task");

// Number of parts of a leaf, of at most `most` edges each (of more if a leaf would have 2^16 parts).
__device__ __forceinline__ u32 parts_of(u64 edges, u32 most) {
  return (u32)max(1ull, min((edges + most - 1) / most, 0xffffull));
}

// The groups of a leaf. All have the same number of targets, a multiple of `grain`, except the last. A group has at
// most `most` grains.
struct Groups {
  u32 count, size;
};
__device__ __forceinline__ Groups groups_of(u32 targets, u32 grain, u32 most) {
  const u32 needed = (targets + grain - 1) / grain, count = (needed + most - 1) / most;
  const u32 width = count ? (needed + count - 1) / count : 0;
  return {count, width * grain};
}

// The targets of a group of a leaf that has the targets `range`.
__device__ __forceinline__ uint2 targets_of_group(uint2 range, const Groups& groups, u32 group) {
  const u32 first = min(range.x + group * groups.size, range.y);
  return make_uint2(first, min(first + groups.size, range.y));
}
