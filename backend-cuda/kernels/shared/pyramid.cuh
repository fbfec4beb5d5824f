// Boxes of the pyramid of the plane (backend-cuda/src/plane/pyramid.rs). Box b has the children 4b + 1 … 4b + 4; all
// leaves are on the last level. What boxes.cuh also has serves kernels that take either tree (tree.cuh).
#pragma once

#include "shared/frame.cuh"

struct Pyramid {
  const double2* center;
  const double* radius;
  // First source and first target of each leaf, and the end of the last leaf.
  const u32 *source_start, *target_start;
  u32 depth, boxes;
  // Smallest length by which a series is scaled.
  double least_scale;
};

// Boxes above a level.
__device__ __forceinline__ u32 level_start(u32 level) { return (u32)(((1ull << 2 * level) - 1) / 3); }
// The level of a box.
__device__ __forceinline__ u32 level_of(u32 b) { return (31 - __clz(3 * b + 1)) / 2; }
// Positions of the points of leaf number k.
__device__ __forceinline__ uint2 points_of(const u32* start, u32 k) { return make_uint2(start[k], start[k + 1]); }
// Positions of the points of box b of a level.
__device__ __forceinline__ uint2 points_of(const u32* start, const Pyramid& p, u32 level, u32 b) {
  const u32 shift = 2 * (p.depth - level);
  const u64 k = b - level_start(level);
  return make_uint2(start[k << shift], start[(k + 1) << shift]);
}
// Whether box b of a level has points.
__device__ __forceinline__ bool is_filled(const u32* start, const Pyramid& p, u32 level, u32 b) {
  const uint2 own = points_of(start, p, level, b);
  return own.x < own.y;
}
// The length by which the series of a box are scaled.
__device__ __forceinline__ double scale_of(const Pyramid& p, u32 b) { return max(p.radius[b], p.least_scale); }

__device__ __forceinline__ bool is_leaf(const Pyramid& p, u32 b) { return b >= level_start(p.depth); }
__device__ __forceinline__ u32 parent_of(const Pyramid&, u32 b) { return (b - 1) / 4; }
__device__ __forceinline__ u32 level_at(const Pyramid&, u32 b) { return level_of(b); }
__device__ __forceinline__ uint2 sources_of(const Pyramid& p, u32 b) {
  return points_of(p.source_start, p, level_of(b), b);
}
__device__ __forceinline__ uint2 targets_of(const Pyramid& p, u32 b) {
  return points_of(p.target_start, p, level_of(b), b);
}
// The side is twice the scale.
__device__ __forceinline__ Frame frame_of(const Pyramid& p, u32 b) {
  return {{p.center[b].x, p.center[b].y, 0}, 2 * scale_of(p, b)};
}
