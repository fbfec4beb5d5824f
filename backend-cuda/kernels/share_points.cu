// The points that a share needs, on their way from their callers: src/shares/points.rs.
//
// Leaves with points are numbered in the order of their points. readers[k]: bit r is set if share r needs the points of
// leaf k.

#include "shared/kept.cuh"
#include "shared/warp.cuh"

__device__ __forceinline__ uint2 points_of(const Boxes& t, u32 b, u32 of_sources) {
  return of_sources ? t.source_range[b] : t.target_range[b];
}

// Whether each box is a leaf with points.
extern "C" __global__ void leaf_flags(const Boxes* boxes, u32 count, u32 of_sources, u32* flags) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b < count) flags[b] = is_leaf(t, b) && length(points_of(t, b, of_sources)) > 0;
}

// The first point of each of n leaves.
extern "C" __global__ void leaf_starts(const Boxes* boxes, const u32* leaves, u32 n, u32 of_sources, u64* starts) {
  const Boxes t = *boxes;
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) starts[i] = points_of(t, leaves[i], of_sources).x;
}

// The readers of n leaves: the share that has the leaf and, if `near` is not null, those that read the leaf or a box above it
// by `near`. kept: the number of points of leaves that share `me` reads; 0 for other leaves. ends[k]: where the points of
// share k end.
extern "C" __global__ void leaf_readers(const Boxes* boxes, const u32* leaves, u32 n, u32 of_sources, const u32* near,
                                        const u32* ends, u32 me, u32* readers, u32* kept) {
  const Boxes t = *boxes;
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  u32 b = leaves[i], share = 0;
  const uint2 points = points_of(t, b, of_sources);
  while (ends[share] <= points.x) ++share;
  u32 all = 1u << share;
  if (near)
    for (;; b = t.parent[b]) {
      all |= near[b];
      if (b == 0) break;
    }
  readers[i] = all;
  kept[i] = all >> me & 1 ? length(points) : 0;
}

// The number of kept points before each of n places at which leaves begin, or behind the last point.
extern "C" __global__ void kept_before_places(Kept kept, u64 leaves, const u32* places, u32 n, u64* before) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) before[i] = kept_before(kept, leaves, places[i]);
}

// The number of the leaf that has `place`. The places of a block ascend from `first` to `last`. All threads of the block call it.
__device__ u64 leaf_of(u32 place, bool valid, u32 first, u32 last, const Kept& kept, u64 leaves) {
  __shared__ u64 window[2];
  __syncthreads();
  if (threadIdx.x % 32 == 0 && threadIdx.x < 64)
    window[threadIdx.x / 32] = first_at_least(kept.starts, leaves, (u64)(threadIdx.x ? last : first) + 1);
  __syncthreads();
  if (!valid) return 0;
  return window[0] + first_at_least(kept.starts + window[0], window[1] - window[0], (u64)place + 1) - 1;
}

// numbers[r · blocks + k]: how many threads of block k have bit r.
__device__ void count_bits(u32 mine, u32 shares, u32* numbers) {
  for (u32 r = 0; r < shares; ++r) {
    u32 number;
    block_exclusive(mine >> r & 1, number);
    if (threadIdx.x == 0) numbers[(u64)r * gridDim.x + blockIdx.x] = number;
  }
}

// For each own point, with these places, the shares that need it, as bits; and the numbers of points that blocks of them send
// to each share.
extern "C" __global__ void __launch_bounds__(256)
    own_readers(const u32* places, u64 n, Kept kept, u64 leaves, const u32* readers, u32 shares, u32* own,
                u32* numbers) {
  const u64 from = (u64)blockIdx.x * blockDim.x, i = from + threadIdx.x;
  const u32 place = i < n ? places[i] : 0;
  const u64 leaf = leaf_of(place, i < n, places[from], places[min(from + blockDim.x, n) - 1], kept, leaves);
  const u32 mine = i < n ? readers[leaf] : 0;
  if (i < n) own[i] = mine;
  count_bits(mine, shares, numbers);
}

// The same for the rows of a caller and the one share that has each of them. ends[r]: where the points of share r end.
extern "C" __global__ void __launch_bounds__(256)
    row_shares(const u32* places, u64 n, const u32* ends, u32 shares, u32* own, u32* numbers) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  u32 mine = 0;
  if (i < n) {
    while (ends[mine] <= places[i]) ++mine;
    own[i] = mine = 1u << mine;
  }
  count_bits(mine, shares, numbers);
}

// The items 0 … n - 1 with bit r of `own`, in order, for each share r in turn. to: prefix sums of `numbers`. One thread per item.
extern "C" __global__ void __launch_bounds__(256)
    items_of_shares(const u32* own, u64 n, u32 shares, const u64* to, u32* items) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  const u32 mine = i < n ? own[i] : 0;
  for (u32 r = 0; r < shares; ++r) {
    u32 total;
    const u32 goes = mine >> r & 1, at = block_exclusive(goes, total);
    if (goes) items[to[(u64)r * gridDim.x + blockIdx.x] + at] = (u32)i;
  }
}

// to[i] = from[items[i]] + added
extern "C" __global__ void take_and_add(const u32* from, const u32* items, u64 n, u32 added, u32* to) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] = from[items ? items[i] : i] + added;
}

// A message with n points: the coordinates of all, then their places, then their rows.
__device__ __forceinline__ u32* places_of(double* message, u64 n) { return (u32*)(message + 3 * n); }

extern "C" __global__ void pack_points(const u32* items, u64 n, const u32* rows, const u32* places, const double* points,
                                       double* message) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const u32 item = items[i], row = rows[item];
  for (u32 a = 0; a < 3; ++a) message[3 * i + a] = points[3ull * row + a];
  places_of(message, n)[i] = places[item];
  places_of(message, n)[n + i] = row;
}

// The slot among the kept points of the point at `place`; 0 for a thread without a point. The places of a block ascend from
// `first` to `last`. All threads of the block call it.
__device__ __forceinline__ u64 slot_of(u32 place, bool valid, u32 first, u32 last, const Kept& kept, u64 leaves) {
  const u64 leaf = leaf_of(place, valid, first, last, kept, leaves);
  return valid ? kept.before[leaf] + (place - kept.starts[leaf]) : 0;
}

// Puts the points of a message to their slots among `all` points that this share keeps. The row of a point among those of all
// callers is first + its row.
extern "C" __global__ void __launch_bounds__(256)
    put_points(double* message, u64 n, Kept kept, u64 leaves, u32 first, u64 all, double* xyz, u32* order, u32* slots) {
  const u64 from = (u64)blockIdx.x * blockDim.x, i = from + threadIdx.x;
  const u32* const places = places_of(message, n);
  const u32 last = places[min(from + blockDim.x, n) - 1];
  const u64 slot = slot_of(i < n ? places[i] : 0, i < n, places[from], last, kept, leaves);
  if (i >= n) return;
  for (u32 a = 0; a < 3; ++a) xyz[a * all + slot] = message[3 * i + a];
  order[slot] = first + places[n + i];
  slots[i] = (u32)slot;
}

// The same for n own points, straight from the rows of the caller.
extern "C" __global__ void __launch_bounds__(256)
    keep_points(const u32* items, u64 n, const u32* rows, const u32* places, const double* points, Kept kept, u64 leaves,
                u32 first, u64 all, double* xyz, u32* order, u32* slots) {
  const u64 from = (u64)blockIdx.x * blockDim.x, i = from + threadIdx.x;
  const u32 item = items[min(i, n - 1)], last = places[items[min(from + blockDim.x, n) - 1]];
  const u64 slot = slot_of(places[item], i < n, places[items[from]], last, kept, leaves);
  if (i >= n) return;
  const u32 row = rows[item];
  for (u32 a = 0; a < 3; ++a) xyz[a * all + slot] = points[3ull * row + a];
  order[slot] = first + row;
  slots[i] = (u32)slot;
}

// places_of_rows[rows[i]] = places[i]
extern "C" __global__ void places_by_row(const u32* rows, const u32* places, u64 n, u32* places_of_rows) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) places_of_rows[rows[i]] = places[i];
}
