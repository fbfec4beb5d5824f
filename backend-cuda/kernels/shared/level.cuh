// What the stages know of the boxes of a level, and where a box lies.
#pragma once

#include "shared/boxes.cuh"

// Rows of `LEVEL_ROW` numbers: side of the boxes, four kernel parameters on a box of side 1, then what the
// stage needs: factors of strengths, factors of values.
#define LEVEL_HEAD 5

// Centre of a box: the corner of the root and exact multiples of the side.
__device__ __forceinline__ void center_of(const Boxes& t, u32 b, const double* corner, double side, double* center) {
  for (int a = 0; a < 3; ++a) center[a] = corner[a] + ((double)t.anchor[3ull * b + a] + 0.5) * side;
}
