// A tree of the points of several ranks, of which each rank knows all keys, but has its own points alone: src/joint.rs.

#include "shared/boxes.cuh"
#include "shared/warp.cuh"

// Keys per thread and per block.
#define EACH 8
#define TILE (256 * EACH)

// How many of the first `d` keys of a merged run are from `a`. Of equal keys, those of `a` come first.
__device__ __forceinline__ u64 from_first(const u64* a, u64 n, const u64* b, u64 m, u64 d) {
  u64 lo = d > m ? d - m : 0, hi = min(d, n);
  while (lo < hi) {
    const u64 middle = lo + (hi - lo) / 2;
    if (a[middle] <= b[d - 1 - middle])
      lo = middle + 1;
    else
      hi = middle;
  }
  return lo;
}

// For each tile of two runs, and for the end: how many keys of earlier tiles are from the first run. The runs are those of
// merge_runs.
extern "C" __global__ void merge_splits(const u64* keys, u64 first, u64 middle, u64 end, u64* splits) {
  const u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x, n = middle - first, m = end - middle;
  if (k * TILE < n + m + TILE) splits[k] = from_first(keys + first, n, keys + middle, m, min(k * TILE, n + m));
}

// Merges two sorted runs of keys, first … middle - 1 and middle … end - 1, into the same places of `merged`. Of equal keys,
// those of the first run come first. A block writes TILE keys, and each thread EACH of them.
extern "C" __global__ void __launch_bounds__(256)
    merge_runs(const u64* keys, u64 first, u64 middle, u64 end, const u64* splits, u64* merged) {
  __shared__ u64 held[TILE];
  const u64 from = (u64)blockIdx.x * TILE, to = min(from + TILE, end - first);
  const u64 begin = splits[blockIdx.x];
  const u32 of_a = splits[blockIdx.x + 1] - begin, count = to - from, of_b = count - of_a;
  const u64 *a = keys + first + begin, *b = keys + middle + (from - begin);
  for (u32 i = threadIdx.x; i < count; i += blockDim.x) held[i] = i < of_a ? a[i] : b[i - of_a];
  __syncthreads();
  const u64* const second = held + of_a;
  const u32 at = min(threadIdx.x * EACH, count);
  u32 i = from_first(held, of_a, second, of_b, at), j = at - i;
  u64 mine[EACH];
#pragma unroll
  for (u32 k = 0; k < EACH; ++k) {
    const bool takes = j >= of_b || (i < of_a && held[i] <= second[j]);
    mine[k] = at + k >= count ? 0 : takes ? held[i] : second[j];
    takes ? ++i : ++j;
  }
  __syncthreads();
#pragma unroll
  for (u32 k = 0; k < EACH; ++k)
    if (at + k < count) held[at + k] = mine[k];
  __syncthreads();
  for (u32 k = threadIdx.x; k < count; k += blockDim.x) merged[first + from + k] = held[k];
}

// *found = 1 if more than `length` of n sorted keys are equal.
extern "C" __global__ void long_run(const u64* keys, u64 n, u64 length, u32* found) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i + length < n && keys[i] == keys[i + length]) *found = 1;
}

// The places of the keys of rank `me` in the sorted keys of all ranks, where equal keys have the order of ranks. Rank r has
// the sorted keys starts[r] … starts[r + 1] - 1 of `keys`. A block looks for the first and the last of TILE keys in the run
// of another rank, and then for all of its keys between these.
extern "C" __global__ void __launch_bounds__(256)
    own_places(const u64* keys, const u64* starts, u32 ranks, u32 me, u32* places) {
  __shared__ u64 window[2];
  const u64* const mine = keys + starts[me];
  const u64 n = starts[me + 1] - starts[me], from = (u64)blockIdx.x * TILE, end = min(from + TILE, n);
  u64 before[EACH] = {};
  for (u32 r = 0; r < ranks; ++r) {
    if (r == me) continue;
    const u64* const run = keys + starts[r];
    const u64 count = starts[r + 1] - starts[r];
    __syncthreads();
    if (threadIdx.x % 32 == 0 && threadIdx.x < 64)
      window[threadIdx.x / 32] = first_at_least(run, count, mine[threadIdx.x ? end - 1 : from] + (r < me));
    __syncthreads();
#pragma unroll
    for (u32 k = 0; k < EACH; ++k) {
      const u64 i = from + k * blockDim.x + threadIdx.x;
      if (i < end) before[k] += window[0] + first_at_least(run + window[0], window[1] - window[0], mine[i] + (r < me));
    }
  }
#pragma unroll
  for (u32 k = 0; k < EACH; ++k) {
    const u64 i = from + k * blockDim.x + threadIdx.x;
    if (i < end) places[i] = (u32)(i + before[k]);
  }
}

// to[i] = from[i]
extern "C" __global__ void widen(const u32* from, u64 n, u64* to) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] = from[i];
}
extern "C" __global__ void narrow(const u64* from, u64 n, u32* to) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] = (u32)from[i];
}

// Sums of the blocks over their points of r^(2·half), where r is the distance of a point from the centre of its leaf in sides
// of the leaf. The point of a row has a place in the tree, from which its leaf follows.
extern "C" __global__ void __launch_bounds__(256)
    own_corner_sums(const Boxes* boxes, const double* points, const u32* rows, const u32* places, u64 n, u32 of_sources,
                    u32 half, double* sums) {
  const Boxes t = *boxes;
  __shared__ double of_warps[8];
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  double power = 0;
  if (i < n) {
    u32 b = 0;
    while (!is_leaf(t, b)) {
      b = t.child_start[b];
      while ((of_sources ? t.source_range : t.target_range)[b].y <= places[i]) ++b;
    }
    const Frame f = frame_of(t, b);
    double square = 0;
    for (u32 a = 0; a < 3; ++a) {
      const double d = (points[3ull * rows[i] + a] - f.center[a]) / f.side;
      square += d * d;
    }
    power = 1;
    for (u32 k = 0; k < half; ++k) power *= square;
  }
  power = warp_inclusive(power);
  if (lane_id() == 31) of_warps[threadIdx.x / 32] = power;
  __syncthreads();
  if (threadIdx.x == 0) {
    double sum = 0;
    for (u32 w = 0; w < blockDim.x / 32; ++w) sum += of_warps[w];
    sums[blockIdx.x] = sum;
  }
}
