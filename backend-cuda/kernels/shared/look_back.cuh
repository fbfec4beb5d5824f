// Sums over the tiles of one pass, without a pass of their own (decoupled look-back: Merrill & Garland 2016).
#pragma once

#include "shared/warp.cuh"

// What is known of the count of a tile: nothing (0); the count of the tile; or the count of the tile and of all tiles
// before it.
#define OF_TILE (1ull << 62)
#define UP_TO_TILE (2ull << 62)
#define COUNT_OF (OF_TILE - 1)

// The count of all tiles before this one. The lanes of a warp ask 32 tiles at once.
__device__ __forceinline__ u64 before_tile(u32 tile, volatile u64* states) {
  u64 before = 0;
  for (u32 end = tile; end > 0;) {
    const u64 said = lane_id() < end ? states[end - 1 - lane_id()] : UP_TO_TILE;
    const u32 whole = __ballot_sync(~0u, said >= UP_TO_TILE), unknown = __ballot_sync(~0u, said == 0);
    // The nearest tile that knows of all tiles before it; the lanes up to that tile.
    const u32 wanted = whole == 0 ? ~0u : (whole ^ (whole - 1));
    if (unknown & wanted) continue;
    const u64 sum = warp_inclusive(wanted >> lane_id() & 1 ? said & COUNT_OF : 0);
    before += __shfl_sync(~0u, sum, 31);
    if (whole != 0) break;
    end -= 32;
  }
  return before;
}

// Makes the count of this tile known. Returns the count of all tiles before it. All lanes of one warp call it. Tiles must
// be taken in order, so that every tile before this one has begun.
__device__ __forceinline__ u64 count_before(u32 tile, u64 count, volatile u64* states) {
  if (lane_id() == 0) states[tile] = (tile == 0 ? UP_TO_TILE : OF_TILE) | count;
  const u64 before = before_tile(tile, states);
  if (lane_id() == 0 && tile > 0) states[tile] = UP_TO_TILE | (before + count);
  return before;
}
