// The pyramid of the plane (Goude & Engblom 2012, §2): every box is split at the median across its longer side, twice
// in succession. One splitting in two of all boxes is a *half level*; a box between two half levels is a *segment*.
//
// Points are sorted by x and by y once. The place of a point in these orders is its x-rank and its y-rank. Each segment
// holds its points in two lists, one by x-rank and one by y-rank, so the median of a segment is the middle of one list
// and its bounds are the ends of both lists. Splitting cuts the list along the axis in the middle and splits the other
// list stably by a comparison of ranks. Equal coordinates are ordered by the caller's index. No coordinate moves before
// the last step.

#include "shared/warp.cuh"

// Threads of a block, and items of a chunk of a list.
#define THREADS 256
#define CHUNK_ITEMS 8
#define CHUNK (THREADS * CHUNK_ITEMS)

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

// Both lists of the whole cloud: pairs (x-rank, y-rank) by x-rank and by y-rank.
extern "C" __global__ void plane_pairs(const u32* order_y, const u32* rank_x, u64 n, uint2* by_x, uint2* by_y) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const uint2 pair = make_uint2(rank_x[order_y[i]], (u32)i);
  by_y[i] = pair;
  by_x[pair.x] = pair;
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

// Two buffers for the list by x-rank and two for the list by y-rank, and the sorted keys of both axes.
struct Orders {
  uint2 *x[2], *y[2];
  const u64 *keys_x, *keys_y;
  u64 low_x, low_y;
};
__device__ __forceinline__ double x_of(const Orders& o, u32 rank) { return number(o.keys_x[rank] + o.low_x); }
__device__ __forceinline__ double y_of(const Orders& o, u32 rank) { return number(o.keys_y[rank] + o.low_y); }

// The state of a segment. Bits 0 and 1: which buffer holds its list by x-rank, by y-rank. On odd half levels bit 2: the
// axis across which the segment is split.
#define IN_X(state) ((state) & 1)
#define IN_Y(state) ((state) >> 1 & 1)
#define AXIS(state) ((state) >> 2 & 1)

// How a segment is split: the axis, and the rank at the middle. On even half levels also the axes of the two halves.
struct Cut {
  u32 axis, rank, axis_low, axis_high;
};
// The longer side: y only if it is really longer.
__device__ __forceinline__ u32 longer(double width, double height) { return height > width; }

// The cut of a segment that is not empty. `x` and `y` are its lists.
__device__ __forceinline__ Cut cut_of(const Orders& o, const uint2* x, const uint2* y, Segment s, bool odd, u32 axis) {
  Cut cut = {axis, 0, 0, 0};
  if (odd) {
    cut.rank = axis ? y[s.middle].y : x[s.middle].x;
    return cut;
  }
  const double low_x = x_of(o, x[s.begin].x), high_x = x_of(o, x[s.end - 1].x);
  const double low_y = y_of(o, y[s.begin].y), high_y = y_of(o, y[s.end - 1].y);
  cut.axis = longer(high_x - low_x, high_y - low_y);
  cut.rank = cut.axis ? y[s.middle].y : x[s.middle].x;
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

// Block b treats chunk b % chunks of segment b / chunks of the 2^half segments of half level `half`. Every thread gets
// the cut of its segment.
struct Part {
  u32 k, chunk, begin, end;
  Segment segment;
  Cut cut;
  u32 state;
};
__device__ __forceinline__ Part part_of(const Orders& o, u32 n, u32 half, u32 chunks, const u32* states) {
  __shared__ Cut cut;
  Part p;
  p.k = blockIdx.x / chunks, p.chunk = blockIdx.x % chunks;
  p.segment = segment_of(0, n, half, p.k);
  p.begin = min(p.segment.begin + p.chunk * CHUNK, p.segment.end);
  p.end = min(p.begin + CHUNK, p.segment.end);
  p.state = states[p.k];
  if (threadIdx.x == 0 && p.segment.begin < p.segment.end)
    cut = cut_of(o, o.x[IN_X(p.state)], o.y[IN_Y(p.state)], p.segment, half % 2, AXIS(p.state));
  __syncthreads();
  p.cut = cut;
  return p;
}
// The list that the cut does not halve in place.
__device__ __forceinline__ const uint2* other_list(const Orders& o, const Part& p) {
  return p.cut.axis ? o.x[IN_X(p.state)] : o.y[IN_Y(p.state)];
}

#define ORDERS                                                                                                     \
  uint2 *x0, uint2 *x1, uint2 *y0, uint2 *y1, const u64 *keys_x, const u64 *keys_y, double low_x, double low_y
#define THE_ORDERS \
  { {x0, x1}, {y0, y1}, keys_x, keys_y, ordered(low_x), ordered(low_y) }

// Counts the pairs of each chunk that go to the lower half.
extern "C" __global__ void __launch_bounds__(THREADS)
    plane_count(ORDERS, u32 n, u32 half, u32 chunks, const u32* states, u32* counts) {
  const Orders o = THE_ORDERS;
  const Part p = part_of(o, n, half, chunks, states);
  const uint2* from = other_list(o, p);
  u32 mine = 0, total;
  for (u32 i = p.begin + threadIdx.x; i < p.end; i += THREADS) mine += is_low(p.cut, from[i]);
  block_exclusive(mine, total);
  if (threadIdx.x == 0) counts[blockIdx.x] = total;
}

// Moves the pairs of each chunk to their halves, in the other buffer. Sets the states of the halves.
extern "C" __global__ void __launch_bounds__(THREADS)
    plane_move(ORDERS, u32 n, u32 half, u32 chunks, const u32* states, const u32* counts, u32* states_below) {
  __shared__ u32 of_warp[THREADS / 32];
  const Orders o = THE_ORDERS;
  const Part p = part_of(o, n, half, chunks, states);
  const u32 warp = threadIdx.x / 32;
  if (p.chunk == 0 && threadIdx.x == 0) {
    const u32 state = (p.state & 3) ^ (p.cut.axis ? 1 : 2);
    states_below[2 * p.k] = state | p.cut.axis_low << 2;
    states_below[2 * p.k + 1] = state | p.cut.axis_high << 2;
  }
  if (p.begin == p.end) return;
  // Pairs of earlier chunks in the lower half.
  u32 before = 0, earlier;
  for (u32 c = threadIdx.x; c < p.chunk; c += THREADS) before += counts[p.k * chunks + c];
  block_exclusive(before, earlier);

  const uint2* from = other_list(o, p);
  uint2* to = p.cut.axis ? o.x[!IN_X(p.state)] : o.y[!IN_Y(p.state)];
  const u32 first = p.begin + warp * (32 * CHUNK_ITEMS) + lane_id();
  uint2 pair[CHUNK_ITEMS];
  u32 rank[CHUNK_ITEMS], low = 0, count = 0;
#pragma unroll
  for (int i = 0; i < CHUNK_ITEMS; ++i)
    if (first + 32 * i < p.end) pair[i] = from[first + 32 * i];
#pragma unroll
  for (int i = 0; i < CHUNK_ITEMS; ++i) {
    const bool mine = first + 32 * i < p.end && is_low(p.cut, pair[i]);
    const u32 votes = __ballot_sync(~0u, mine);
    rank[i] = count + __popc(votes & lanes_below());
    low |= (u32)mine << i;
    count += __popc(votes);
  }
  if (lane_id() == 0) of_warp[warp] = count;
  __syncthreads();
  for (u32 w = 0; w < warp; ++w) earlier += of_warp[w];
#pragma unroll
  for (int i = 0; i < CHUNK_ITEMS; ++i) {
    const u32 at = first + 32 * i, r = earlier + rank[i];
    if (at < p.end) to[low >> i & 1 ? p.segment.begin + r : p.segment.middle + (at - p.segment.begin - r)] = pair[i];
  }
}

// A point in its final place.
struct Place {
  const u32* order_x;
  double *x, *y;
  u32* order;
};
__device__ __forceinline__ void put(const Orders& o, const Place& to, u32 i, uint2 pair) {
  to.x[i] = x_of(o, pair.x);
  to.y[i] = y_of(o, pair.y);
  to.order[i] = to.order_x[pair.x];
}

// Writes the points of all segments of half level `half`, by x-rank.
extern "C" __global__ void __launch_bounds__(THREADS)
    plane_put(ORDERS, u32 n, u32 half, u32 chunks, const u32* states, const u32* order_x, double* x, double* y,
              u32* order) {
  const Orders o = THE_ORDERS;
  const Place to = {order_x, x, y, order};
  const u32 k = blockIdx.x / chunks;
  const Segment s = segment_of(0, n, half, k);
  const u32 begin = min(s.begin + blockIdx.x % chunks * CHUNK, s.end), end = min(begin + CHUNK, s.end);
  const uint2* from = o.x[IN_X(states[k])];
  for (u32 i = begin + threadIdx.x; i < end; i += THREADS) put(o, to, i, from[i]);
}

// Most points of a segment that a block splits in shared memory, and its threads.
#define SMALL 4096
#define SMALL_THREADS 512
#define SMALL_ITEMS (SMALL / SMALL_THREADS)

extern __shared__ __align__(16) unsigned char memory[];

// Splits segment blockIdx.x of half level `half` on `more` further half levels in shared memory, and writes its points.
// Dynamic shared memory: two lists of SMALL pairs.
extern "C" __global__ void __launch_bounds__(SMALL_THREADS)
    plane_split_small(ORDERS, u32 n, u32 half, u32 more, const u32* states, const u32* order_x, double* x, double* y,
                      u32* order) {
  // The rank at the middle of each segment, with its axis in the highest bit; the pairs in lower halves before it; its
  // axis on odd half levels.
  __shared__ u32 cuts[SMALL], lower_before[SMALL];
  __shared__ u8 axes[SMALL];
  __shared__ u32 of_warp[SMALL_THREADS / 32];
  const Orders o = THE_ORDERS;
  const Segment own = segment_of(0, n, half, blockIdx.x);
  const u32 size = own.end - own.begin, state = states[blockIdx.x], warp = threadIdx.x / 32;
  uint2 *by_x = (uint2*)memory, *by_y = by_x + SMALL;
  for (u32 i = threadIdx.x; i < size; i += SMALL_THREADS) {
    by_x[i] = o.x[IN_X(state)][own.begin + i];
    by_y[i] = o.y[IN_Y(state)][own.begin + i];
  }
  if (threadIdx.x == 0) axes[0] = AXIS(state);
  // The segment of each item: a warp has consecutive items, 32 at a time.
  const u32 first = warp * (32 * SMALL_ITEMS) + lane_id();
  u32 k[SMALL_ITEMS], begin[SMALL_ITEMS], end[SMALL_ITEMS];
#pragma unroll
  for (int i = 0; i < SMALL_ITEMS; ++i) k[i] = 0, begin[i] = 0, end[i] = size;
  __syncthreads();

  for (u32 level = 0; level < more; ++level) {
    const bool odd = (half + level) % 2;
    // Axes are written on even half levels and read on odd ones.
    for (u32 s = threadIdx.x; s < 1u << level; s += SMALL_THREADS) {
      const Segment segment = segment_of(0, size, level, s);
      if (segment.begin == segment.end) continue;
      const Cut cut = cut_of(o, by_x, by_y, segment, odd, odd ? axes[s] : 0);
      cuts[s] = cut.rank | cut.axis << 31;
      if (!odd) axes[2 * s] = cut.axis_low, axes[2 * s + 1] = cut.axis_high;
    }
    __syncthreads();
    uint2 pair[SMALL_ITEMS];
    u32 rank[SMALL_ITEMS], low = 0, axis = 0, count = 0;
#pragma unroll
    for (int i = 0; i < SMALL_ITEMS; ++i) {
      const u32 at = first + 32 * i;
      bool mine = false;
      if (at < size) {
        const u32 cut = cuts[k[i]];
        axis |= (cut >> 31) << i;
        pair[i] = cut >> 31 ? by_x[at] : by_y[at];
        mine = (cut >> 31 ? pair[i].y : pair[i].x) < (cut & ~(1u << 31));
      }
      const u32 votes = __ballot_sync(~0u, mine);
      rank[i] = count + __popc(votes & lanes_below());
      low |= (u32)mine << i;
      count += __popc(votes);
    }
    if (lane_id() == 0) of_warp[warp] = count;
    __syncthreads();
    u32 earlier = 0;
    for (u32 w = 0; w < warp; ++w) earlier += of_warp[w];
#pragma unroll
    for (int i = 0; i < SMALL_ITEMS; ++i) {
      rank[i] += earlier;
      if (first + 32 * i < size && first + 32 * i == begin[i]) lower_before[k[i]] = rank[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SMALL_ITEMS; ++i) {
      const u32 at = first + 32 * i;
      if (at >= size) continue;
      const u32 middle = begin[i] + (end[i] - begin[i]) / 2, r = rank[i] - lower_before[k[i]];
      const u32 to = low >> i & 1 ? begin[i] + r : middle + (at - begin[i] - r);
      (axis >> i & 1 ? by_x : by_y)[to] = pair[i];
      if (at < middle)
        end[i] = middle, k[i] = 2 * k[i];
      else
        begin[i] = middle, k[i] = 2 * k[i] + 1;
    }
    __syncthreads();
  }
  const Place to = {order_x, x, y, order};
  for (u32 i = threadIdx.x; i < size; i += SMALL_THREADS) put(o, to, own.begin + i, by_x[i]);
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

// Bounds, centres and radii of `boxes` boxes from `first` on, the boxes of one level, from their children.
extern "C" __global__ void plane_shrink(u32 first, u32 boxes, Bounds* bounds, double2* center, double* radius) {
  const u32 k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k >= boxes) return;
  const u32 box = first + k, child = 4 * box + 1;
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
