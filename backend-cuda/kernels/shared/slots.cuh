// The V list by slots: the offsets that an octant can have, and the table of who is at which.
#pragma once

#include "shared/offset.cuh"
#include "shared/warp.cuh"

// Offsets of one octant: target minus source is in -3 … 2 on an axis where the target is the lower half of
// its parent, in -2 … 3 where it is the upper half.
#define SIDE 6
#define SLOTS (SIDE * SIDE * SIDE)
// In the table, which holds the number of a box plus 1.
#define NOBODY 0

// The group of tile number `tile` of all groups, of at most `edge` items each; `tile` becomes its number in the group.
__device__ __forceinline__ u32 group_of(const u64* starts, u32 edge, u32& tile) {
  for (u32 group = 0;; ++group) {
    const u32 tiles = (u32)((starts[group + 1] - starts[group] + edge - 1) / edge);
    if (tile < tiles) return group;
    tile -= tiles;
  }
}

// Number of the offset of a slot.
__device__ __forceinline__ u32 offset_of(u32 slot, u32 octant) {
  int d[3] = {(int)(slot / (SIDE * SIDE)), (int)(slot / SIDE % SIDE), (int)(slot % SIDE)};
  for (int x = 0; x < 3; ++x) d[x] += (int)(octant >> x & 1) - 3;
  return offset_index(d);
}

// The slots with a source for any of the items first … end of `table` go to `used`, their number behind the last place. By a
// block of whole warps, which waits for all of its threads.
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
