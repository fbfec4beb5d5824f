// Exclusive prefix sums of counts, in 64 bits. Rows of lists are made in three steps: count, prefix sum, fill.

#include "shared/warp.cuh"

#define ITEMS 8

// The sum of the counts of each block.
extern "C" __global__ void scan_blocks(const u32* counts, u64 n, u64* sums) {
  const u64 first = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * ITEMS;
  u64 mine = 0, total;
  for (int i = 0; i < ITEMS; ++i)
    if (first + i < n) mine += counts[first + i];
  block_exclusive(mine, total);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

// Replaces the sum of each block by the sum of all blocks before it. One block of threads.
extern "C" __global__ void scan_sums(u64* sums, u64 n) {
  u64 before = 0;
  for (u64 start = 0; start < n; start += blockDim.x) {
    const u64 i = start + threadIdx.x;
    const u64 mine = i < n ? sums[i] : 0;
    u64 total;
    const u64 exclusive = block_exclusive(mine, total);
    if (i < n) sums[i] = before + exclusive;
    before += total;
  }
}

// starts[i] = base + counts[0] + … + counts[i - 1], for i = 0 … n.
extern "C" __global__ void scan_finish(const u32* counts, u64 n, const u64* sums, u64 base, u64* starts) {
  const u64 first = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * ITEMS;
  u64 mine = 0, total;
  for (int i = 0; i < ITEMS; ++i)
    if (first + i < n) mine += counts[first + i];
  u64 at = base + sums[blockIdx.x] + block_exclusive(mine, total);
  for (int i = 0; i < ITEMS; ++i) {
    if (first + i > n) break;
    starts[first + i] = at;
    if (first + i < n) at += counts[first + i];
  }
}
