// How near the nearest pairs of points are: what a sample of sources sees. Twin of fmm-tree/src/closeness.rs.

#include "shared/boxes.cuh"

// Of each of `count` sources, a warp each: the sum of r⁻⁴ over the others of its leaf in units of its side (none if it has more than
// `most`), level and number of sources of the leaf. side: of the root.
extern "C" __global__ void closeness(const Boxes* boxes, const u32* sample, u32 count, const double* xyz, u64 n,
                                     double side, u32 most, double* pairs, uint2* leaves) {
  const Boxes t = *boxes;
  const u32 k = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (k >= count) return;
  const u32 i = sample[k];
  u32 b = 0;
  while (!is_leaf(t, b)) {
    bool inside = false;
    if (lane_id() < t.child_count[b]) {
      const uint2 range = t.source_range[t.child_start[b] + lane_id()];
      inside = range.x <= i && i < range.y;
    }
    b = t.child_start[b] + __ffs(__ballot_sync(~0u, inside)) - 1;
  }
  const uint2 range = t.source_range[b];
  const double scale = ldexp(1 / side, t.level[b]);
  double sum = 0;
  if (length(range) <= most)
    for (u32 j = range.x + lane_id(); j < range.y; j += 32) {
      double square = 0;
      for (int a = 0; a < 3; ++a) {
        const double r = (xyz[a * n + i] - xyz[a * n + j]) * scale;
        square += r * r;
      }
      sum += square > 0 ? 1 / (square * square) : 0;
    }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (lane_id() == 0) pairs[k] = sum, leaves[k] = make_uint2(t.level[b], length(range));
}
