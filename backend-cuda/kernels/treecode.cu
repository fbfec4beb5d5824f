// The edges of a treecode. M2P: boxes that a leaf sees as a whole. P2P: leaves that it sums pair by pair. Twin of
// fmm-tree/src/treecode.rs.

#include "shared/boxes.cuh"

#define THREADS 32
// Boxes that a warp opens at once, eight lanes each.
#define TOGETHER 4
// Size of the stack above which boxes are opened one by one, which bounds the growth of the stack.
#define DEEP 256
// Room for boxes that wait to be opened. A level leaves at most seven children of an opened box on the stack.
#define STACK (DEEP + 8 * TOGETHER + 7 * 256)
#define LEVELS 256

// A source box of side l is accepted if three conditions hold. (1) l ≤ θ d, with d the distance from its centre to
// the nearest point of the target leaf. (2) The leaf lies outside the sphere and outside the cube around the centre,
// whose radii are given in sides of the box. (3) The boxes are at least `near` apart.
struct Rule {
  double theta, sphere, cube, near;
};
static_assert(sizeof(Rule) == 4 * 8, "the host sends four numbers");

__device__ bool accepts(const Rule& rule, const double* at, double at_side, const double* of, double side) {
  double gap[3], apart[3], most = 0;
  for (int a = 0; a < 3; ++a) {
    const double d = fabs(at[a] - of[a]);
    gap[a] = fmax(d - 0.5 * at_side, 0.0);
    apart[a] = fmax(d - 0.5 * (at_side + side), 0.0);
    most = fmax(most, d);
  }
  if (!(side <= rule.theta * hypot(hypot(gap[0], gap[1]), gap[2]) * (1.0 + 1e-12))) return false;
  if (rule.sphere > 0) {
    double sum = 0;
    for (int a = 0; a < 3; ++a) {
      const double x = gap[a] / (rule.sphere * side);
      sum += x * x;
    }
    if (!(sum > 1)) return false;
  }
  if (rule.cube > 0 && !(most - 0.5 * at_side >= rule.cube * side)) return false;
  return rule.near == 0 || hypot(hypot(apart[0], apart[1]), apart[2]) >= rule.near;
}

// Walks down the tree for target leaf b. All lanes call take(far, near, box, level) together. far: the lane's box is
// seen as a whole. near: it is a leaf to be summed pair by pair. The boxes of one level come in order.
template <class Take>
__device__ void descend(const Boxes& t, u32 b, const Rule& rule, u32 few, u32* stack, Take take) {
  const u32 lane = threadIdx.x;
  const Frame at = frame_of(t, b);
  u32 size = 0, s = 0;
  bool valid = lane == 0;
  for (;;) {
    bool far = false, near = false, open = false;
    u32 level = 0;
    if (valid && sources_in(t, s) > 0) {
      level = t.level[s];
      const Frame of = frame_of(t, s);
      const bool leaf = is_leaf(t, s);
      far = accepts(rule, at.center, at.side, of.center, of.side) && !(leaf && sources_in(t, s) < few);
      near = !far && leaf;
      open = !far && !leaf;
    }
    take(far, near, s, level);
    // Push in reverse, so that the first box lies on top.
    const u32 opened = __ballot_sync(~0u, open);
    if (open) stack[size + __popc(opened) - 1 - __popc(opened & lanes_below())] = s;
    size += __popc(opened);
    __syncwarp();
    if (size == 0) return;
    const u32 count = size > DEEP ? 1 : min(size, TOGETHER), k = lane / 8;
    valid = k < count;
    if (valid) {
      const u32 parent = stack[size - 1 - k];
      s = t.child_start[parent] + lane % 8;
      valid = lane % 8 < t.child_count[parent];
    }
    size -= count;
    __syncwarp();
  }
}

// Lengths of the rows of M2P and P2P. One warp per box.
extern "C" __global__ void __launch_bounds__(THREADS)
    treecode_count(const Boxes* boxes, u32 count, const Rule* rule, u32 few, u32* m2p, u32* p2p) {
  __shared__ u32 stack[STACK];
  const Boxes t = *boxes;
  const u32 b = blockIdx.x;
  if (b >= count || !is_leaf(t, b) || targets_in(t, b) == 0) return;
  u32 far_boxes = 0, near_boxes = 0;
  descend(t, b, *rule, few, stack, [&](bool far, bool near, u32, u32) {
    far_boxes += __popc(__ballot_sync(~0u, far));
    near_boxes += __popc(__ballot_sync(~0u, near));
  });
  if (threadIdx.x == 0) m2p[b] = far_boxes, p2p[b] = near_boxes;
}

// The rows, sorted. A first walk counts the boxes per level, a second walk writes each level behind the levels before
// it.
extern "C" __global__ void __launch_bounds__(THREADS)
    treecode_fill(const Boxes* boxes, u32 count, const Rule* rule, u32 few, const u64* m2p_starts,
                  const u64* p2p_starts, u32* m2p, u32* p2p) {
  __shared__ u32 stack[STACK], next[2][LEVELS];
  const Boxes t = *boxes;
  const u32 b = blockIdx.x, lane = threadIdx.x;
  if (b >= count || !is_leaf(t, b) || targets_in(t, b) == 0) return;
  for (u32 i = lane; i < 2 * LEVELS; i += THREADS) next[i / LEVELS][i % LEVELS] = 0;
  __syncwarp();
  // The number of boxes of the same level and kind so far; then counts this box.
  auto place = [&](u32 kind, bool mine, u32 level) {
    const u32 all = __ballot_sync(~0u, mine);
    u32 at = 0, same = 0;
    if (mine) {
      same = __match_any_sync(all, level);
      at = next[kind][level] + __popc(same & lanes_below());
    }
    __syncwarp();
    if (mine && (same & lanes_below()) == 0) next[kind][level] += __popc(same);
    __syncwarp();
    return at;
  };
  descend(t, b, *rule, few, stack, [&](bool far, bool near, u32, u32 level) {
    place(0, far, level);
    place(1, near, level);
  });
  if (lane < 2) {
    u32 before = 0;
    for (u32 level = 0; level < LEVELS; ++level) {
      const u32 boxes_here = next[lane][level];
      next[lane][level] = before;
      before += boxes_here;
    }
  }
  __syncwarp();
  descend(t, b, *rule, few, stack, [&](bool far, bool near, u32 s, u32 level) {
    const u32 at = place(0, far, level);
    if (far) m2p[m2p_starts[b] + at] = s;
    const u32 at_near = place(1, near, level);
    if (near) p2p[p2p_starts[b] + at_near] = s;
  });
}
