// Stable radix sort of 64-bit keys with 32-bit values, one digit of eight bits a pass: counts of each
// digit in each tile, their prefix sums (scan.cu), and the move.

#include "shared/warp.cuh"

#define DIGITS 256
#define THREADS 256
#define WARPS (THREADS / 32)
#define ITEMS 16
#define TILE (THREADS * ITEMS)

__device__ __forceinline__ u32 digit_of(u64 key, u32 shift) { return (u32)(key >> shift) & (DIGITS - 1); }

// 0, 1, 2, …: the values of a sort that is to yield the order.
extern "C" __global__ void iota(u32* out, u64 n) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = (u32)i;
}

// counts[digit · tiles + tile].
extern "C" __global__ void __launch_bounds__(THREADS) sort_count(const u64* keys, u64 n, u32 shift, u32* counts) {
  __shared__ u32 count[DIGITS];
  count[threadIdx.x] = 0;
  __syncthreads();
  const u64 start = (u64)blockIdx.x * TILE;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const u64 at = start + i * THREADS + threadIdx.x;
    if (at < n) atomicAdd(&count[digit_of(keys[at], shift)], 1u);
  }
  __syncthreads();
  counts[threadIdx.x * gridDim.x + blockIdx.x] = count[threadIdx.x];
}

// A warp owns consecutive items, 32 at a time, so that ranks follow the order of the items.
extern "C" __global__ void __launch_bounds__(THREADS)
    sort_scatter(const u64* keys, const u32* values, u64 n, u32 shift, const u64* starts, u64* keys_out,
                 u32* values_out) {
  // Items of each digit in each warp, then before each warp; the last digit is of items beyond the end.
  __shared__ u32 count[WARPS][DIGITS + 1];
  const u32 warp = threadIdx.x / 32;
  for (u32 i = threadIdx.x; i < WARPS * (DIGITS + 1); i += THREADS) (&count[0][0])[i] = 0;
  __syncthreads();

  const u64 start = (u64)blockIdx.x * TILE + warp * (32 * ITEMS) + lane_id();
  u64 key[ITEMS];
  u32 rank[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const u64 at = start + i * 32;
    key[i] = at < n ? keys[at] : 0;
    const u32 digit = at < n ? digit_of(key[i], shift) : DIGITS;
    const u32 same = __match_any_sync(~0u, digit);
    const u32 before = count[warp][digit];
    __syncwarp();
    if ((same & lanes_below()) == 0) count[warp][digit] = before + __popc(same);
    __syncwarp();
    rank[i] = before + __popc(same & lanes_below());
  }
  __syncthreads();
  u32 sum = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) {
    const u32 mine = count[w][threadIdx.x];
    count[w][threadIdx.x] = sum;
    sum += mine;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const u64 at = start + i * 32;
    if (at >= n) continue;
    const u32 digit = digit_of(key[i], shift);
    const u64 to = starts[(u64)digit * gridDim.x + blockIdx.x] + count[warp][digit] + rank[i];
    keys_out[to] = key[i];
    values_out[to] = values[at];
  }
}
