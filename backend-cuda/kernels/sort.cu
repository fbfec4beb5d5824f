// Stable radix sort of 64-bit keys with 32-bit values, one digit of eight bits per pass. One reading of the keys
// counts the digits of all passes. A pass then reads and writes the keys once: each tile learns from the tiles before
// it where its digits begin (decoupled look-back: Merrill & Garland 2016; Adinets & Merrill 2022). `sort_runs` can
// afterwards sort runs of keys that agree in all digits sorted by.

#include "shared/look_back.cuh"

#define DIGITS 256
#define THREADS 256
#define WARPS (THREADS / 32)
#define ITEMS 16
#define TILE (THREADS * ITEMS)
#define PASSES 8

__device__ __forceinline__ u32 digit_of(u64 key, u32 shift) { return (u32)(key >> shift) & (DIGITS - 1); }

// The lanes with the same digit as this lane, as bits.
__device__ __forceinline__ u32 lanes_with(u32 d) {
  u32 same = ~0u;
#pragma unroll
  for (int bit = 0; bit < 9; ++bit) {
    const bool one = d >> bit & 1;
    const u32 vote = __ballot_sync(~0u, one);
    same &= one ? vote : ~vote;
  }
  return same;
}

// 0, 1, 2, …
extern "C" __global__ void iota(u32* out, u64 n) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = (u32)i;
}

// counts[pass · DIGITS + digit]: number of keys with this digit, digits from bit `shift` on. `counts` must be zeros
// before.
extern "C" __global__ void __launch_bounds__(THREADS)
    sort_count(const u64* keys, u64 n, u32 shift, u32 passes, u64* counts) {
  __shared__ u32 count[PASSES][DIGITS];
  for (u32 p = 0; p < passes; ++p) count[p][threadIdx.x] = 0;
  __syncthreads();
  for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < n; i += (u64)gridDim.x * THREADS) {
    const u64 key = keys[i] >> shift;
    for (u32 p = 0; p < passes; ++p) atomicAdd(&count[p][digit_of(key, 8 * p)], 1u);
  }
  __syncthreads();
  for (u32 p = 0; p < passes; ++p) {
    const u32 mine = count[p][threadIdx.x];
    if (mine > 0) atomicAdd(&counts[p * DIGITS + threadIdx.x], (u64)mine);
  }
}

// Replaces the count of each digit by the sum of the counts of smaller digits. One block per pass.
extern "C" __global__ void __launch_bounds__(DIGITS) sort_starts(u64* counts) {
  u64 total;
  u64* mine = counts + blockIdx.x * DIGITS + threadIdx.x;
  const u64 before = block_exclusive(*mine, total);
  *mine = before;
}

// Tiles that each digit asks at once for their counts.
#define ASKED 8

// One pass. starts: the starts of the digits of this pass. states[tile · DIGITS + digit], as in look_back.cuh, and the
// number of the next tile behind them must be zeros before; the same numbers of `next_states` become zeros. Without
// `values`, the values are the positions of the keys. A warp has consecutive items, 32 at a time, so that ranks follow
// the order of the items.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    sort_pass(const u64* keys, const u32* values, u64 n, u32 shift, const u64* starts, volatile u64* states,
              u64* next_states, u64* keys_out, u32* values_out) {
  // Number of items with each digit: first in each warp, then in all warps before it. The last digit is for items
  // beyond the end.
  __shared__ u32 count[WARPS][DIGITS + 1];
  __shared__ u64 staged[TILE];
  // local: where each digit begins in the tile. offset: what to add to a place in the tile to get the final place.
  __shared__ u32 local[DIGITS], offset[DIGITS];
  __shared__ u32 own_tile;
  const u32 warp = threadIdx.x / 32, digit = threadIdx.x;
  if (threadIdx.x == 0) own_tile = atomicAdd((u32*)(states + (u64)gridDim.x * DIGITS), 1u);
  for (u32 i = threadIdx.x; i < WARPS * (DIGITS + 1); i += THREADS) (&count[0][0])[i] = 0;
  __syncthreads();

  const u32 tile = own_tile;
  next_states[(u64)tile * DIGITS + digit] = 0;
  if (tile == 0 && digit == 0) next_states[(u64)gridDim.x * DIGITS] = 0;
  const u64 begin = (u64)tile * TILE;
  const u32 items = (u32)min((u64)TILE, n - begin), first = warp * (32 * ITEMS) + lane_id();
  u64 key[ITEMS];
  u32 rank[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) key[i] = first + i * 32 < items ? keys[begin + first + i * 32] : 0;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const u32 d = first + i * 32 < items ? digit_of(key[i], shift) : DIGITS;
    const u32 same = lanes_with(d);
    const u32 before = count[warp][d];
    __syncwarp();
    if ((same & lanes_below()) == 0) count[warp][d] = before + __popc(same);
    __syncwarp();
    rank[i] = before + __popc(same & lanes_below());
  }
  __syncthreads();
  u32 sum = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) {
    const u32 mine = count[w][digit];
    count[w][digit] = sum;
    sum += mine;
  }
  volatile u64* state = states + (u64)tile * DIGITS + digit;
  *state = (tile == 0 ? UP_TO_TILE : OF_TILE) | sum;
  u32 all;
  const u32 own = block_exclusive(sum, all);
  local[digit] = own;
  __syncthreads();
  // Sort within the tile first, so that neighbouring threads write neighbouring places.
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (first + i * 32 >= items) continue;
    const u32 d = digit_of(key[i], shift);
    rank[i] += local[d] + count[warp][d];
    staged[rank[i]] = key[i];
  }
  u32 before = 0;
  for (u32 t = tile; t > 0;) {
    u64 said[ASKED];
#pragma unroll
    for (u32 i = 0; i < ASKED; ++i) said[i] = i < t ? states[(u64)(t - 1 - i) * DIGITS + digit] : UP_TO_TILE;
#pragma unroll
    for (u32 i = 0; i < ASKED; ++i) {
      if (t == 0 || said[i] == 0) break;
      before += (u32)(said[i] & COUNT_OF);
      t = said[i] >= UP_TO_TILE ? 0 : t - 1;
    }
  }
  if (tile > 0) *state = UP_TO_TILE | (before + sum);
  offset[digit] = (u32)starts[digit] + before - own;
  __syncthreads();
  u32 to[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const u32 at = threadIdx.x + i * THREADS;
    if (at >= items) continue;
    const u64 k = staged[at];
    to[i] = offset[digit_of(k, shift)] + at;
    keys_out[to[i]] = k;
  }
  __syncthreads();
  u32* staged_values = (u32*)staged;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const u64 at = begin + first + i * 32;
    if (first + i * 32 < items) staged_values[rank[i]] = values ? values[at] : (u32)at;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const u32 at = threadIdx.x + i * THREADS;
    if (at < items) values_out[to[i]] = staged_values[at];
  }
}

// Keys in the sample.
#define SAMPLE 4096
// Size of the hash table for the sample.
#define ROOM (2 * SAMPLE)

// *agree: number of sampled keys that agree with another sampled key in the bits from `shift` on. One block.
extern "C" __global__ void __launch_bounds__(1024) sort_sample(const u64* keys, u64 n, u32 shift, u32* agree) {
  __shared__ u32 seen[ROOM], count;
  for (u32 i = threadIdx.x; i < ROOM; i += blockDim.x) seen[i] = 0;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  for (u32 i = threadIdx.x; i < SAMPLE; i += blockDim.x) {
    // Multiplicative hashing: the lower bits stand for the key, the upper bits give its place in the table.
    const u64 mixed = ((keys[i * n / SAMPLE] >> shift) + 1) * 0x9e3779b97f4a7c15ull;
    const u32 mine = (u32)mixed | 1;
    for (u32 at = (u32)(mixed >> 40) % ROOM;; at = (at + 1) % ROOM) {
      const u32 there = atomicCAS(&seen[at], 0u, mine);
      if (there == mine) atomicAdd(&count, 1u);
      if (there == mine || there == 0) break;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) *agree = count;
}

// Longest run that a thread sorts.
#define LONGEST 64

// Sorts each run of keys that agree in the bits from `shift` on, stably and in place. One thread per run. A run
// longer than LONGEST is not sorted and sets `left`.
extern "C" __global__ void sort_runs(u64* keys, u32* values, u64 n, u32 shift, u32* left) {
  const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (first + 1 >= n) return;
  // Sorting a run does not change the bits from `shift` on, so other threads may sort their runs at the same time.
  const u64 run = keys[first] >> shift;
  if (keys[first + 1] >> shift != run || (first > 0 && keys[first - 1] >> shift == run)) return;
  u64 end = first + 2;
  while (end < n && end - first <= LONGEST && keys[end] >> shift == run) ++end;
  if (end - first > LONGEST) {
    *left = 1;
    return;
  }
  for (u64 i = first + 1; i < end; ++i) {
    const u64 key = keys[i];
    const u32 value = values[i];
    u64 at = i;
    for (; at > first && keys[at - 1] > key; --at) keys[at] = keys[at - 1], values[at] = values[at - 1];
    if (at < i) keys[at] = key, values[at] = value;
  }
}
