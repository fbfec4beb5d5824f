// Complex numbers. In front: REAL.
#pragma once

#include "shared/warp.cuh"

struct alignas(2 * sizeof(REAL)) Complex {
  REAL re, im;
};

// Spectra lie in chunks of 1 << shift families: plane after plane (frequencies of one strength or value after those of another), a
// plane the families of the chunk with eight children each. So those of one family, which transforms want, are not too far from each
// other, nor are those of families beside each other at one frequency, which the product wants. A chunk has room for 2^shift
// families in `planes` planes; row of family f in plane 0 (no memory holds 2^32 rows):
__device__ __forceinline__ u32 family_row(u32 f, u32 planes, u32 shift) { return f + (f >> shift) * ((planes - 1) << shift); }
