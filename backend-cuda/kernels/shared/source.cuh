// A source in shared memory: x, y, z, strengths. It is padded to whole 16-byte words, so that a thread reads it in few
// instructions. Defined in front: REAL, STRENGTHS.
#pragma once

#include "shared/warp.cuh"

#define WORD (16 / (int)sizeof(REAL))
#define ROW ((3 + STRENGTHS + WORD - 1) / WORD * WORD)
struct alignas(16) Source {
  REAL v[ROW];
};
static_assert(sizeof(Source) == ROW * sizeof(REAL), "rows are packed");
