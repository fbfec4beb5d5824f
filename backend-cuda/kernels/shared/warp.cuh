// Sums over a warp and over a block.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;

__device__ __forceinline__ u32 lane_id() { return threadIdx.x & 31; }
// The number of this warp among those of all blocks.
__device__ __forceinline__ u32 warp_index() { return blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; }
// The lanes below this lane, as bits.
__device__ __forceinline__ u32 lanes_below() { return (1u << lane_id()) - 1; }

// Sum over the lanes up to and including this one.
template <class T>
__device__ __forceinline__ T warp_inclusive(T x) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const T below = __shfl_up_sync(~0u, x, d);
    if (lane_id() >= d) x += below;
  }
  return x;
}

// The largest number of the warp.
__device__ __forceinline__ float warp_largest(float x) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
  return x;
}

// Sum over the threads before this thread. `total` becomes the sum over all threads. The block has whole warps, at
// most 32.
template <class T>
__device__ T block_exclusive(T x, T& total) {
  __shared__ T sums[33];
  const u32 warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const T up_to = warp_inclusive(x);
  __syncthreads();
  if (lane_id() == 31) sums[warp] = up_to;
  __syncthreads();
  if (warp == 0) {
    const T mine = lane_id() < warps ? sums[lane_id()] : T(0);
    const T all = warp_inclusive(mine);
    sums[lane_id()] = all - mine;
    if (lane_id() == 31) sums[32] = all;
  }
  __syncthreads();
  total = sums[32];
  return sums[warp] + up_to - x;
}
