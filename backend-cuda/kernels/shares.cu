// Shares of a tree, for devices that hold the same tree and share out its targets: src/shares.rs.
//
// cuts[k]: the first source and the first target of share k in tree order, for k = 0 … shares. No cut lies in a leaf.

#include "shared/kept.cuh"

__device__ __forceinline__ u64 length_of(const BoxRows& rows, u32 b) { return rows.starts[b + 1] - rows.starts[b]; }

// Sum over the row of box b of the numbers of sources. One warp; the last lane has it.
__device__ __forceinline__ u64 sources_of_row(const Boxes& t, const BoxRows& rows, u32 b) {
  u64 sum = 0;
  for (u64 e = rows.starts[b] + lane_id(); e < rows.starts[b + 1]; e += 32) sum += sources_in(t, rows.data[e]);
  return warp_inclusive(sum);
}

// Adds the work at each box with targets to the bin of its first target; bin i has the targets i · m / bins … of all m.
// Prices: of a pair of U, of an edge of U, of an edge of V, of a point of an edge of W or X, of a leaf, of a target. Only
// boxes whose first target is one of first … end - 1 count. One warp per box.
extern "C" __global__ void weigh(const Boxes* boxes, u32 count, u32 first, u32 end, BoxRows u, BoxRows v, BoxRows w, BoxRows x, u32 pair,
                                 u32 near_edge, u32 far_edge, u32 point, u32 leaf, u32 target, u32 bins, u64* work) {
  const Boxes t = *boxes;
  const u32 b = warp_index();
  if (b >= count) return;
  const u64 targets = targets_in(t, b);
  if (targets == 0 || t.target_range[b].x < first || t.target_range[b].x >= end) return;
  const u64 near = sources_of_row(t, u, b), far = sources_of_row(t, x, b);
  if (lane_id() != 31) return;
  u64 sum = pair * targets * near + near_edge * length_of(u, b) + far_edge * length_of(v, b);
  sum += point * (targets * length_of(w, b) + far);
  if (is_leaf(t, b)) sum += leaf + target * targets;
  const u64 all = targets_in(t, 0);
  if (sum > 0) atomicAdd(work + (u64)t.target_range[b].x * bins / all, sum);
}

// Moves each of some wanted cuts, targets in tree order, to the next target with which a leaf begins. `first` must be filled
// with the largest u32 before.
extern "C" __global__ void first_targets(const Boxes* boxes, u32 count, const u32* wanted, u32 cuts, u32* first) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count || !is_leaf(t, b) || targets_in(t, b) == 0) return;
  const u32 at = t.target_range[b].x;
  for (u32 k = 0; k < cuts; ++k)
    if (wanted[k] <= at) atomicMin(first + k, at);
}

// The first source of the leaf that begins with each of some targets.
extern "C" __global__ void first_sources(const Boxes* boxes, u32 count, const u32* first_target, u32 cuts, u32* first) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count || !is_leaf(t, b) || targets_in(t, b) == 0) return;
  for (u32 k = 0; k < cuts; ++k)
    if (first_target[k] == t.target_range[b].x) first[k] = t.source_range[b].x;
}

// The kinds of boxes: with targets of a share; with sources of one share alone; with sources of several shares.
#define TARGETS 0
#define SOURCES 1
#define SEVERAL 2

__device__ __forceinline__ bool is_of(const Boxes& t, u32 b, u32 kind, const uint2* cuts, u32 shares, u32 share) {
  const uint2 targets = t.target_range[b], sources = t.source_range[b];
  if (kind == TARGETS)
    return max(targets.x, cuts[share].y) < min(targets.y, cuts[share + 1].y);
  if (sources.x >= sources.y) return false;
  if (kind == SOURCES) return sources.x >= cuts[share].x && sources.y <= cuts[share + 1].x;
  for (u32 k = 1; k < shares; ++k)
    if (sources.x < cuts[k].x && cuts[k].x < sources.y) return true;
  return false;
}

// The boxes of a share are those of the three kinds, those that it reads by `far` or `near`, the root, and all boxes
// above these. own_flags flags all but the last, with_ancestors flags the last too.
extern "C" __global__ void own_flags(const Boxes* boxes, u32 count, const uint2* cuts, u32 shares, u32 share, const u32* far,
                                     const u32* near, u32* flags) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count) return;
  bool own = b == 0 || ((far[b] | near[b]) >> share & 1);
  for (u32 kind = TARGETS; kind <= SEVERAL; ++kind) own = own || is_of(t, b, kind, cuts, shares, share);
  flags[b] = own;
}
// A thread ends at a box that is flagged: the thread that flagged that box, or its own thread, goes on from there.
extern "C" __global__ void with_ancestors(const Boxes* boxes, u32 count, u32* flags) {
  const Boxes t = *boxes;
  u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count || !flags[b]) return;
  while (b != 0 && !flags[b = t.parent[b]]) flags[b] = 1;
}

// A range of points of a box, cut to first … end - 1, as a range of the kept points.
__device__ __forceinline__ uint2 kept_range(const Kept& kept, u64 leaves, uint2 range, u32 first, u32 end) {
  range = make_uint2(min(max(range.x, first), end), min(max(range.y, first), end));
  return make_uint2((u32)kept_before(kept, leaves, range.x), (u32)kept_before(kept, leaves, range.y));
}

// The boxes `list` of a share, numbered anew: `numbers` has the new number of each old one. Children that are not kept
// leave no gap, because all boxes stay in order. Of the targets, those from `first` to `end` are kept. all_sources: the number
// of sources of each box, kept or not.
extern "C" __global__ void own_boxes(const Boxes* boxes, const u8* octants, const u32* list, const u64* numbers, u32 n,
                                     u32 first, u32 end, Kept sources, u64 source_leaves, Kept targets,
                                     u64 target_leaves, u32* parent, u32* child_start, u8* child_count, u8* octant,
                                     u8* level, u64* anchor, uint2* source_range, uint2* target_range,
                                     u64* all_sources) {
  const Boxes t = *boxes;
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const u32 b = list[i], child = t.child_start[b], children = t.child_count[b];
  parent[i] = b == 0 ? t.parent[b] : (u32)numbers[t.parent[b]];
  child_start[i] = children == 0 ? child : (u32)numbers[child];
  child_count[i] = children == 0 ? 0 : (u8)(numbers[child + children] - numbers[child]);
  octant[i] = octants[b];
  level[i] = t.level[b];
  for (int a = 0; a < 3; ++a) anchor[3ull * i + a] = t.anchor[3ull * b + a];
  all_sources[i] = sources_in(t, b);
  source_range[i] = kept_range(sources, source_leaves, t.source_range[b], 0, ~0u);
  target_range[i] = kept_range(targets, target_leaves, t.target_range[b], first, end);
}

// The rows of those of the boxes `list` that are of one kind: lengths, with one thread per box; then the rows, with new
// numbers and with one warp per box.
extern "C" __global__ void kept_count(const Boxes* boxes, const u32* list, u32 n, u32 kind, const uint2* cuts, u32 shares,
                                      u32 share, const u64* starts, u32* lengths) {
  const Boxes t = *boxes;
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const u32 b = list[i];
  lengths[i] = is_of(t, b, kind, cuts, shares, share) ? (u32)(starts[b + 1] - starts[b]) : 0;
}
extern "C" __global__ void kept_fill(const u32* list, u32 n, const u64* numbers, BoxRows from, const u64* starts, u32* data) {
  const u32 i = warp_index();
  if (i >= n) return;
  const u64 row = from.starts[list[i]];
  for (u64 e = lane_id(); e < starts[i + 1] - starts[i]; e += 32) data[starts[i] + e] = (u32)numbers[from.data[row + e]];
}

// The new numbers of n boxes.
extern "C" __global__ void renumber(const u32* old, u64 n, const u64* numbers, u32* now) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) now[i] = (u32)numbers[old[i]];
}

// Marks the boxes that shares read: a box of one kind of share k sets bit k of `flags` for each box in its row. One warp per
// box.
extern "C" __global__ void mark(const Boxes* boxes, u32 count, u32 kind, const uint2* cuts, u32 shares, BoxRows rows,
                                u32* flags) {
  const Boxes t = *boxes;
  const u32 b = warp_index();
  if (b >= count || rows.starts[b] == rows.starts[b + 1]) return;
  u32 readers = 0;
  for (u32 k = 0; k < shares; ++k) readers |= (u32)is_of(t, b, kind, cuts, shares, k) << k;
  for (u64 e = rows.starts[b] + lane_id(); e < rows.starts[b + 1]; e += 32) {
    u32* const flag = flags + rows.data[e];
    if ((*flag & readers) != readers) atomicOr(flag, readers);
  }
}

// flags[b]: the bits that any of some arrays of n flags has for b.
extern "C" __global__ void join_flags(const u32* all, u32 n, u32 arrays, u32* flags) {
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= n) return;
  u32 bits = 0;
  for (u32 k = 0; k < arrays; ++k) bits |= all[(u64)k * n + b];
  flags[b] = bits;
}

// Flags of the boxes of one kind that a reader reads.
extern "C" __global__ void marked(const Boxes* boxes, u32 count, u32 kind, const uint2* cuts, u32 shares, u32 share,
                                  const u32* readers, u32 reader, u32* flags) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count) return;
  flags[b] = (readers[b] >> reader & 1) && is_of(t, b, kind, cuts, shares, share);
}

// Adds to `sums` the lengths of the rows of some lists, for boxes whose first target is one of first … end - 1: those of V, X,
// L2L, L2P, W and U, and the pairs of points of U. One warp per box.
extern "C" __global__ void part_counts(const Boxes* boxes, u32 count, u32 first, u32 end, BoxRows v, BoxRows x, BoxRows l2l,
                                       BoxRows l2p, BoxRows w, BoxRows u, u64* sums) {
  const Boxes t = *boxes;
  const u32 b = warp_index();
  if (b >= count || targets_in(t, b) == 0 || t.target_range[b].x < first || t.target_range[b].x >= end) return;
  const u64 near = sources_of_row(t, u, b);
  if (lane_id() != 31) return;
  const BoxRows rows[6] = {v, x, l2l, l2p, w, u};
  for (int k = 0; k < 6; ++k)
    if (length_of(rows[k], b) > 0) atomicAdd(sums + k, length_of(rows[k], b));
  if (near > 0) atomicAdd(sums + 6, near * targets_in(t, b));
}
