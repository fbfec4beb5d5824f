// The V list as a table of slots. A slot is a position of a source box relative to the parent of the target box.
#pragma once

#include "shared/warp.cuh"

// Slots along one axis. On an axis where the target is the lower half of its parent, target minus source is -3 … 2;
// where it is the upper half, -2 … 3.
#define SIDE 6
#define SLOTS (SIDE * SIDE * SIDE)
// Entry of an empty slot. Other entries are the number of the source box plus 1.
#define NOBODY 0

// The group to which a tile belongs. Each group is cut into tiles of at most `edge` items, and tiles are numbered
// through all groups. On return, `tile` is the number within its group.
__device__ __forceinline__ u32 group_of(const u64* starts, u32 edge, u32& tile) {
  for (u32 group = 0;; ++group) {
    const u32 tiles = (u32)((starts[group + 1] - starts[group] + edge - 1) / edge);
    if (tile < tiles) return group;
    tile -= tiles;
  }
}

// Lists in `used` the slots with a source for any of the items first … end of `table`; used[SLOTS] is their number. All
// threads of the block call it (a barrier inside); the block has whole warps.
__device__ __forceinline__ void list_slots(const u32* table, u32 items, u32 first, u32 end, u32 (&used)[SLOTS + 1]) {
  const u32 warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll 6
  for (u32 slot = warp; slot < SLOTS; slot += warps) {
    const u32* at = table + (u64)slot * items;
    u32 somebody = 0;
    for (u32 i = first + lane_id(); i < end; i += 32) somebody |= at[i];
    somebody = __any_sync(~0u, somebody != NOBODY);
    if (lane_id() == 0) used[slot] = somebody;
  }
  __syncthreads();
  if (warp == 0) {
    u32 count = 0;
    for (u32 base = 0; base < SLOTS; base += 32) {
      const u32 slot = base + lane_id();
      const bool mine = slot < SLOTS && used[slot];
      const u32 all = __ballot_sync(~0u, mine);
      if (mine) used[count + __popc(all & lanes_below())] = slot;
      count += __popc(all);
      __syncwarp();
    }
    if (lane_id() == 0) used[SLOTS] = count;
  }
  __syncthreads();
}

// What a block of M2L sums: the items first … end − 1 of a group, over the slots used[begin] … used[stop − 1].
struct Work {
  u32 group, first, end, begin, stop;
};

// The work of this block, for tiles of at most `edge` items. Blocks along x share the items, blocks along z the slots. Fills
// `used` as list_slots does, and is called as that is.
__device__ __forceinline__ Work work_of_block(const u64* starts, u32 edge, const u32* table, u32 items, u32 (&used)[SLOTS + 1]) {
  Work w;
  u32 tile = blockIdx.x;
  w.group = group_of(starts, edge, tile);
  w.first = (u32)starts[w.group] + tile * edge;
  w.end = min(w.first + edge, (u32)starts[w.group + 1]);
  list_slots(table, items, w.first, w.end, used);
  w.begin = used[SLOTS] * blockIdx.z / gridDim.z;
  w.stop = used[SLOTS] * (blockIdx.z + 1) / gridDim.z;
  return w;
}
