// Exclusive prefix sums of counts, in 64 bits. Rows of lists are made in three steps: count, prefix sum, fill.

#include "shared/warp.cuh"

#define ITEMS 8

// Counts, and their prefix sums: starts[i] = counts[0] + … + counts[i - 1], for i = 0 … n.
struct Column {
  const u32* counts;
  u64* starts;
};
static_assert(sizeof(Column) == 16, "the host sends two addresses");

// Up to eight columns of n counts. The second index of a block is the number of its column.
#define COLUMNS Column c0, Column c1, Column c2, Column c3, Column c4, Column c5, Column c6, Column c7
#define OWN_COLUMN                                                     \
  const Column all_columns[8] = {c0, c1, c2, c3, c4, c5, c6, c7};      \
  const Column mine = all_columns[blockIdx.y]

// The sum of `ITEMS` counts from `first` on.
__device__ __forceinline__ u64 sum_of(const u32* counts, u64 n, u64 first) {
  u64 sum = 0;
  for (int i = 0; i < ITEMS; ++i)
    if (first + i < n) sum += counts[first + i];
  return sum;
}

// sums[column · blocks + block]: the sum of the counts of each block.
extern "C" __global__ void scan_blocks(COLUMNS, u64 n, u64* sums) {
  OWN_COLUMN;
  const u64 first = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * ITEMS;
  u64 total;
  block_exclusive(sum_of(mine.counts, n, first), total);
  if (threadIdx.x == 0) sums[(u64)blockIdx.y * gridDim.x + blockIdx.x] = total;
}

// The prefix sums, from the sums of the blocks.
extern "C" __global__ void scan_finish(COLUMNS, u64 n, const u64* sums) {
  OWN_COLUMN;
  const u64* of_blocks = sums + (u64)blockIdx.y * gridDim.x;
  u64 part = 0, before, total;
  for (u32 i = threadIdx.x; i < blockIdx.x; i += blockDim.x) part += of_blocks[i];
  block_exclusive(part, before);
  const u64 first = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * ITEMS;
  u64 at = before + block_exclusive(sum_of(mine.counts, n, first), total);
  for (int i = 0; i < ITEMS; ++i) {
    if (first + i > n) break;
    mine.starts[first + i] = at;
    if (first + i < n) at += mine.counts[first + i];
  }
}

// The numbers of the items with a flag; starts: the prefix sums of the flags.
extern "C" __global__ void list_flagged(u32 count, const u64* starts, u32* items) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count && starts[i] < starts[i + 1]) items[starts[i]] = i;
}

// out[i]: the number at address at[i].
extern "C" __global__ void fetch(const u64* const* at, u32 count, u64* out) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = *at[i];
}
