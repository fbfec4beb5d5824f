// Shares of a tree, for devices that hold the same tree and share out its targets: src/shares.rs.
//
// cuts[k]: the first source and the first target of share k in tree order, for k = 0 … shares. No cut lies in a leaf.

#include "shared/boxes.cuh"

__device__ __forceinline__ u64 length_of(const BoxRows& rows, u32 b) { return rows.starts[b + 1] - rows.starts[b]; }

// Sum over the row of box b of the numbers of sources. One warp; the last lane has it.
__device__ __forceinline__ u64 sources_of_row(const Boxes& t, const BoxRows& rows, u32 b) {
  u64 sum = 0;
  for (u64 e = rows.starts[b] + lane_id(); e < rows.starts[b + 1]; e += 32) sum += sources_in(t, rows.data[e]);
  return warp_inclusive(sum);
}

// Adds the work at each box with targets to the bin of its first target; bin i has the targets i · m / bins … of all m.
// Prices: of a pair of U, of an edge of U, of an edge of V, of a point of an edge of W or X, of a leaf, of a target. One
// warp per box.
extern "C" __global__ void weigh(const Boxes* boxes, u32 count, BoxRows u, BoxRows v, BoxRows w, BoxRows x, u32 pair,
                                 u32 near_edge, u32 far_edge, u32 point, u32 leaf, u32 target, u32 bins, u64* work) {
  const Boxes t = *boxes;
  const u32 b = warp_index();
  if (b >= count) return;
  const u64 targets = targets_in(t, b);
  if (targets == 0) return;
  const u64 near = sources_of_row(t, u, b), far = sources_of_row(t, x, b);
  if (lane_id() != 31) return;
  u64 sum = pair * targets * near + near_edge * length_of(u, b) + far_edge * length_of(v, b);
  sum += point * (targets * length_of(w, b) + far);
  if (is_leaf(t, b)) sum += leaf + target * targets;
  const u64 all = targets_in(t, 0);
  if (sum > 0) atomicAdd(work + (u64)t.target_range[b].x * bins / all, sum);
}

// For each of some targets in tree order: the first target at or behind it with which a leaf begins (must be the largest
// number before); then the first source of this leaf.
extern "C" __global__ void first_targets(const Boxes* boxes, u32 count, const u32* wanted, u32 shares, u32* first) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count || !is_leaf(t, b) || targets_in(t, b) == 0) return;
  const u32 at = t.target_range[b].x;
  for (u32 k = 0; k < shares; ++k)
    if (wanted[k] <= at) atomicMin(first + k, at);
}
extern "C" __global__ void first_sources(const Boxes* boxes, u32 count, const u32* first_target, u32 shares, u32* first) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count || !is_leaf(t, b) || targets_in(t, b) == 0) return;
  for (u32 k = 0; k < shares; ++k)
    if (first_target[k] == t.target_range[b].x) first[k] = t.source_range[b].x;
}

// The kinds of boxes: with targets of a share; with sources of one share alone; with sources of several shares.
#define TARGETS 0
#define SOURCES 1
#define SEVERAL 2

__device__ __forceinline__ bool is_of(const Boxes& t, u32 b, u32 kind, const uint2* cuts, u32 shares, u32 share) {
  const uint2 targets = t.target_range[b], sources = t.source_range[b];
  if (kind == TARGETS)
    return targets.x < targets.y && targets.x < cuts[share + 1].y && targets.y > cuts[share].y;
  if (sources.x >= sources.y) return false;
  if (kind == SOURCES) return sources.x >= cuts[share].x && sources.y <= cuts[share + 1].x;
  for (u32 k = 1; k < shares; ++k)
    if (sources.x < cuts[k].x && cuts[k].x < sources.y) return true;
  return false;
}

// The rows of boxes of one kind: lengths, with one thread per box; then the rows, with one warp per box.
extern "C" __global__ void kept_count(const Boxes* boxes, u32 count, u32 kind, const uint2* cuts, u32 shares, u32 share,
                                      const u64* starts, u32* lengths) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b < count) lengths[b] = is_of(t, b, kind, cuts, shares, share) ? (u32)(starts[b + 1] - starts[b]) : 0;
}
extern "C" __global__ void kept_fill(const Boxes* boxes, u32 count, BoxRows from, const u64* starts, u32* data) {
  const u32 b = warp_index();
  if (b >= count) return;
  for (u64 e = lane_id(); e < starts[b + 1] - starts[b]; e += 32) data[starts[b] + e] = from.data[from.starts[b] + e];
}

// Flags of the boxes that the rows of boxes of one kind name. One warp per box.
extern "C" __global__ void mark(const Boxes* boxes, u32 count, u32 kind, const uint2* cuts, u32 shares, u32 share,
                                BoxRows rows, u32* flags) {
  const Boxes t = *boxes;
  const u32 b = warp_index();
  if (b >= count || !is_of(t, b, kind, cuts, shares, share)) return;
  for (u64 e = rows.starts[b] + lane_id(); e < rows.starts[b + 1]; e += 32) flags[rows.data[e]] = 1;
}

// The flagged boxes of one kind, as flags.
extern "C" __global__ void marked(const Boxes* boxes, u32 count, u32 kind, const uint2* cuts, u32 shares, u32 share,
                                  const u32* flags, u32* both) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b < count) both[b] = flags[b] && is_of(t, b, kind, cuts, shares, share);
}

// The sources of the marked boxes: numbers of each box, with one thread per box; then a list of positions, with one warp
// per box. starts: prefix sums of the numbers.
extern "C" __global__ void marked_sources(const Boxes* boxes, u32 count, u32 kind, const uint2* cuts, u32 shares, u32 share,
                                          const u32* flags, u32* numbers) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b < count) numbers[b] = flags[b] && is_of(t, b, kind, cuts, shares, share) ? sources_in(t, b) : 0;
}
extern "C" __global__ void list_sources(const Boxes* boxes, u32 count, const u64* starts, u32* list) {
  const Boxes t = *boxes;
  const u32 b = warp_index();
  if (b >= count) return;
  for (u32 i = lane_id(); i < starts[b + 1] - starts[b]; i += 32) list[starts[b] + i] = t.source_range[b].x + i;
}

// The targets of a share in each box; none in boxes without any.
extern "C" __global__ void narrow(const Boxes* boxes, u32 count, u32 first, u32 end, uint2* range) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count) return;
  const uint2 all = t.target_range[b];
  range[b] = make_uint2(min(max(all.x, first), end), min(max(all.y, first), end));
}

// Keys of n points and what is sorted by them: of points of a share, their rows in the arrays of the callers, and their
// positions from `first` on; of rows of a caller, the shares of their places, and their numbers.
extern "C" __global__ void row_keys(const u32* rows, u32 n, u32 first, u64* keys, u32* positions) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  keys[i] = rows[i];
  positions[i] = first + i;
}
// `targets`: whether the points are targets, not sources.
extern "C" __global__ void share_keys(const u32* places, u32 n, const uint2* cuts, u32 shares, u32 targets, u64* keys,
                                      u32* numbers) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  u32 share = 0;
  for (u32 k = 1; k < shares; ++k) share += (targets ? cuts[k].y : cuts[k].x) <= places[i];
  keys[i] = share;
  numbers[i] = i;
}

// For each of some numbers: the position of the first of n sorted keys that is at least as large.
extern "C" __global__ void positions(const u64* keys, u64 n, const u32* numbers, u32 count, u64* at) {
  const u32 k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k < count) at[k] = first_at_least(keys, n, numbers[k]);
}
