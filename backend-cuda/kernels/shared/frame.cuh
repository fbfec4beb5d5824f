// The frame of a box of any tree: what coordinates of its points are made relative to.
#pragma once

#include "shared/warp.cuh"

// fmm_traits::tree::NONE: no box.
#define NONE 0xffffffffu

struct Frame {
  double center[3], side;
};

// Number of points in a range of positions.
__device__ __forceinline__ u32 length(uint2 range) { return range.y - range.x; }
