// Splitting boxes level by level: which boxes are split, into which octants, and their children. Twin of `split` in
// fmm-tree/src/build.rs.

#include "shared/boxes.cuh"
#include "shared/look_back.cuh"

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

// The boxes of a level. level_start[l]: the first box of level l; the entry behind the last level is the number of boxes.
// Levels are split without the host, so a kernel reads which boxes there are. A level that does not fit into `room` boxes
// counts as empty; the host makes room and continues there.
struct Level {
  u32 first, count;
};
__device__ __forceinline__ Level boxes_of(u32 level, u64 room, const u64* level_start) {
  const u64 first = level_start[level], end = level_start[level + 1];
  return {(u32)first, end > room ? 0u : (u32)(end - first)};
}

// The fate of each box of a level. A box with more than ncrit points is split. If all its points have the same key, it is
// split if there are more than ncrit distinct positions; the whole block counts them. `found` has room for an index of
// each source and each target.
extern "C" __global__ void __launch_bounds__(256)
    split_fates(u32 level, u64 room, const u64* level_start, u32 ncrit, u32 kinds, const uint2* source_range,
                const uint2* target_range, const u64* source_keys, const u64* target_keys, const double* source_xyz,
                u64 sources, const double* target_xyz, u64 targets, u32* found, u32* fate) {
  __shared__ u32 undecided[256], number;
  const Level all = boxes_of(level, room, level_start);
  for (u32 start = blockIdx.x * blockDim.x; start < all.count; start += gridDim.x * blockDim.x) {
    __syncthreads();
    if (threadIdx.x == 0) number = 0;
    __syncthreads();
    const u32 i = start + threadIdx.x, b = all.first + i;
    if (i < all.count) {
      u32 mine = KEEP;
      for (u32 kind = 0; kind < kinds; ++kind) {
        const uint2 range = (kind == 0 ? source_range : target_range)[b];
        if (length(range) <= ncrit) continue;
        const u64* keys = kind == 0 ? source_keys : target_keys;
        if (keys[range.x] != keys[range.y - 1])
          mine = SPLIT;
        else if (mine == KEEP)
          mine = UNDECIDED;
      }
      fate[b] = mine;
      if (mine == UNDECIDED) undecided[atomicAdd(&number, 1u)] = b;
    }
    __syncthreads();
    for (u32 k = 0; k < number; ++k) {
      const u32 box = undecided[k];
      bool split = false;
      for (u32 kind = 0; kind < kinds && !split; ++kind) {
        const uint2 range = (kind == 0 ? source_range : target_range)[box];
        if (length(range) <= ncrit) continue;
        split = kind == 0 ? exceeds(range, source_xyz, sources, ncrit, found)
                          : exceeds(range, target_xyz, targets, ncrit, found + sources);
      }
      __syncthreads();
      if (threadIdx.x == 0) fate[box] = split ? SPLIT : KEEP;
    }
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

// Writes the children of the boxes of a level, and the entry of `level_start` behind them. A tile has 32 boxes, with eight
// lanes per box. states[tile] and *next_tile must be zeros before.
extern "C" __global__ void __launch_bounds__(256)
    split_level(u32 level, u64 room, u64* level_start, volatile u64* states, u64* next_tile, u32 kinds,
                const u64* source_keys, const u64* target_keys, const u32* fate, u32* parent, u32* child_start,
                u8* child_count, u8* octants, u8* levels, u64* anchor, uint2* source_range, uint2* target_range) {
  __shared__ u32 own_tile;
  __shared__ u64 children_before;
  const Level all = boxes_of(level, room, level_start);
  const u32 tiles = (all.count + 31) / 32, octant = threadIdx.x % 8;
  const u64 children = level_start[level + 1];
  if (tiles == 0 && blockIdx.x == 0 && threadIdx.x == 0) level_start[level + 2] = children;
  for (;;) {
    __syncthreads();
    if (threadIdx.x == 0) own_tile = (u32)atomicAdd(next_tile, 1ull);
    __syncthreads();
    const u32 tile = own_tile;
    if (tile >= tiles) return;
    const u32 i = tile * 32 + threadIdx.x / 8, b = all.first + i;
    const bool split = i < all.count && fate[b] == SPLIT;
    uint2 s = {}, t = {};
    if (split) {
      const u32 mask = 0xffu << (lane_id() & ~7u);
      s = source_range[b];
      s.y = end_of(s, source_keys, level, octant);
      const u32 source_begin = __shfl_up_sync(mask, s.y, 1, 8);
      if (octant > 0) s.x = source_begin;
      // Targets that are the sources have the same ranges.
      if (kinds > 1) {
        t = target_range[b];
        t.y = end_of(t, target_keys, level, octant);
        const u32 target_begin = __shfl_up_sync(mask, t.y, 1, 8);
        if (octant > 0) t.x = target_begin;
      } else {
        t = s;
      }
    }
    const bool some = split && (s.x < s.y || t.x < t.y);
    const u32 mine = __ballot_sync(~0u, some) >> (lane_id() & ~7u) & 0xff;
    u32 in_tile;
    const u32 at = block_exclusive((u32)some, in_tile);
    if (threadIdx.x < 32) {
      const u64 before = count_before(tile, in_tile, states);
      if (threadIdx.x == 0) {
        if (tile == tiles - 1) level_start[level + 2] = children + before + in_tile;
        children_before = before;
      }
    }
    __syncthreads();
    const u64 c = children + children_before + at;
    if (split && octant == 0 && c < room) {
      child_start[b] = (u32)c;
      child_count[b] = __popc(mine);
    }
    if (!some || c >= room) continue;
    parent[c] = b;
    child_start[c] = 0;
    child_count[c] = 0;
    octants[c] = octant;
    levels[c] = level + 1;
    for (int a = 0; a < 3; ++a) anchor[3 * c + a] = 2 * anchor[3ull * b + a] + (octant >> a & 1);
    source_range[c] = s;
    target_range[c] = t;
  }
}

// Sums over the leaves of all levels up to `level`: n(n - 1) for sources, n(n - 1) for targets, and the number of leaves.
// `sums` must be zeros before. (Integer sums do not depend on the order.)
extern "C" __global__ void __launch_bounds__(256)
    leaf_sums(u32 level, u64 room, const u64* level_start, const u8* child_count, const uint2* source_range,
              const uint2* target_range, u64* sums) {
  const u64 count = min(level_start[level + 1], room), step = (u64)gridDim.x * blockDim.x;
  u64 mine[3] = {0, 0, 0};
  for (u64 b = (u64)blockIdx.x * blockDim.x + threadIdx.x; b < count; b += step) {
    if (child_count[b] > 0) continue;
    const u64 n = length(source_range[b]), m = length(target_range[b]);
    mine[0] += n * (n - (n > 0));
    mine[1] += m * (m - (m > 0));
    ++mine[2];
  }
  for (int i = 0; i < 3; ++i) {
    u64 total;
    block_exclusive(mine[i], total);
    if (threadIdx.x == 0 && total > 0) atomicAdd(sums + i, total);
  }
}

// Number of points of each split box; 0 for other boxes.
extern "C" __global__ void deep_count(u32 first, u32 count, const uint2* range, const u32* fate, u32* counts) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) counts[i] = fate[first + i] == SPLIT ? length(range[first + i]) : 0;
}

// New keys for the points of split boxes, relative to the box, with the box and the position of each point.
// starts[i]: where the points of box i go. One block per box. root: the corner of the root, and the side of the boxes
// of this level.
extern "C" __global__ void deep_keys(u32 first, u32 count, const uint2* range, const u32* fate, const u64* starts,
                                     const u64* anchor, const double* root, const double* xyz, u64 n, u64* keys,
                                     u64* boxes, u32* positions) {
  for (u32 i = blockIdx.x; i < count; i += gridDim.x) {
    if (fate[first + i] != SPLIT) continue;
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
