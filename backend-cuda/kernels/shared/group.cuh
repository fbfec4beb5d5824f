// Groups of targets of a leaf, one group per warp at a time (task.cuh). SPLIT threads share a target, each with a part of the
// sources. A thread has up to MOST targets. Defined in front: REAL, VALUES, SPLIT, MOST, TILE_BYTES, and `Source`.
#pragma once

#include "shared/real.cuh"
#include "shared/task.cuh"

#define THREADS 32
// The grain: targets of a warp if each thread has one. The work on a leaf grows in steps of one grain.
#define LANES (THREADS / SPLIT)
// Sources in shared memory at once, with SOURCE_BYTES each.
#ifndef SOURCE_BYTES
#define SOURCE_BYTES sizeof(Source)
#endif
#define TILE (TILE_BYTES / (int)(SOURCE_BYTES))

// A number that is known at compile time.
template <int N>
struct Number {
  static constexpr int value = N;
};
// Calls work(Number<n>()) for a run-time number n from 1 to N.
template <int N, class Work>
__device__ __forceinline__ void with_number(u32 n, Work work) {
  if constexpr (N > 1) {
    if (n < N) return with_number<N - 1>(n, work);
  }
  work(Number<N>());
}

// What a task sums: targets of a leaf, and the edges begin … end - 1. The sums of target i begin at sums[VALUES · i].
struct Work {
  u32 leaf;
  uint2 targets;
  u64 begin, end;
  double* sums;
};
// starts: the first edge of each box. `values` are those of the targets from `held` on, `partial` are partial sums.
template <class Tree>
__device__ __forceinline__ Work work_of(const Tree& t, const Task& task, const u64* starts, u32 held, double* partial,
                                        double* values) {
  const u32 b = task.leaf;
  const uint2 range = targets_of(t, b), targets = targets_of_group(range, groups_of(length(range), LANES, MOST), task.group);
  const u64 edges = starts[b + 1] - starts[b];
  return {b, targets, starts[b] + edges * task.part / task.parts, starts[b] + edges * (task.part + 1) / task.parts,
          task.row == NONE ? values - (u64)VALUES * held : partial + VALUES * ((long long)task.row - targets.x)};
}

// Calls work(Number<targets per thread>(), first target) for a group of targets.
template <class Work>
__device__ __forceinline__ void with_group(uint2 targets, Work work) {
  with_number<MOST>((length(targets) + LANES - 1) / LANES, [&](auto each) { work(each, targets.x); });
}

// Calls use(j, read(j)) for each index j below `count`; neighbouring threads have neighbouring indices. A thread makes N
// reads before the first use, so that it waits for memory once. All threads call `use` equally often: some with an index
// of `count` or more and what was read for the last, which `use` must ignore.
template <int N, class Read, class Use>
__device__ __forceinline__ void read_ahead(u32 count, Read read, Use use) {
  for (u32 base = 0; base < count; base += N * THREADS) {
    decltype(read(0u)) found[N];
#pragma unroll
    for (int h = 0; h < N; ++h) found[h] = read(min(base + h * THREADS + threadIdx.x, count - 1));
#pragma unroll
    for (int h = 0; h < N; ++h) use(base + h * THREADS + threadIdx.x, found[h]);
  }
}

// Calls work(number of sources in the tile) for the sources of the edges e … end - 1, tile by tile. A tile may hold
// sources of several boxes, so that all tiles but the last are full. sources(e): the positions of the sources of an
// edge. put(first position, count, filled): copies `count` sources into the tile behind the `filled` that are there.
template <class Sources, class Put, class Work>
__device__ __forceinline__ void for_tiles(u64 e, u64 end, Sources sources, Put put, Work work) {
  // The sources of 32 edges, one per lane; those of this edge that are left are begin … stop - 1.
  uint2 ranges = {};
  u32 next = 32, begin = 0, stop = 0;
  for (bool more = true; more;) {
    u32 filled = 0;
    __syncwarp();
    while (filled < TILE) {
      if (begin == stop) {
        if (e == end) {
          more = false;
          break;
        }
        if (next == 32) {
          ranges = e + lane_id() < end ? sources(e + lane_id()) : make_uint2(0, 0);
          next = 0;
        }
        begin = __shfl_sync(~0u, ranges.x, next), stop = __shfl_sync(~0u, ranges.y, next);
        ++next, ++e;
      }
      const u32 count = min(stop - begin, (u32)TILE - filled);
      put(begin, count, filled);
      filled += count;
      begin += count;
    }
    __syncwarp();
    work(filled);
  }
}

// Adds up the partial sums of the threads that share targets. Returns whether all sums of the warp are finite.
template <class T, int EACH>
__device__ __forceinline__ bool join(T (&part)[EACH][VALUES]) {
  bool good = true;
#pragma unroll
  for (int n = 0; n < EACH; ++n)
#pragma unroll
    for (int k = 0; k < VALUES; ++k) {
#pragma unroll
      for (int d = LANES; d < THREADS; d *= 2) part[n][k] += __shfl_xor_sync(~0u, part[n][k], d);
      good = good && finite(part[n][k]);
    }
  return __all_sync(~0u, good);
}

// Threads that share targets divide the sums among themselves: the thread of slice s keeps target n · SPLIT + s as its
// n-th. KEPT is the number of targets kept per thread.
#define KEPT(each) (((each) + SPLIT - 1) / SPLIT)
// Calls keep(n, k, value) for value k of each target that this thread keeps.
template <class T, int EACH, class Keep>
__device__ __forceinline__ void for_kept(const T (&part)[EACH][VALUES], u32 slice, Keep keep) {
#pragma unroll
  for (int n = 0; n < KEPT(EACH); ++n)
#pragma unroll
    for (int k = 0; k < VALUES; ++k) {
      T mine = part[n * SPLIT][k];
#pragma unroll
      for (int s = 1; s < SPLIT && n * SPLIT + s < EACH; ++s) mine = slice == s ? part[n * SPLIT + s][k] : mine;
      keep(n, k, (double)mine);
    }
}

// Adds the kept sums, times `factors` (null: 1), to the values of the targets below `end`.
template <int EACH>
__device__ __forceinline__ void add_kept(const double (&sum)[KEPT(EACH)][VALUES], u32 first, u32 end,
                                         const double* factors, double* values) {
  const u32 lane = threadIdx.x % LANES, slice = threadIdx.x / LANES;
#pragma unroll
  for (int n = 0; n < KEPT(EACH); ++n) {
    const u32 which = n * SPLIT + slice, i = first + which * LANES + lane;
    if (which >= EACH || i >= end) continue;
#pragma unroll
    for (int k = 0; k < VALUES; ++k) values[(u64)i * VALUES + k] += sum[n][k] * (factors ? factors[k] : 1.0);
  }
}
