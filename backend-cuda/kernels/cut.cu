// What the probe of a plan reads of a tree and its lists, and the rows of a thinned tree. Twin of
// fmm-tree/src/{incoming,far,thin}.rs, which define both. In most kernels one warp works on a box.
//
// Defined in front: PYRAMID (shared/tree.cuh); OUTPUTS, the largest number of outputs, each of which has its weights of
// edges; TARGETS_TIMES_EDGES and FEWEST_TARGETS of fmm-tree/src/far.rs.

#include "shared/tree.cuh"

// The incoming edges of each box in brief, as fmm_tree::Incoming has them: 8 · (number of M2L, M2P and P2P edges), + 1 with
// M2P edges, + 2 with P2L edges into the box or a box above, + 4 if a P2P edge joins levels that differ by two or more.
extern "C" __global__ void incoming(const Tree* tree, u32 count, const u64* m2l, const u64* p2l, const u64* m2p,
                                    const u64* p2p, const u32* p2p_sources, u32* brief) {
  const Tree t = *tree;
  const u32 b = warp_index();
  if (b >= count) return;
  const int level = level_at(t, b);
  bool jump = false;
  for (u64 e = p2p[b] + lane_id(); e < p2p[b + 1]; e += 32)
    jump = jump || abs((int)level_at(t, p2p_sources[e]) - level) > 1;
  jump = __any_sync(~0u, jump);
  if (lane_id() != 0) return;
  auto edges = [&](const u64* starts, u32 box) { return (u32)(starts[box + 1] - starts[box]); };
  bool by_p2l = edges(p2l, b) > 0;
  for (u32 box = b; !by_p2l && box != 0;) {
    box = parent_of(t, box);
    by_p2l = edges(p2l, box) > 0;
  }
  brief[b] = 8 * (edges(m2l, b) + edges(m2p, b) + edges(p2p, b)) + (edges(m2p, b) > 0 ? 1 : 0) + (by_p2l ? 2 : 0) +
             (jump ? 4 : 0);
}

// fmm_tree::DISTANCES.
#define DISTANCES 64

// The exponent of the root of a number that is not subnormal.
__device__ __forceinline__ int exponent_of_root(double x) {
  return (((__double2hiint(x) >> 20 & 0x7ff) - 1023) >> 1) + 1023;
}

// The factors of an edge in fmm_tree::far_squares. On a GPU, M2P edges take all degrees.
struct FarEdge {
  const double* weights;
  int root;
  u32 half_power;
  __device__ FarEdge(const Tree& t, const double* weights, u32 half_power) : weights(weights), half_power(half_power) {
    const double side = frame_of(t, 0).side;
    root = exponent_of_root(side * side);
  }
  // The weight of output k at the squared distance d2.
  __device__ double weight(u32 k, double d2) const {
    return weights[k * DISTANCES + min(max(root - exponent_of_root(d2), 0), DISTANCES - 1)];
  }
  // (h/d)^(2·half_power) from (h/d)².
  __device__ double power(double ratio) const {
    double x = 1;
    ratio = fmin(ratio, 1.0);
    for (u32 k = 0; k < half_power; ++k) x *= ratio;
    return x;
  }
};

// Sums `all` and `fewer` over a warp, for each output, and writes both sums of box b into `to`, in the order of `far_sums`.
__device__ __forceinline__ void sums_to(double* to, u32 count, u32 b, u32 outputs, const double (&all)[OUTPUTS],
                                        const double (&fewer)[OUTPUTS]) {
#pragma unroll
  for (u32 k = 0; k < OUTPUTS; ++k) {
    if (k >= outputs) break;
    const double both[2] = {warp_inclusive(all[k]), warp_inclusive(fewer[k])};
    for (int kind = 0; kind < 2; ++kind)
      if (lane_id() == 31) to[(2 * k + kind) * (u64)count + b] = both[kind];
  }
}

// Writes the frame (centre and side) and the number of sources of each box. `far_sums` and `far_squares` read both for the source
// of each edge. A frame is one sector of memory, while the arrays from which it is made take three, and a box is the source of
// some hundred edges. One thread per box.
static_assert(sizeof(Frame) == 32, "the host allocates four doubles for each box");
extern "C" __global__ void far_sources(const Tree* tree, u32 count, Frame* frames, u32* points) {
  const Tree t = *tree;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count) return;
  frames[b] = frame_of(t, b);
  points[b] = length(sources_of(t, b));
}

// The frame of a box, by two reads of 16 bytes.
__device__ __forceinline__ Frame frame_at(const Frame* frames, u32 b) {
  const double2* at = (const double2*)(frames + b);
  const double2 first = at[0], second = at[1];
  return {{first.x, first.y, second.x}, second.y};
}

// For each box the sums over its M2L and P2L edges in fmm_tree::far_squares: for each output, first of all boxes for
// expansions that take all degrees on each edge, then of all boxes for those that take fewer on far edges.
extern "C" __global__ void far_sums(const Tree* tree, u32 count, const Frame* frames, const u32* points, const u64* m2l,
                                    const u64* p2l, const u32* m2l_sources, const u32* p2l_sources, const double* weights,
                                    u32 outputs, u32 half_power, double* sums) {
  const Tree t = *tree;
  const u32 b = warp_index();
  if (b >= count) return;
  const FarEdge far(t, weights, half_power);
  const Frame x = frame_at(frames, b);
  const double of_nearest = far.power(0.25);
  double all[OUTPUTS] = {}, fewer[OUTPUTS] = {};
  auto add = [&](const u64* starts, const u32* sources, bool is_m2l) {
    for (u64 e = starts[b] + lane_id(); e < starts[b + 1]; e += 32) {
      const u32 s = sources[e];
      const Frame y = frame_at(frames, s);
      double d2 = 0, h = 0.5 * x.side;
      for (int a = 0; a < 3; ++a) d2 += (x.center[a] - y.center[a]) * (x.center[a] - y.center[a]);
      if (is_m2l) {
        h += 0.5 * y.side;
      } else {
        const double d = fmax(sqrt(d2) - 0.5 * y.side, 0.0);
        d2 = d * d;
      }
      const double power = far.power(h * h / d2);
#pragma unroll
      for (u32 k = 0; k < OUTPUTS; ++k) {
        if (k >= outputs) break;
        const double weight = (double)points[s] * far.weight(k, d2);
        all[k] += weight * power;
        fewer[k] += weight * (is_m2l ? of_nearest : power);
      }
    }
  };
  add(m2l, m2l_sources, true);
  add(p2l, p2l_sources, false);
  sums_to(sums, count, b, outputs, all, fewer);
}

// Lanes that share the edges of a target.
#define LANES 4

// E of a leaf is the sum of the numbers in `sums` of the leaf and of all boxes above it. A leaf without M2P edges gets
// E² · (number of targets), which is final. A leaf with M2P edges gets E, and `far_squares` replaces it. Boxes that are no
// leaves, and leaves without targets, get 0. `squares` are in the order of `far_sums`. One thread per box.
extern "C" __global__ void far_above(const Tree* tree, u32 count, const u64* m2p, u32 outputs, const double* sums,
                                     double* squares) {
  const Tree t = *tree;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count) return;
  const u32 targets = is_leaf(t, b) ? length(targets_of(t, b)) : 0;
  const bool squared = m2p[b] == m2p[b + 1];
  for (u32 k = 0; k < 2 * outputs; ++k) {
    double sum = 0;
    for (u32 box = b; targets > 0; box = parent_of(t, box)) {
      sum += sums[k * (u64)count + box];
      if (box == 0) break;
    }
    squares[k * (u64)count + b] = squared ? sum * sum * (double)targets : sum;
  }
}

// For each leaf with M2P edges: the mean of E² over the targets that represent it, with the errors E of
// fmm_tree::far_squares, times the number of its targets. In a treecode some targets represent a leaf with many edges.
// On entry `squares` has what `far_above` wrote. Leaves without M2P edges are not changed.
extern "C" __global__ void far_squares(const Tree* tree, u32 count, const Frame* frames, const u32* points_of_boxes,
                                       const u64* m2p, const u32* m2p_sources, const double* xyz, u64 n, u32 axes,
                                       u32 treecode, const double* weights, u32 outputs, u32 half_power,
                                       double* squares) {
  const Tree t = *tree;
  const u32 b = warp_index();
  if (b >= count) return;
  const uint2 targets = targets_of(t, b);
  const u64 first = m2p[b], end = m2p[b + 1], points = targets.y - targets.x;
  if (!is_leaf(t, b) || points == 0 || first == end) return;
  const FarEdge far(t, weights, half_power);
  double all[OUTPUTS] = {}, fewer[OUTPUTS] = {}, above[OUTPUTS] = {}, above_fewer[OUTPUTS] = {};
#pragma unroll
  for (u32 k = 0; k < OUTPUTS; ++k) {
    if (k >= outputs) break;
    above[k] = squares[2 * k * (u64)count + b];
    above_fewer[k] = squares[(2 * k + 1) * (u64)count + b];
  }
  const u64 wanted = (points * (end - first) + TARGETS_TIMES_EDGES - 1) / TARGETS_TIMES_EDGES;
  const u32 step = treecode ? (u32)max(min(wanted, points / FEWEST_TARGETS), (u64)1) : 1;
  const u32 chosen = ((u32)points + step - 1) / step;
  const u32 part = lane_id() % LANES;
  // All lanes take the same number of steps, because those of a target add up what they have.
  for (u32 j = lane_id() / LANES; j - lane_id() / LANES < chosen; j += 32 / LANES) {
    const bool valid = j < chosen;
    const u32 i = targets.x + (valid ? j : 0) * step;
    double sum[OUTPUTS] = {};
    for (u64 e = first + part; e < end; e += LANES) {
      const u32 s = m2p_sources[e];
      const Frame y = frame_at(frames, s);
      double d2 = 0;
      for (u32 a = 0; a < axes; ++a) d2 += (xyz[a * n + i] - y.center[a]) * (xyz[a * n + i] - y.center[a]);
      const double points = (double)points_of_boxes[s] * far.power(0.25 * y.side * y.side / d2);
#pragma unroll
      for (u32 k = 0; k < OUTPUTS; ++k) {
        if (k >= outputs) break;
        sum[k] += points * far.weight(k, d2);
      }
    }
#pragma unroll
    for (u32 k = 0; k < OUTPUTS; ++k) {
      if (k >= outputs) break;
      for (int apart = 1; apart < LANES; apart *= 2) sum[k] += __shfl_xor_sync(~0u, sum[k], apart);
      if (valid && part == 0) {
        all[k] += (above[k] + sum[k]) * (above[k] + sum[k]);
        fewer[k] += (above_fewer[k] + sum[k]) * (above_fewer[k] + sum[k]);
      }
    }
  }
  const double scale = (double)points / chosen;
#pragma unroll
  for (u32 k = 0; k < OUTPUTS; ++k) {
    all[k] *= scale;
    fewer[k] *= scale;
  }
  sums_to(squares, count, b, outputs, all, fewer);
}

// The sum of the numbers of all boxes, in parts: that of each warp.
extern "C" __global__ void sum_in_parts(const double* numbers, u32 count, double* parts) {
  double sum = 0;
  const u32 step = gridDim.x * blockDim.x;
  for (u32 b = blockIdx.x * blockDim.x + threadIdx.x; b < count; b += step) sum += numbers[b];
  sum = warp_inclusive(sum);
  if (lane_id() == 31) parts[warp_index()] = sum;
}

// Adds to the factor of each box: `same`, and the means of both kinds of squares over its targets times `all` and `fewer`.
// Squares with the scale 0 may be infinite. `squares` are the sums of `far_squares`.
extern "C" __global__ void far_factors(const Tree* tree, u32 count, const double* squares, double same, double all,
                                       double fewer, double* factors) {
  const Tree t = *tree;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count) return;
  const double targets = max(length(targets_of(t, b)), 1u);
  double sum = factors[b] + same;
  if (all > 0) sum += all * squares[b] / targets;
  if (fewer > 0) sum += fewer * squares[count + b] / targets;
  factors[b] = sum;
}

// For each leaf the sum over its sources or targets of r^(2·half), where r is the distance from the centre of the leaf
// in sides of the leaf; 0 for other boxes.
extern "C" __global__ void corner_sums(const Tree* tree, u32 count, const double* xyz, u64 n, u32 axes,
                                       u32 of_sources, u32 half, double* sums) {
  const Tree t = *tree;
  const u32 b = warp_index();
  if (b >= count) return;
  double sum = 0;
  if (is_leaf(t, b)) {
    const Frame f = frame_of(t, b);
    const uint2 range = of_sources ? sources_of(t, b) : targets_of(t, b);
    for (u32 i = range.x + lane_id(); i < range.y; i += 32) {
      double square = 0, power = 1;
      for (u32 a = 0; a < axes; ++a) {
        const double d = (xyz[a * n + i] - f.center[a]) / f.side;
        square += d * d;
      }
      for (u32 k = 0; k < half; ++k) power *= square;
      sum += power;
    }
  }
  sum = warp_inclusive(sum);
  if (lane_id() == 31) sums[b] = sum;
}

// The points at some positions, as an array for each axis.
extern "C" __global__ void take_points(const double* xyz, u64 n, u32 axes, const u32* positions, u32 count,
                                       double* taken) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  for (u32 a = 0; a < axes; ++a) taken[(u64)a * count + i] = xyz[a * n + positions[i]];
}

// The points at some positions, three coordinates of a point behind each other; z = 0 for points of the plane.
extern "C" __global__ void take_points_as_rows(const double* xyz, u64 n, u32 axes, const u32* positions, u32 count,
                                               double* taken) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  for (u32 a = 0; a < 3; ++a) taken[3ull * i + a] = a < axes ? xyz[a * n + positions[i]] : 0;
}

// The caller's indices of the points at some positions.
extern "C" __global__ void take_indices(const u32* order, const u32* positions, u32 count, u32* taken) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) taken[i] = order[positions[i]];
}

// numbers[b]: the number of box b among the boxes `kept`, if its range has points.
extern "C" __global__ void number_boxes(const u32* kept, u32 count, const u32* ranges, u32* numbers) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count && ranges[2 * i] < ranges[2 * i + 1]) numbers[kept[i]] = i;
}

// Lengths of the rows of the boxes `kept`. A box keeps its row if receives[box] is not NONE, and an edge from a box if
// gives[box] is not NONE.
extern "C" __global__ void cut_count(const u32* kept, u32 count, const u64* starts, const u32* sources,
                                     const u32* receives, const u32* gives, u32* lengths) {
  const u32 i = warp_index();
  if (i >= count) return;
  const u32 b = kept[i];
  u32 mine = 0;
  if (receives[b] != NONE)
    for (u64 e = starts[b] + lane_id(); e < starts[b + 1]; e += 32) mine += gives[sources[e]] != NONE;
  mine = warp_inclusive(mine);
  if (lane_id() == 31) lengths[i] = mine;
}

// The rows that `cut_count` has counted. A source box gets the number gives[box].
extern "C" __global__ void cut_fill(const u32* kept, u32 count, const u64* starts, const u32* sources,
                                    const u32* receives, const u32* gives, const u64* to_starts, u32* to) {
  const u32 i = warp_index();
  if (i >= count) return;
  const u32 b = kept[i];
  if (receives[b] == NONE) return;
  u64 at = to_starts[i];
  for (u64 e = starts[b]; e < starts[b + 1]; e += 32) {
    const u32 number = e + lane_id() < starts[b + 1] ? gives[sources[e + lane_id()]] : NONE;
    const u32 found = __ballot_sync(~0u, number != NONE);
    if (number != NONE) to[at + __popc(found & lanes_below())] = number;
    at += __popc(found);
  }
}

// Adds the number of pairs of points in the U list to *pairs. Each warp takes boxes in turn: an addition to one number
// for each box would take as long as all else.
extern "C" __global__ void near_pairs(const Tree* tree, u32 count, const u64* starts, const u32* sources,
                                      u64* pairs) {
  const Tree t = *tree;
  u64 mine = 0, all;
  for (u32 b = warp_index(); b < count; b += gridDim.x * blockDim.x / 32) {
    u64 row = 0;
    for (u64 e = starts[b] + lane_id(); e < starts[b + 1]; e += 32) row += length(sources_of(t, sources[e]));
    if (row > 0) mine += row * length(targets_of(t, b));
  }
  block_exclusive(mine, all);
  if (threadIdx.x == 0 && all > 0) atomicAdd(pairs, all);
}
