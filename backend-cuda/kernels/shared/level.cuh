// The table of levels, and the centre of a box.
#pragma once

#include "shared/boxes.cuh"

// One row of `LEVEL_ROW` numbers per level: the side of the boxes, the kernel parameters on the unit box, then the
// factors of strengths and of values that the stage needs.
// Parameters that a kernel does not have are 0. PARAMETERS is an option of the compiler (compile.rs).
#define LEVEL_HEAD (1 + PARAMETERS)

// Centre of a box: the corner of the root plus an exact multiple of the side.
__device__ __forceinline__ void center_of(const Boxes& t, u32 b, const double* corner, double side, double* center) {
  for (int a = 0; a < 3; ++a) center[a] = corner[a] + ((double)t.anchor[3ull * b + a] + 0.5) * side;
}
