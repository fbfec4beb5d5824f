// U, V, W and X lists in three steps: count, prefix sum, fill. Twin of fmm-tree/src/lists.rs, which defines the
// lists. Rows come out in the same order.
//
// For every box two kinds of neighbours are kept: colleagues (adjacent boxes of the same level with sources) and
// coarse neighbours (adjacent leaves of coarser levels with sources). They follow level by level from the neighbours
// of the parent. The lists then follow for all boxes at once. One warp works on a box.

#include "shared/boxes.cuh"

// Cubes of the size of a box that touch the box, itself included. Each cube is, or lies in, at most one neighbour, so
// a box has at most 27 neighbours. Colleagues are stored from the first place on, coarse neighbours from the last
// place backwards.
#define TOUCHING 27
struct Neighbours {
  u32* data;
  // Number of colleagues and of coarse neighbours.
  uchar2* counts;
};
static_assert(sizeof(Neighbours) == 16, "the host sends two addresses");

__device__ __forceinline__ u32 colleagues_of(const Neighbours& near, u32 b) { return near.counts[b].x; }
__device__ __forceinline__ u32 coarse_of(const Neighbours& near, u32 b) { return near.counts[b].y; }
__device__ __forceinline__ u32& colleague(const Neighbours& near, u32 b, u32 i) { return near.data[(u64)b * TOUCHING + i]; }
__device__ __forceinline__ u32& coarse(const Neighbours& near, u32 b, u32 i) {
  return near.data[(u64)b * TOUCHING + (TOUCHING - 1 - i)];
}

// The children of a parent. octants: three bits per child. active: the children with targets, one bit each. All lanes
// of the warp hold the same numbers.
struct Children {
  u32 begin, count, octants, active;
};
__device__ __forceinline__ Children children_of(const Boxes& t, u32 p) {
  Children c = {t.child_start[p], t.child_count[p], 0, 0};
  u32 octant = 0;
  bool active = false;
  if (lane_id() < c.count) {
    const u64* at = t.anchor + 3ull * (c.begin + lane_id());
    octant = (u32)(at[0] & 1 | (at[1] & 1) << 1 | (at[2] & 1) << 2) << 3 * lane_id();
    active = targets_in(t, c.begin + lane_id()) > 0;
  }
#pragma unroll
  for (int d = 1; d < 32; d *= 2) octant |= __shfl_xor_sync(~0u, octant, d);
  c.octants = octant;
  c.active = __ballot_sync(~0u, active);
  return c;
}

// The octants of p, as bits, that share at least a point with box a. Box a is not finer than the octants.
__device__ __forceinline__ u32 octants_touching(const Boxes& t, u32 p, u32 a) {
  const u32 d = t.level[p] + 1 - t.level[a];
  u32 all = 0xff;
#pragma unroll
  for (int x = 0; x < 3; ++x) {
    // Lower and upper end of box a, relative to the lower corner of p, in sides of a child.
    const long long from = (long long)((t.anchor[3ull * a + x] << d) - 2 * t.anchor[3ull * p + x]);
    const long long to = from + (1ll << d);
    const u32 upper = x == 0 ? 0xaau : x == 1 ? 0xccu : 0xf0u;
    all &= (from <= 1 && to >= 0 ? ~upper : 0u) | (from <= 2 && to >= 1 ? upper : 0u);
  }
  return all;
}

// The kinds of rows of a child.
#define COLLEAGUES 0
#define COARSE 1
#define V 2
#define X 3

// Sorts the neighbours of parent p, and their children, into the rows of the children of p. Boxes come in order, 32
// at a time, one per lane. All lanes call visit(child, kind, box, whether the lane's box is of that kind, lanes with
// such a box as bits) together.
template <class Visit>
__device__ void family(const Boxes& t, u32 p, const Children& children, const Neighbours& near, Visit visit) {
  auto hand_down = [&](u32 box, bool valid, bool leaf) {
    const u32 octants = valid ? octants_touching(t, p, box) : 0;
    const u32 leaves = __ballot_sync(~0u, valid && leaf), others = __ballot_sync(~0u, valid && !leaf);
    for (u32 k = 0; k < children.count; ++k) {
      if (!(children.active >> k & 1)) continue;
      const u32 octant = children.octants >> 3 * k & 7;
      const u32 near = __ballot_sync(~0u, octants >> octant & 1), me = 1u << lane_id();
      if (others & near) visit(k, COLLEAGUES, box, (others & near & me) != 0, others & near);
      if (others & ~near) visit(k, V, box, (others & ~near & me) != 0, others & ~near);
      if (leaves & near) visit(k, COARSE, box, (leaves & near & me) != 0, leaves & near);
      if (leaves & ~near) visit(k, X, box, (leaves & ~near & me) != 0, leaves & ~near);
    }
  };
  const u32 leaves = coarse_of(near, p), boxes = colleagues_of(near, p);
  if (leaves > 0) hand_down(lane_id() < leaves ? coarse(near, p, lane_id()) : 0, lane_id() < leaves, true);
  for (u32 at = 0; at < boxes; at += 4) {
    const u32 mine = at + lane_id() / 8, k = lane_id() % 8;
    bool valid = mine < boxes;
    u32 c = valid ? colleague(near, p, mine) : 0;
    const bool leaf = valid && is_leaf(t, c);
    if (leaf) {
      valid = k == 0;
    } else if (valid) {
      valid = k < t.child_count[c];
      c = t.child_start[c] + k;
      valid = valid && sources_in(t, c) > 0;
    }
    hand_down(c, valid, leaf);
  }
}

// The ranges of targets of the boxes with a parent that has targets among first … end - 1, and of the root; other boxes get an
// empty range. Lists made with these ranges have the rows of all boxes with such targets, and of their siblings.
extern "C" __global__ void part_ranges(const Boxes* boxes, u32 count, u32 first, u32 end, uint2* ranges) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count) return;
  const uint2 mine = t.target_range[b], above = t.target_range[b == 0 ? 0 : t.parent[b]];
  const bool part = max(above.x, first) < min(above.y, end);
  ranges[b] = part || b == 0 ? mine : make_uint2(mine.x, mine.x);
}

// The root is its own colleague, if it has sources. One thread.
extern "C" __global__ void root_neighbours(const Boxes* boxes, Neighbours near) {
  colleague(near, 0, 0) = 0;
  near.counts[0] = make_uchar2(sources_in(*boxes, 0) > 0, 0);
}

// For the boxes of a level as parents: the neighbours of their children, and the lengths of the V and X rows of their
// children. One warp per parent.
extern "C" __global__ void family_neighbours(const Boxes* boxes, u32 first, u32 count, Neighbours near, u32* v, u32* x) {
  const Boxes t = *boxes;
  const u32 p = first + warp_index();
  if (warp_index() >= count || is_leaf(t, p)) return;
  const Children children = children_of(t, p);
  // Lane 4·child + kind counts the boxes of that kind for that child.
  u32 mine = 0;
  family(t, p, children, near, [&](u32 k, u32 kind, u32 box, bool one, u32 bits) {
    if (kind <= COARSE) {
      const u32 at = __shfl_sync(~0u, mine, 4 * k + kind) + __popc(bits & lanes_below()), child = children.begin + k;
      if (one) (kind == COLLEAGUES ? colleague(near, child, at) : coarse(near, child, at)) = box;
    }
    if (lane_id() == 4 * k + kind) mine += __popc(bits);
  });
  const u32 child = lane_id() / 4, kind = lane_id() % 4, others = __shfl_down_sync(~0u, mine, 1);
  if (child >= children.count) return;
  if (kind == COLLEAGUES) near.counts[children.begin + child] = make_uchar2(mine, others);
  if (kind >= V) (kind == V ? v : x)[children.begin + child] = mine;
}

// Walks down from colleague c of the leaf b, at most `depth` levels. Calls emit(box, depth, whether it is adjacent) for
// adjacent leaves and for boxes that are not adjacent. Returns whether the walk was cut off by `depth`.
template <class Emit>
__device__ bool descend(const Boxes& t, u32 b, u32 c, u32 depth, Emit emit) {
  if (is_leaf(t, c)) {
    emit(c, 0, true);
    return false;
  }
  if (depth == 0) return true;
  bool more = false;
  u32 at = t.child_start[c], d = 1;
  while (true) {
    if (sources_in(t, at) > 0) {
      const bool adjacent = touch(t, b, at);
      if (!adjacent || is_leaf(t, at)) {
        emit(at, d, adjacent);
      } else if (d < depth) {
        at = t.child_start[at];
        ++d;
        continue;
      } else {
        more = true;
      }
    }
    for (u32 p = t.parent[at]; at + 1 == t.child_start[p] + t.child_count[p]; p = t.parent[at]) {
      at = p;
      if (--d == 0) return more;
    }
    ++at;
  }
}

// Thresholds below which far edges are summed pair by pair (ListOptions).
struct Few {
  // A box of W that is a leaf with fewer sources moves to U.
  u32 sources;
  // All boxes of X move to U if the target leaf has fewer targets.
  u32 targets;
};
static_assert(sizeof(Few) == 8, "the host packs two numbers");

__device__ __forceinline__ bool to_near(const Boxes& t, u32 w, const Few& few) {
  return is_leaf(t, w) && sources_in(t, w) < few.sources;
}

// Whether the X list of box b is summed pair by pair.
__device__ __forceinline__ bool all_near(const Boxes& t, u32 b, const Few& few) {
  return is_leaf(t, b) && targets_in(t, b) < few.targets;
}

// Enters the size of a leaf, which is its number of sources or targets. sizes[0] is the largest size below the threshold,
// sizes[1] the smallest of the other sizes.
__device__ __forceinline__ void enter(volatile u32* sizes, u32 size, u32 threshold) {
  if (size < threshold) {
    if (size > sizes[0]) atomicMax((u32*)sizes, size);
  } else if (size < sizes[1]) {
    atomicMin((u32*)sizes + 1, size);
  }
}

// Lengths of the W and U rows of all boxes. taken: number of boxes that move from X to U. sizes: two numbers for each
// threshold, see `enter`.
extern "C" __global__ void rows_count(const Boxes* boxes, u32 count, Neighbours near, Few few, u32* x,
                                      u32* w, u32* u, u32* taken, u32* sizes) {
  const Boxes t = *boxes;
  const u32 b = warp_index();
  if (b >= count) return;
  u32 to_w = 0, to_u = 0;
  const bool active = targets_in(t, b) > 0 && is_leaf(t, b);
  if (active && lane_id() < colleagues_of(near, b))
    descend(t, b, colleague(near, b, lane_id()), ~0u, [&](u32 s, u32, bool adjacent) {
      if (!adjacent && is_leaf(t, s)) enter(sizes, sources_in(t, s), few.sources);
      if (adjacent || to_near(t, s, few))
        ++to_u;
      else
        ++to_w;
    });
  to_w = warp_inclusive(to_w);
  to_u = warp_inclusive(to_u);
  if (lane_id() != 31) return;
  if (active) to_u += coarse_of(near, b);
  if (active && x[b] > 0) enter(sizes + 2, targets_in(t, b), few.targets);
  const u32 moved = active && all_near(t, b, few) ? x[b] : 0;
  if (moved > 0) x[b] = 0;
  taken[b] = moved;
  w[b] = to_w;
  u[b] = to_u + moved;
}

// The rows of V and X. An X list that is summed pair by pair goes to U, behind the coarse neighbours. One warp per
// parent.
extern "C" __global__ void far_fill(const Boxes* boxes, u32 count, Neighbours near, Few few,
                                    const u64* v_starts, const u64* x_starts, const u64* u_starts, u32* v, u32* x,
                                    u32* u) {
  const Boxes t = *boxes;
  const u32 p = warp_index();
  if (p >= count || is_leaf(t, p)) return;
  const Children children = children_of(t, p);
  const u32 child = lane_id() / 4, kind = lane_id() % 4, b = children.begin + child;
  u64 end = 0;
  bool taken = false;
  if (child < children.count && kind == V) end = v_starts[b];
  if (child < children.count && kind == X) {
    taken = all_near(t, b, few);
    end = taken ? u_starts[b] + coarse_of(near, b) : x_starts[b];
  }
  family(t, p, children, near, [&](u32 k, u32 kind, u32 box, bool mine, u32 bits) {
    if (kind < V) return;
    const u64 at = __shfl_sync(~0u, end, 4 * k + kind) + __popc(bits & lanes_below());
    const bool to_u = __shfl_sync(~0u, taken, 4 * k + kind);
    if (mine) (kind == V ? v : to_u ? u : x)[at] = box;
    if (lane_id() == 4 * k + kind) end += __popc(bits);
  });
}

// Sorts data[begin, end) in place by insertion. One lane; meant for few entries.
__device__ void sort_row(u32* data, u64 begin, u64 end) {
  for (u64 i = begin + 1; i < end; ++i) {
    const u32 entry = data[i];
    u64 j = i;
    for (; j > begin && data[j - 1] > entry; --j) data[j] = data[j - 1];
    data[j] = entry;
  }
}

// The rows of U and W, sorted: level by level, in order within a level. Runs after `far_fill`.
extern "C" __global__ void near_fill(const Boxes* boxes, u32 count, Neighbours near, Few few,
                                     const u64* w_starts, const u64* u_starts, const u32* taken, u32* w, u32* u) {
  const Boxes t = *boxes;
  const u32 b = warp_index();
  if (b >= count || targets_in(t, b) == 0 || !is_leaf(t, b)) return;
  u64 end_u = u_starts[b], end_w = w_starts[b];
  if (lane_id() < coarse_of(near, b)) u[end_u + lane_id()] = coarse(near, b, lane_id());
  end_u += coarse_of(near, b);
  if (taken[b] > 0) {
    end_u += taken[b];
    __syncwarp();
    if (lane_id() == 0) sort_row(u, u_starts[b], end_u);
  }
  const bool valid = lane_id() < colleagues_of(near, b);
  const u32 c = valid ? colleague(near, b, lane_id()) : 0;
  const bool leaf = valid && is_leaf(t, c), inner = valid && !leaf;
  const u32 leaves = __ballot_sync(~0u, leaf);
  if (leaf) u[end_u + __popc(leaves & lanes_below())] = c;
  end_u += __popc(leaves);
  bool more = __any_sync(~0u, inner);
  for (u32 depth = 1; more; ++depth) {
    u32 mine_u = 0, mine_w = 0;
    bool below = false;
    if (inner)
      below = descend(t, b, c, depth, [&](u32 s, u32 d, bool adjacent) {
        if (d != depth) return;
        if (adjacent || to_near(t, s, few))
          ++mine_u;
        else
          ++mine_w;
      });
    more = __any_sync(~0u, below);
    const u32 up_to_u = warp_inclusive(mine_u), up_to_w = warp_inclusive(mine_w);
    u64 at_u = end_u + up_to_u - mine_u, at_w = end_w + up_to_w - mine_w;
    if (mine_u + mine_w > 0)
      descend(t, b, c, depth, [&](u32 s, u32 d, bool adjacent) {
        if (d != depth) return;
        if (adjacent || to_near(t, s, few))
          u[at_u++] = s;
        else
          w[at_w++] = s;
      });
    end_u += __shfl_sync(~0u, up_to_u, 31);
    end_w += __shfl_sync(~0u, up_to_w, 31);
  }
}

// Whether the centres of box p and of s, a box one level below, are far enough apart that M2L from s may end at p instead
// of at its children. Twin of `is_distant` in fmm-tree/src/stencil.rs.
__device__ __forceinline__ bool is_distant(const Boxes& t, u32 p, u32 s) {
  long long square = 0;
#pragma unroll
  for (int x = 0; x < 3; ++x) {
    // In halves of the side of s.
    const long long d = (long long)(4 * t.anchor[3ull * p + x] + 2) - (long long)(2 * t.anchor[3ull * s + x] + 1);
    square += d * d;
  }
  return square > 39;
}

// The number of children of box p that have targets.
__device__ __forceinline__ u32 receivers(const Boxes& t, u32 p) {
  u32 count = 0;
  for (u32 k = 0; k < t.child_count[p]; ++k) count += targets_in(t, t.child_start[p] + k) > 0;
  return count;
}

// Calls visit(source, whether the lane's edge is one, lanes with an edge as bits) for the M2L row of box b after distant
// V edges of siblings have moved to their parent: the edges of b that stay, then those that its children give to b. Rows
// of V are sorted, and the sources of children lie behind those of b. All lanes of the warp call it together.
template <class Visit>
__device__ void stencil_row(const Boxes& t, u32 b, const u64* starts, const u32* v, Visit visit) {
  auto walk = [&](u32 row, u32 parent, bool distant, bool all) {
    for (u64 e = starts[row]; e < starts[row + 1]; e += 32) {
      const bool there = e + lane_id() < starts[row + 1];
      const u32 s = there ? v[e + lane_id()] : 0;
      const bool mine = there && (all || is_distant(t, parent, s) == distant);
      visit(s, mine, __ballot_sync(~0u, mine));
    }
  };
  const u32 parent = t.parent[b];
  const bool moves = b > 0 && receivers(t, parent) > 1;
  walk(b, parent, false, !moves);
  if (receivers(t, b) < 2) return;
  // All children with targets have the same distant boxes.
  u32 first = t.child_start[b];
  while (targets_in(t, first) == 0) ++first;
  walk(first, b, true, false);
}

// The M2L rows of the 119 stencil: lengths, then rows. One warp per box. Twin of fmm-tree/src/stencil.rs.
extern "C" __global__ void stencil_count(const Boxes* boxes, u32 count, const u64* starts, const u32* v, u32* lengths) {
  const Boxes t = *boxes;
  const u32 b = warp_index();
  if (b >= count) return;
  u32 length = 0;
  stencil_row(t, b, starts, v, [&](u32, bool, u32 bits) { length += __popc(bits); });
  if (lane_id() == 0) lengths[b] = length;
}
extern "C" __global__ void stencil_fill(const Boxes* boxes, u32 count, const u64* starts, const u32* v,
                                        const u64* to_starts, u32* to) {
  const Boxes t = *boxes;
  const u32 b = warp_index();
  if (b >= count) return;
  u64 end = to_starts[b];
  stencil_row(t, b, starts, v, [&](u32 s, bool mine, u32 bits) {
    if (mine) to[end + __popc(bits & lanes_below())] = s;
    end += __popc(bits);
  });
}

// The coarsest level of a box in V or W. Rows are sorted, so only their first entries matter.
extern "C" __global__ void first_level(const Boxes* boxes, u32 count, BoxRows v, BoxRows w, u32* level) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count) return;
  if (v.starts[b] < v.starts[b + 1]) atomicMin(level, (u32)t.level[v.data[v.starts[b]]]);
  if (w.starts[b] < w.starts[b + 1]) atomicMin(level, (u32)t.level[w.data[w.starts[b]]]);
}

// Whether the local of a box receives anything: the box has targets, and V or X edges end in it or in a box above it.
extern "C" __global__ void reach(const Boxes* boxes, u32 count, const u64* v_starts, const u64* x_starts, u8* reached) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count) return;
  bool any = false;
  if (targets_in(t, b) > 0)
    for (u32 a = b; !any && a != ~0u; a = t.parent[a])
      any = v_starts[a] < v_starts[a + 1] || x_starts[a] < x_starts[a + 1];
  reached[b] = any;
}

// Whether the multipole of b is formed: b has sources, and a multipole is read on its level or a coarser one.
__device__ __forceinline__ bool used(const Boxes& t, u32 b, u32 first) {
  return t.level[b] >= first && sources_in(t, b) > 0;
}

// P2M and M2M: lengths, then rows.
extern "C" __global__ void up_count(const Boxes* boxes, u32 count, const u32* first, u32* p2m, u32* m2m) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count) return;
  const bool mine = used(t, b, *first);
  u32 children = 0;
  if (mine)
    for (u32 k = 0; k < t.child_count[b]; ++k) children += used(t, t.child_start[b] + k, *first);
  p2m[b] = mine && is_leaf(t, b);
  m2m[b] = children;
}
extern "C" __global__ void up_fill(const Boxes* boxes, u32 count, const u32* first, const u64* p2m_starts,
                                   const u64* m2m_starts, u32* p2m, u32* m2m) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count || !used(t, b, *first)) return;
  if (is_leaf(t, b)) p2m[p2m_starts[b]] = b;
  u64 at = m2m_starts[b];
  for (u32 k = 0; k < t.child_count[b]; ++k)
    if (used(t, t.child_start[b] + k, *first)) m2m[at++] = t.child_start[b] + k;
}

// L2L and L2P: lengths, then rows.
extern "C" __global__ void down_count(const Boxes* boxes, u32 count, const u8* reached, u32* l2l, u32* l2p) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count) return;
  l2l[b] = reached[b] && b > 0 && reached[t.parent[b]];
  l2p[b] = reached[b] && is_leaf(t, b);
}
extern "C" __global__ void down_fill(const Boxes* boxes, u32 count, const u8* reached, const u64* l2l_starts,
                                     const u64* l2p_starts, u32* l2l, u32* l2p) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count || !reached[b]) return;
  if (b > 0 && reached[t.parent[b]]) l2l[l2l_starts[b]] = t.parent[b];
  if (is_leaf(t, b)) l2p[l2p_starts[b]] = b;
}
