// Complex numbers, and the layout of spectra. Defined in front: REAL.
#pragma once

#include "shared/warp.cuh"

struct alignas(2 * sizeof(REAL)) Complex {
  REAL re, im;
};

// Layout of spectra: chunks of 2^shift families. A chunk is a sequence of planes, one plane per frequency and
// component (a strength or a value). A plane holds the families of the chunk, with all children each. Transforms read
// all planes of one family; the product reads many families of one plane. In chunks, both kinds of access stay close
// together in memory.
//
// family_row is the row of family f in plane 0. (No memory holds 2^32 rows.)
__device__ __forceinline__ u32 family_row(u32 f, u32 planes, u32 shift) { return f + (f >> shift) * ((planes - 1) << shift); }
