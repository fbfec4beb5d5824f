// The points that a share of a tree keeps (src/shares/points.rs). Leaves with points are numbered in the order of their
// points.
#pragma once

#include "shared/boxes.cuh"

// starts[k]: the place in the tree of the first point of leaf k. before[k]: how many points of earlier leaves are kept.
struct Kept {
  const u64 *starts, *before;
};
static_assert(sizeof(Kept) == 16, "the host sends two addresses");

// The number of kept points before a place at which a leaf begins, or behind the last point.
__device__ __forceinline__ u64 kept_before(const Kept& kept, u64 leaves, u64 place) {
  return kept.before[first_at_least(kept.starts, leaves, place)];
}
