// Splitting the boxes of one level: which boxes are split, into which octants, and their children. Twin of `split` in
// fmm-tree/src/build.rs.

#include "shared/boxes.cuh"

// The fate of a box: kept as a leaf, split, or not yet decided.
#define KEEP 0
#define SPLIT 1
#define UNDECIDED 2


// Box 0, with all points. One thread.
extern "C" __global__ void root_box(u32 sources, u32 targets, u32* parent, u32* child_start, u8* child_count,
                                    u8* octant, u8* level, u64* anchor, uint2* source_range, uint2* target_range) {
  parent[0] = ~0u;
  child_start[0] = 0;
  child_count[0] = octant[0] = level[0] = 0;
  for (int a = 0; a < 3; ++a) anchor[a] = 0;
  source_range[0] = make_uint2(0, sources);
  target_range[0] = make_uint2(0, targets);
}

// Splits boxes with more than ncrit points. If all points of a box have the same key, the decision depends on the
// number of distinct positions, and the box is listed as undecided (in any order).
extern "C" __global__ void split_count(u32 first, u32 count, u32 ncrit, u32 kinds, const uint2* source_range,
                                       const uint2* target_range, const u64* source_keys, const u64* target_keys,
                                       u32* fate, u32* undecided, u32* undecided_count) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  u32 mine = KEEP;
  for (u32 kind = 0; kind < kinds; ++kind) {
    const uint2 range = (kind == 0 ? source_range : target_range)[first + i];
    if (length(range) <= ncrit) continue;
    const u64* keys = kind == 0 ? source_keys : target_keys;
    if (keys[range.x] != keys[range.y - 1])
      mine = SPLIT;
    else if (mine == KEEP)
      mine = UNDECIDED;
  }
  fate[i] = mine;
  if (mine == UNDECIDED) undecided[atomicAdd(undecided_count, 1u)] = i;
}

__device__ bool same_place(const double* xyz, u64 n, u32 i, u32 j) {
  return xyz[i] == xyz[j] && xyz[n + i] == xyz[n + j] && xyz[2 * n + i] == xyz[2 * n + j];
}

// Whether more than ncrit distinct positions lie in `range`. All threads of the block work on it. found[range.x], …:
// one point for each distinct position found so far.
__device__ bool exceeds(uint2 range, const double* xyz, u64 n, u32 ncrit, u32* found) {
  __shared__ u32 total;
  __syncthreads();
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  for (u32 start = range.x; start < range.y; start += blockDim.x) {
    const u32 known = total, i = start + threadIdx.x;
    bool fresh = i < range.y;
    for (u32 k = 0; fresh && k < known; ++k) fresh = !same_place(xyz, n, i, found[range.x + k]);
    for (u32 j = start; fresh && j < i; ++j) fresh = !same_place(xyz, n, i, j);
    __syncthreads();
    if (fresh) found[range.x + atomicAdd(&total, 1u)] = i;
    __syncthreads();
    if (total > ncrit) return true;
  }
  return false;
}

// Decides the undecided boxes, one block per box. `found` has room for an index of each source and each target.
extern "C" __global__ void __launch_bounds__(256)
    split_coincident(u32 first, u32 ncrit, u32 kinds, const uint2* source_range, const uint2* target_range,
                     const double* source_xyz, u64 sources, const double* target_xyz, u64 targets, const u32* undecided,
                     const u32* undecided_count, u32* found, u32* fate) {
  for (u32 at = blockIdx.x; at < *undecided_count; at += gridDim.x) {
    const u32 i = undecided[at];
    bool split = false;
    for (u32 kind = 0; kind < kinds && !split; ++kind) {
      const uint2 range = (kind == 0 ? source_range : target_range)[first + i];
      if (length(range) <= ncrit) continue;
      split = kind == 0 ? exceeds(range, source_xyz, sources, ncrit, found)
                        : exceeds(range, target_xyz, targets, ncrit, found + sources);
    }
    __syncthreads();
    if (threadIdx.x == 0) fate[i] = split ? SPLIT : KEEP;
  }
}

// First position in `range` whose octant is above `octant`.
__device__ u32 end_of(uint2 range, const u64* keys, u32 level, u32 octant) {
  u32 lo = range.x, hi = range.y;
  while (lo < hi) {
    const u32 middle = lo + (hi - lo) / 2;
    if (octant_of(keys[middle], level) <= octant)
      lo = middle + 1;
    else
      hi = middle;
  }
  return lo;
}

// For each split box: the ends of its octants, and the number of octants that are not empty. Eight lanes per box.
extern "C" __global__ void split_octants(u32 first, u32 count, u32 level, const uint2* source_range,
                                         const uint2* target_range, const u64* source_keys, const u64* target_keys,
                                         u32 kinds, const u32* fate, u32* source_ends, u32* target_ends, u32* children) {
  const u32 i = (blockIdx.x * blockDim.x + threadIdx.x) / 8, octant = threadIdx.x % 8;
  const bool split = i < count && fate[i] == SPLIT;
  bool some = false;
  if (split) {
    for (u32 kind = 0; kind < 2; ++kind) {
      const uint2 range = (kind == 0 ? source_range : target_range)[first + i];
      u32* ends = kind == 0 ? source_ends : target_ends;
      // Targets that are the sources have the same ends.
      const u32 end = kind < kinds ? end_of(range, kind == 0 ? source_keys : target_keys, level, octant)
                                   : source_ends[8ull * i + octant];
      ends[8ull * i + octant] = end;
      const u32 mask = 0xffu << (lane_id() & ~7u);
      const u32 begin = __shfl_up_sync(mask, end, 1, 8);
      some = some || (octant == 0 ? range.x : begin) < end;
    }
  }
  const u32 all = __ballot_sync(~0u, some);
  if (i < count && octant == 0) children[i] = __popc(all >> (lane_id() & ~7u) & 0xff);
}

// Writes the children. starts[i]: the number of children of the boxes of this level before box i. Eight lanes per box.
extern "C" __global__ void split_fill(u32 first, u32 count, u32 level, const u32* fate, const u32* source_ends,
                                      const u32* target_ends, const u64* starts, u32* parent, u32* child_start,
                                      u8* child_count, u8* octants, u8* levels, u64* anchor, uint2* source_range,
                                      uint2* target_range) {
  const u32 i = (blockIdx.x * blockDim.x + threadIdx.x) / 8, octant = threadIdx.x % 8;
  const bool split = i < count && fate[i] == SPLIT;
  const u32 b = first + i;
  uint2 s = {}, t = {};
  if (split) {
    const u64 at = 8ull * i + octant;
    s = make_uint2(octant == 0 ? source_range[b].x : source_ends[at - 1], source_ends[at]);
    t = make_uint2(octant == 0 ? target_range[b].x : target_ends[at - 1], target_ends[at]);
  }
  const bool some = split && (s.x < s.y || t.x < t.y);
  const u32 mask = __ballot_sync(~0u, some) >> (lane_id() & ~7u) & 0xff;
  if (!split) return;
  const u32 begin = first + count + (u32)starts[i];
  if (octant == 0) {
    child_start[b] = begin;
    child_count[b] = __popc(mask);
  }
  if (!some) return;
  const u32 c = begin + __popc(mask & ((1u << octant) - 1));
  parent[c] = b;
  child_start[c] = 0;
  child_count[c] = 0;
  octants[c] = octant;
  levels[c] = level + 1;
  for (int a = 0; a < 3; ++a) anchor[3ull * c + a] = 2 * anchor[3ull * b + a] + (octant >> a & 1);
  source_range[c] = s;
  target_range[c] = t;
}

// Sums over the leaves: n(n - 1) for sources, n(n - 1) for targets, and the number of leaves. `sums` must be zeros
// before. (Integer sums do not depend on the order.)
extern "C" __global__ void __launch_bounds__(256) leaf_sums(u32 count, const u8* child_count, const uint2* source_range,
                                                            const uint2* target_range, u64* sums) {
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  const bool leaf = b < count && child_count[b] == 0;
  const u64 n = leaf ? length(source_range[b]) : 0, m = leaf ? length(target_range[b]) : 0;
  const u64 mine[3] = {n * (n - (n > 0)), m * (m - (m > 0)), leaf};
  for (int i = 0; i < 3; ++i) {
    u64 total;
    block_exclusive(mine[i], total);
    if (threadIdx.x == 0) atomicAdd(sums + i, total);
  }
}

// Number of points of each split box; 0 for other boxes.
extern "C" __global__ void deep_count(u32 first, u32 count, const uint2* range, const u32* fate, u32* counts) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) counts[i] = fate[i] == SPLIT ? length(range[first + i]) : 0;
}

// New keys for the points of split boxes, relative to the box, with the box and the position of each point.
// starts[i]: where the points of box i go. One block per box. root: the corner of the root, and the side of the boxes
// of this level.
extern "C" __global__ void deep_keys(u32 first, u32 count, const uint2* range, const u32* fate, const u64* starts,
                                     const u64* anchor, const double* root, const double* xyz, u64 n, u64* keys,
                                     u64* boxes, u32* positions) {
  for (u32 i = blockIdx.x; i < count; i += gridDim.x) {
    if (fate[i] != SPLIT) continue;
    const uint2 mine = range[first + i];
    double corner[3];
    for (int a = 0; a < 3; ++a)
      corner[a] = __dadd_rn(root[a], __dmul_rn((double)anchor[3ull * (first + i) + a], root[3]));
    const double density = (double)(1ull << KEY_LEVELS) / root[3];
    for (u32 at = mine.x + threadIdx.x; at < mine.y; at += blockDim.x) {
      const double p[3] = {xyz[at], xyz[n + at], xyz[2 * n + at]};
      const u64 to = starts[i] + (at - mine.x);
      keys[to] = key_of(p, corner, density);
      boxes[to] = i;
      positions[to] = at;
    }
  }
}

// out[j] = boxes[order[j]]: the keys of the second sort.
extern "C" __global__ void deep_boxes(const u64* boxes, const u32* order, u64 n, u64* out) {
  const u64 j = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (j < n) out[j] = boxes[order[j]];
}

// Point order[j] of the unsorted points goes to the place of point j of the unsorted points.
extern "C" __global__ void deep_map(const u64* keys, const u32* positions, const u32* order, u64 n, u32* from,
                                    u64* keys_out) {
  const u64 j = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (j >= n) return;
  from[positions[j]] = positions[order[j]];
  keys_out[positions[j]] = keys[order[j]];
}

// Permutes the points: point from[i] goes to place i.
extern "C" __global__ void deep_move(const double* xyz, const u32* order, const u32* from, u64 n, double* xyz_out,
                                     u32* order_out) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  for (int a = 0; a < 3; ++a) xyz_out[a * n + i] = xyz[a * n + from[i]];
  order_out[i] = order[from[i]];
}
