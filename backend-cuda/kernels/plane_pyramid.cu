// The pyramid of the plane (Goude & Engblom 2012, §2): every box is split at the median across its longer side, twice
// in succession. One splitting in two of all boxes is a *half level*; a box between two half levels is a *segment*.
//
// Points are sorted by x and by y once. The place of a point in these orders is its x-rank and its y-rank. Each segment
// holds its points in two lists: pairs (caller's index, y-rank) by x, and pairs (x-rank, y-rank) by y. So the median of a
// segment is the middle of one list, and its bounds are the ends of both. Splitting cuts the list along the axis in the
// middle and splits the other list stably by a comparison of ranks. Equal coordinates are ordered by the caller's index.
// No coordinate moves before the last step.

#include "shared/look_back.cuh"
#include "shared/pyramid.cuh"

// Threads of a block, and items of a chunk of a list.
#define THREADS 256
#define CHUNK_ITEMS 8
#define CHUNK (THREADS * CHUNK_ITEMS)
// Pairs that a thread reads before it moves them.
#define BATCH 4

// The bits of a number, in the order of numbers. -0 becomes 0.
__device__ __forceinline__ u64 ordered(double x) {
  const u64 bits = (u64)__double_as_longlong(x + 0.0);
  return bits >> 63 ? ~bits : bits | 1ull << 63;
}
// The inverse of `ordered`.
__device__ __forceinline__ double number(u64 bits) {
  return __longlong_as_double((long long)(bits >> 63 ? bits & ~(1ull << 63) : ~bits));
}

// Keys of n points from index `first` on: the ordered bits of a coordinate, counted from those of the smallest.
extern "C" __global__ void plane_keys(const double* rows, u64 n, u64 first, double low_x, double low_y, u64* keys_x,
                                      u64* keys_y) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  keys_x[first + i] = ordered(rows[2 * i]) - ordered(low_x);
  keys_y[first + i] = ordered(rows[2 * i + 1]) - ordered(low_y);
}

// The x-rank of each index, from the indices by x-rank.
extern "C" __global__ void plane_ranks(const u32* order, u64 n, u32* rank) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) rank[order[i]] = (u32)i;
}

// The list by y of the whole cloud, and the y-rank of each x-rank, from the x-rank of each y-rank.
extern "C" __global__ void plane_by_y(const u32* rank_x, u64 n, u32* rank_y, uint2* by_y) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  by_y[i] = make_uint2(rank_x[i], (u32)i);
  rank_y[rank_x[i]] = (u32)i;
}

// The list by x of the whole cloud, from the index and the y-rank of each x-rank.
extern "C" __global__ void plane_by_x(const u32* order_x, const u32* rank_y, u64 n, uint2* by_x) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) by_x[i] = make_uint2(order_x[i], rank_y[i]);
}

// Positions begin … end - 1 of a segment, and its middle.
struct Segment {
  u32 begin, middle, end;
};
// Segment k of 2^halvings segments of positions begin … end - 1.
__device__ __forceinline__ Segment segment_of(u32 begin, u32 end, u32 halvings, u32 k) {
  for (u32 bit = halvings; bit-- > 0;) {
    const u32 middle = begin + (end - begin) / 2;
    if (k >> bit & 1)
      begin = middle;
    else
      end = middle;
  }
  return {begin, begin + (end - begin) / 2, end};
}

// Two buffers for the list by x and two for the list by y, the x-rank of each y-rank, and the sorted keys of both axes.
struct Orders {
  uint2 *x0, *x1, *y0, *y1;
  const u32* rank_x;
  const u64 *keys_x, *keys_y;
  u64 low_x, low_y;
};
__device__ __forceinline__ double x_of(const Orders& o, u32 rank) { return number(o.keys_x[rank] + o.low_x); }
__device__ __forceinline__ double y_of(const Orders& o, u32 rank) { return number(o.keys_y[rank] + o.low_y); }

// The state of a segment. Bits 0 and 1: which buffer holds its list by x, by y. On odd half levels bit 2: the
// axis across which the segment is split.
#define AXIS(state) ((state) >> 2 & 1)
__device__ __forceinline__ uint2* list_x(const Orders& o, u32 state) { return state & 1 ? o.x1 : o.x0; }
__device__ __forceinline__ uint2* list_y(const Orders& o, u32 state) { return state & 2 ? o.y1 : o.y0; }

// How a segment is split: the axis, and the rank at the middle. On even half levels also the axes of the two halves.
struct Cut {
  u32 axis, rank, axis_low, axis_high;
};
// The longer side: y only if it is really longer.
__device__ __forceinline__ u32 longer(double width, double height) { return height > width; }

// The x-rank of a pair of the list by x.
__device__ __forceinline__ u32 x_rank(const Orders& o, uint2 pair) { return o.rank_x[pair.y]; }

// The cut of a segment that is not empty. `x` and `y` are its lists.
__device__ __forceinline__ Cut cut_of(const Orders& o, const uint2* x, const uint2* y, Segment s, bool odd, u32 axis) {
  Cut cut = {axis, 0, 0, 0};
  if (odd) {
    cut.rank = axis ? y[s.middle].y : x_rank(o, x[s.middle]);
    return cut;
  }
  const double low_x = x_of(o, x_rank(o, x[s.begin])), high_x = x_of(o, x_rank(o, x[s.end - 1]));
  const double low_y = y_of(o, y[s.begin].y), high_y = y_of(o, y[s.end - 1].y);
  cut.axis = longer(high_x - low_x, high_y - low_y);
  cut.rank = cut.axis ? y[s.middle].y : x_rank(o, x[s.middle]);
  const double at = cut.axis ? y_of(o, cut.rank) : x_of(o, cut.rank);
  if (cut.axis) {
    cut.axis_low = longer(high_x - low_x, at - low_y);
    cut.axis_high = longer(high_x - low_x, high_y - at);
  } else {
    cut.axis_low = longer(at - low_x, high_y - low_y);
    cut.axis_high = longer(high_x - at, high_y - low_y);
  }
  return cut;
}
__device__ __forceinline__ bool is_low(Cut cut, uint2 pair) { return (cut.axis ? pair.y : pair.x) < cut.rank; }

#define ORDERS                                                                                                     \
  uint2 *x0, uint2 *x1, uint2 *y0, uint2 *y1, const u32 *rank_x, const u64 *keys_x, const u64 *keys_y, double low_x, \
      double low_y
#define THE_ORDERS \
  { x0, x1, y0, y1, rank_x, keys_x, keys_y, ordered(low_x), ordered(low_y) }

// Splits the 2^half segments of half level `half`, each in `chunks` chunks. The list along the axis of a cut is halved at its
// middle and does not move. The pairs of the other list are copied to the second buffer of this list. Sets the states of
// the halves. lower[chunk] is the state of a chunk (look_back.cuh): the number of its pairs that go to the lower half. Behind
// the states is the number of the next chunk that a block takes. All of them must be zero before.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    plane_move(ORDERS, u32 n, u32 half, u32 chunks, const u32* states, volatile u64* lower, u32* states_below) {
  __shared__ u32 own, of_warp[THREADS / 32], of_earlier;
  __shared__ Cut own_cut;
  const Orders o = THE_ORDERS;
  const u32 warp = threadIdx.x / 32;
  if (threadIdx.x == 0) own = atomicAdd((u32*)(lower + gridDim.x), 1u);
  __syncthreads();
  const u32 k = own / chunks, chunk = own % chunks, state = states[k];
  const Segment s = segment_of(0, n, half, k);
  const u32 begin = s.begin + chunk * CHUNK, end = min(begin + CHUNK, s.end);
  if (begin >= s.end) return;
  if (threadIdx.x == 0) {
    own_cut = cut_of(o, list_x(o, state), list_y(o, state), s, half % 2, AXIS(state));
    if (chunk == 0) {
      const u32 below = (state & 3) ^ (own_cut.axis ? 1 : 2);
      states_below[2 * k] = below | own_cut.axis_low << 2;
      states_below[2 * k + 1] = below | own_cut.axis_high << 2;
    }
  }
  __syncthreads();
  const Cut cut = own_cut;
  const uint2* from = cut.axis ? list_x(o, state) : list_y(o, state);
  uint2* to = cut.axis ? list_x(o, ~state) : list_y(o, ~state);
  from += begin;
  const u32 items = end - begin, first = warp * (32 * CHUNK_ITEMS) + lane_id();
  uint2 pair[CHUNK_ITEMS];
  u32 rank[CHUNK_ITEMS], low = 0, count = 0;
#pragma unroll
  for (int i = 0; i < CHUNK_ITEMS; ++i)
    if (first + 32 * i < items) pair[i] = from[first + 32 * i];
#pragma unroll
  for (int i = 0; i < CHUNK_ITEMS; ++i) {
    const bool mine = first + 32 * i < items && is_low(cut, pair[i]);
    const u32 votes = __ballot_sync(~0u, mine);
    rank[i] = count + __popc(votes & lanes_below());
    low |= (u32)mine << i;
    count += __popc(votes);
  }
  if (lane_id() == 0) of_warp[warp] = count;
  __syncthreads();
  u32 earlier = 0, all = 0;
  for (u32 w = 0; w < THREADS / 32; ++w) {
    if (w == warp) earlier = all;
    all += of_warp[w];
  }
  if (warp == 0) {
    const u64 before = count_before(chunk, all, lower + k * chunks);
    if (lane_id() == 0) of_earlier = (u32)before;
  }
  __syncthreads();
  earlier += of_earlier;
  // `lows`: where the first lower pair of the segment goes. `highs`: where the first pair of the chunk would go if it were
  // an upper pair and no lower pair came before it.
  uint2 *lows = to + s.begin, *highs = to + s.middle + chunk * CHUNK;
#pragma unroll
  for (int i = 0; i < CHUNK_ITEMS; ++i) {
    const u32 at = first + 32 * i, r = earlier + rank[i];
    if (at < items) (low >> i & 1 ? lows + r : highs + at - r)[0] = pair[i];
  }
}

// The caller's points, sources before targets, and their final places.
#define PLACES const double *sources, u32 count, const double *targets, double *x, double *y, u32 *order
#define THE_PLACES \
  { (const double2*)sources, (const double2*)targets, count, x, y, order }
struct Places {
  const double2 *sources, *targets;
  u32 count;
  double *x, *y;
  u32* order;
};

// Copies points to their places in the tree: those of the pairs first, first + stride, … before `end` of a list by x. The
// point of pair i goes to position `at` + i. All reads of a batch are under way at once. -0 becomes 0.
__device__ __forceinline__ void put(const Places& to, u32 at, const uint2* list, u32 first, u32 end, u32 stride) {
  for (u32 i = first; i < end; i += BATCH * stride) {
    double2 point[BATCH];
    u32 index[BATCH];
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      if (i + k * stride >= end) break;
      index[k] = list[i + k * stride].x;
      point[k] = index[k] < to.count ? to.sources[index[k]] : to.targets[index[k] - to.count];
    }
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      if (i + k * stride >= end) break;
      const u32 j = at + i + k * stride;
      to.x[j] = point[k].x + 0.0, to.y[j] = point[k].y + 0.0, to.order[j] = index[k];
    }
  }
}

// Writes the points of all segments of half level `half`, by x.
extern "C" __global__ void __launch_bounds__(THREADS)
    plane_put(ORDERS, u32 n, u32 half, u32 chunks, const u32* states, PLACES) {
  const Orders o = THE_ORDERS;
  const u32 k = blockIdx.x / chunks;
  const Segment s = segment_of(0, n, half, k);
  const u32 begin = min(s.begin + blockIdx.x % chunks * CHUNK, s.end), end = min(begin + CHUNK, s.end);
  put(THE_PLACES, 0, list_x(o, states[k]), begin + threadIdx.x, end, THREADS);
}

// Splits a segment in shared memory, by one warp. The list along the axis of the cut is halved by its middle and stays. Only
// pairs of the other list move: upper pairs through the buffer `upper`, and lower pairs towards the beginning, so that they
// never overwrite pairs that are not read yet.
__device__ __forceinline__ void halve(uint2* by_x, uint2* by_y, uint2* upper, Segment s, Cut cut) {
  uint2* list = cut.axis ? by_x : by_y;
  u32 before = 0;
  for (u32 first = s.begin + lane_id(); first - lane_id() < s.end; first += 32 * BATCH) {
    uint2 pair[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; ++i)
      if (first + 32 * i < s.end) pair[i] = list[first + 32 * i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const u32 at = first + 32 * i;
      const bool low = at < s.end && is_low(cut, pair[i]);
      const u32 votes = __ballot_sync(~0u, low), r = before + __popc(votes & lanes_below());
      if (low)
        list[s.begin + r] = pair[i];
      else if (at < s.end)
        upper[at - s.begin - r] = pair[i];
      before += __popc(votes);
    }
  }
  __syncwarp();
  for (u32 i = s.middle + lane_id(); i < s.end; i += 32) list[i] = upper[i - s.middle];
  __syncwarp();
}

extern __shared__ __align__(16) unsigned char memory[];

// Splits segment blockIdx.x of half level `half` on `more` further half levels in shared memory, and writes its points.
// One warp. Dynamic shared memory: two and a half lists of as many pairs as the segment has.
extern "C" __global__ void __launch_bounds__(32)
    plane_split_small(ORDERS, u32 n, u32 half, u32 more, const u32* states, PLACES) {
  const Orders o = THE_ORDERS;
  const Segment own = segment_of(0, n, half, blockIdx.x);
  const u32 size = own.end - own.begin, state = states[blockIdx.x], odd = half % 2;
  uint2 *by_x = (uint2*)memory, *by_y = by_x + size, *upper = by_y + size;
  for (u32 i = lane_id(); i < size; i += 32) {
    by_x[i] = list_x(o, state)[own.begin + i];
    by_y[i] = list_y(o, state)[own.begin + i];
  }
  __syncwarp();
  const auto split = [&](u32 begin, u32 end, u32 axis) {
    const Segment s = segment_of(begin, end, 0, 0);
    if (begin < end) halve(by_x, by_y, upper, s, cut_of(o, by_x, by_y, s, true, axis));
  };
  if (odd) split(0, size, AXIS(state));
  for (u32 done = odd; done < more; done += 2) {
    for (u32 k = 0; k < 1u << done; ++k) {
      const Segment s = segment_of(0, size, done, k);
      if (s.begin == s.end) continue;
      const Cut cut = cut_of(o, by_x, by_y, s, false, 0);
      halve(by_x, by_y, upper, s, cut);
      if (done + 1 == more) continue;
      split(s.begin, s.middle, cut.axis_low);
      split(s.middle, s.end, cut.axis_high);
    }
  }
  put(THE_PLACES, own.begin, by_x, lane_id(), size, 32);
}

// The first point of each of 2^halvings leaves, and the number of points.
extern "C" __global__ void plane_leaf_starts(u32 n, u32 halvings, u32* start) {
  const u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (k < 1ull << halvings)
    start[k] = segment_of(0, n, halvings, (u32)k).begin;
  else if (k == 1ull << halvings)
    start[k] = n;
}

// Whether each point is a source: its index is below `sources`.
extern "C" __global__ void plane_are_sources(const u32* order, u64 n, u32 sources, u32* flags) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) flags[i] = order[i] < sources;
}

// Separates sources and targets. before[i]: sources before position i.
extern "C" __global__ void plane_pick(const double* x, const double* y, const u32* order, const u64* before, u64 n,
                                      u32 sources, double* source_x, double* source_y, u32* source_order,
                                      double* target_x, double* target_y, u32* target_order) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const bool source = order[i] < sources;
  const u64 to = source ? before[i] : i - before[i];
  (source ? source_x : target_x)[to] = x[i];
  (source ? source_y : target_y)[to] = y[i];
  (source ? source_order : target_order)[to] = source ? order[i] : order[i] - sources;
}
extern "C" __global__ void plane_pick_starts(const u32* start, const u64* before, u64 n, u32* source_start,
                                             u32* target_start) {
  const u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (k >= n) return;
  source_start[k] = (u32)before[start[k]];
  target_start[k] = start[k] - source_start[k];
}

// A rectangle along the axes; empty if low > high.
struct Bounds {
  double low[2], high[2];
};
__device__ __forceinline__ Bounds nothing() {
  const double inf = __longlong_as_double(0x7ffll << 52);
  return {{inf, inf}, {-inf, -inf}};
}
__device__ __forceinline__ Bounds join(Bounds a, Bounds b) {
  for (int i = 0; i < 2; ++i) {
    a.low[i] = a.low[i] < b.low[i] ? a.low[i] : b.low[i];
    a.high[i] = a.high[i] > b.high[i] ? a.high[i] : b.high[i];
  }
  return a;
}
__device__ __forceinline__ bool is_empty(const Bounds& b) { return !(b.low[0] <= b.high[0]); }
__device__ __forceinline__ double2 center_of(const Bounds& b) {
  if (is_empty(b)) return make_double2(0, 0);
  return make_double2(b.low[0] + 0.5 * (b.high[0] - b.low[0]), b.low[1] + 0.5 * (b.high[1] - b.low[1]));
}
__device__ __forceinline__ double half_diagonal(const Bounds& b) {
  return is_empty(b) ? 0 : 0.5 * hypot(b.high[0] - b.low[0], b.high[1] - b.low[1]);
}
// What a radius is enlarged by, so that it covers the rounding of a distance between points of the rectangle.
__device__ __forceinline__ double rounding(const Bounds& b) {
  if (is_empty(b)) return 0;
  const double x = max(fabs(b.low[0]), fabs(b.high[0])), y = max(fabs(b.low[1]), fabs(b.high[1]));
  return 16 * 2.220446049250313e-16 * max(x, y);
}

// Bounds, centres and radii of leaves. One warp per leaf.
extern "C" __global__ void plane_shrink_leaves(const double* x, const double* y, const u32* start, u32 leaves,
                                               Bounds* bounds, double2* center, double* radius) {
  const u32 k = warp_index();
  if (k >= leaves) return;
  Bounds b = nothing();
  for (u32 i = start[k] + lane_id(); i < start[k + 1]; i += 32) b = join(b, {{x[i], y[i]}, {x[i], y[i]}});
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    Bounds other;
    for (int i = 0; i < 2; ++i) {
      other.low[i] = __shfl_xor_sync(~0u, b.low[i], d);
      other.high[i] = __shfl_xor_sync(~0u, b.high[i], d);
    }
    b = join(b, other);
  }
  const double2 c = center_of(b);
  double farthest = 0;
  for (u32 i = start[k] + lane_id(); i < start[k + 1]; i += 32) {
    const double dx = x[i] - c.x, dy = y[i] - c.y, square = dx * dx + dy * dy;
    farthest = square > farthest ? square : farthest;
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    const double other = __shfl_xor_sync(~0u, farthest, d);
    farthest = other > farthest ? other : farthest;
  }
  if (lane_id() != 0) return;
  // Squares of lengths below 1e-145 underflow. Half the diagonal is then the bound.
  radius[k] = (farthest > 1e-290 ? sqrt(farthest) : half_diagonal(b)) + rounding(b);
  bounds[k] = b;
  center[k] = c;
}

// Bounds, centre and radius of a box from its children.
__device__ __forceinline__ void shrink(u32 box, Bounds* bounds, double2* center, double* radius) {
  const u32 child = 4 * box + 1;
  Bounds b = nothing();
  for (u32 c = child; c < child + 4; ++c) b = join(b, bounds[c]);
  const double2 at = center_of(b);
  double reach = 0;
  for (u32 c = child; c < child + 4; ++c) {
    if (is_empty(bounds[c])) continue;
    const double r = hypot(center[c].x - at.x, center[c].y - at.y) + radius[c];
    reach = r > reach ? r : reach;
  }
  const double most = half_diagonal(b);
  radius[box] = (reach < most ? reach : most) + rounding(b);
  bounds[box] = b;
  center[box] = at;
}
// Bounds, centres and radii of the boxes of a level from their children; by a single block, of all levels above too.
extern "C" __global__ void plane_shrink(u32 level, Bounds* bounds, double2* center, double* radius) {
  const u32 k = blockIdx.x * blockDim.x + threadIdx.x;
  for (;; --level) {
    if (k < 1u << 2 * level) shrink(level_start(level) + k, bounds, center, radius);
    if (gridDim.x > 1 || level == 0) return;
    __syncthreads();
  }
}
