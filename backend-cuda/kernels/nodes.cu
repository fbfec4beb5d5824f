// Sources as one far field of several has them (fmm_traits::attributes): the strengths of each times its weight in this
// far field, and the attributes of the node.

#include "shared/warp.cuh"

// A row of `factors`: attribute, value, power, number of zeros, scale, zeros.
#define HEAD 5

// Strengths of n sources, `width` numbers each, the first `linear` of which are strengths and the others attributes.
// `count` factors, one for each attribute of the grid of nodes. One thread per source.
extern "C" __global__ void take_part(const double* strengths, u64 n, u32 width, u32 linear, const double* factors,
                                     u32 count, u32 row, double* to) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const double* own = strengths + i * width;
  to += i * width;
  for (u32 c = linear; c < width; ++c) to[c] = own[c];
  double weight = 1;
  for (u32 f = 0; f < count; ++f) {
    const double* factor = factors + f * row;
    const u32 attribute = linear + (u32)factor[0];
    const int power = (int)factor[2];
    double t = own[attribute];
    for (int k = 1; k < (power < 0 ? -power : power); ++k) t *= own[attribute];
    if (power < 0) t = 1 / t;
    for (u32 k = 0; k < (u32)factor[3]; ++k) weight *= t - factor[HEAD + k];
    weight *= factor[4];
    to[attribute] = factor[1];
  }
  for (u32 c = 0; c < linear; ++c) to[c] = weight * own[c];
}
