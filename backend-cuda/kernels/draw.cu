// Draws of leaves by their weights, and normal strengths, for the sample of a probe. Twin of
// src/probe/{on_host,kind,sources,draw}.rs, which define kinds, weights, chances, units and strengths. Compiled without fused
// multiply-adds, so that strengths, and weights in units, have the bits of the host.
//
// A row of leaves has for each leaf a weight in units of 2^-40, as a number of 128 bits in four columns of 32 bits. The
// prefix sums of each column (scan.cu) are exact, and together they are the prefix sums of the weights. The leaf at a
// place in the row is found by bisection.
//
// Defined in front: PYRAMID (shared/tree.cuh).

#include "shared/random.cuh"
#include "shared/tree.cuh"

// The kind of a box that is not drawn, above all others.
#define NO_KIND 0xffffffull

// The prefix sums of the columns of a row.
struct Ends {
  const u64 *c0, *c1, *c2, *c3;
};

// A number of 128 bits.
struct Wide {
  u64 low, high;
  __device__ bool operator<=(const Wide& other) const {
    return high < other.high || (high == other.high && low <= other.low);
  }
};

// The sum of the first i weights.
__device__ __forceinline__ Wide sum_below(const Ends& ends, u64 i) {
  Wide sum = {ends.c0[i], ends.c2[i] + (ends.c3[i] << 32)};
  const u64 second = ends.c1[i] << 32;
  sum.low += second;
  sum.high += (ends.c1[i] >> 32) + (sum.low < second ? 1 : 0);
  return sum;
}

// A weight in units, at most 2^95 of them; what is not a number, or negative, counts as 0.
__device__ __forceinline__ Wide units_of(double weight) {
  const double two_64 = 18446744073709551616.0, units = weight * 1099511627776.0;
  if (!(units > 0)) return {0, 0};
  if (units < two_64) return {(u64)units, 0};
  const double most = fmin(units, two_64 * 2147483648.0), high = floor(most / two_64);
  return {(u64)(most - high * two_64), (u64)high};
}

// Writes a weight in units into entry i of four columns.
__device__ __forceinline__ void put(Wide units, u64 i, u32* c0, u32* c1, u32* c2, u32* c3) {
  c0[i] = (u32)units.low;
  c1[i] = (u32)(units.low >> 32);
  c2[i] = (u32)units.high;
  c3[i] = (u32)(units.high >> 32);
}

// The sum of the weights of `points` points of a leaf, whose powers of rho have the sum `corners` and a mean over all
// points; a mean of 0: all weights are 1.
__device__ __forceinline__ double weight_of(u32 points, double corners, double mean) {
  return mean > 0 ? 0.5 * points + 0.5 * corners / mean : (double)points;
}

__device__ __forceinline__ bool is_target(const Tree& t, u32 b) { return is_leaf(t, b) && length(targets_of(t, b)) > 0; }
__device__ __forceinline__ bool is_source(const Tree& t, u32 b) { return is_leaf(t, b) && length(sources_of(t, b)) > 0; }

// For each leaf with targets the number of its M2L, M2P and P2P edges (Incoming::edges), plus 1; 0 for other boxes. `brief`
// as of cut.cu. Adds the number of these leaves to *leaves.
extern "C" __global__ void edges_of_leaves(const Tree* tree, u32 count, const u32* brief, u64* edges, u32* leaves) {
  const Tree t = *tree;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  const bool mine = b < count && is_target(t, b);
  if (b < count) edges[b] = mine ? brief[b] / 8 + 1 : 0;
  const u32 found = __popc(__ballot_sync(~0u, mine));
  if (lane_id() == 0 && found > 0) atomicAdd(leaves, found);
}

// The kind of each leaf with targets: its level, population and traits, as Kind::code; NO_KIND for other boxes. `edges` are
// those of `edges_of_leaves`, sorted.
extern "C" __global__ void kinds(const Tree* tree, u32 count, const u32* brief, const u64* edges, const u32* leaves,
                                 u64 all_targets, u64* kinds) {
  const Tree t = *tree;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count) return;
  if (!is_target(t, b)) {
    kinds[b] = NO_KIND;
    return;
  }
  const u64 mean = all_targets / *leaves, targets = length(targets_of(t, b));
  // One edge more than the leaf at the 98 % point has.
  const u64 most = edges[count - 1 - (*leaves - 1) / 50];
  const u32 here = brief[b];
  const u32 population = (4 * targets >= mean ? 1 : 0) + (targets > 4 * max(mean, (u64)1) ? 1 : 0);
  const u32 traits = (here & 3) | (here / 8 + 1 > most ? 4 : 0) | (here & 4 ? 8 : 0) |
                     (length(sources_of(t, b)) == 0 ? 16 : 0);
  kinds[b] = (u64)level_at(t, b) << 16 | population << 8 | traits;
}

// The weights of the targets of the leaves of a row, and their numbers. `factors`: one for each box, or null.
extern "C" __global__ void weights_by_kind(const Tree* tree, u32 count, const u64* kinds, const u32* row,
                                           const double* corners, double mean, const double* factors, u32* c0, u32* c1,
                                           u32* c2, u32* c3, u32* targets) {
  const Tree t = *tree;
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  Wide units = {0, 0};
  u32 points = 0;
  if (kinds[i] != NO_KIND) {
    const u32 b = row[i];
    points = length(targets_of(t, b));
    units = units_of((factors ? factors[b] : 1.0) * weight_of(points, corners[b], mean));
  }
  put(units, i, c0, c1, c2, c3);
  targets[i] = points;
}

// The classes of a sorted row: found[0] is their number; then five numbers for each, in any order: its code, the index one
// past its last leaf, the sum of the weights up to there (low and high half), and that of the targets.
extern "C" __global__ void classes(const u64* kinds, u32 count, const u64* e0, const u64* e1, const u64* e2,
                                   const u64* e3, const u64* targets, u64* found) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count || kinds[i] == NO_KIND || (i + 1 < count && kinds[i + 1] == kinds[i])) return;
  u64* mine = found + 1 + 5 * atomicAdd(found, 1ull);
  const Wide sum = sum_below({e0, e1, e2, e3}, i + 1);
  mine[0] = kinds[i];
  mine[1] = i + 1;
  mine[2] = sum.low;
  mine[3] = sum.high;
  mine[4] = targets[i + 1];
}

// Marks with 1 the boxes in the P2P rows of some leaves and of the boxes above them, and with 2 those in the M2L, M2P and
// P2L rows of the leaves. One warp works on a leaf.
extern "C" __global__ void mark_rows(const Tree* tree, const u32* leaves, u32 count, const u64* p2p, const u64* m2l,
                                     const u64* m2p, const u64* p2l, const u32* p2p_sources, const u32* m2l_sources,
                                     const u32* m2p_sources, const u32* p2l_sources, u32* marks) {
  const Tree t = *tree;
  const u32 i = warp_index();
  if (i >= count) return;
  auto mark = [&](const u64* starts, const u32* sources, u32 b, u32 bit) {
    for (u64 e = starts[b] + lane_id(); e < starts[b + 1]; e += 32) atomicOr(&marks[sources[e]], bit);
  };
  for (u32 b = leaves[i];; b = parent_of(t, b)) {
    mark(p2p, p2p_sources, b, 1);
    if (b == 0) break;
  }
  mark(m2l, m2l_sources, leaves[i], 2);
  mark(m2p, m2p_sources, leaves[i], 2);
  mark(p2l, p2l_sources, leaves[i], 2);
}

// Gives each box the marks of all boxes above it, too.
extern "C" __global__ void mark_below(const Tree* tree, u32 count, const u32* marks, u32* below) {
  const Tree t = *tree;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count) return;
  u32 mine = marks[b];
  for (u32 box = b; box != 0;) {
    box = parent_of(t, box);
    mine |= marks[box];
  }
  below[b] = mine;
}

// The weights of the sources of each leaf, and after them, in the columns d0 to d3, those of the leaves with mark 2.
extern "C" __global__ void weights_of_sources(const Tree* tree, u32 count, const double* corners, double mean,
                                              const u32* marks, u32* c0, u32* c1, u32* c2, u32* c3, u32* d0, u32* d1,
                                              u32* d2, u32* d3) {
  const Tree t = *tree;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count) return;
  const Wide none = {0, 0};
  const Wide units = is_source(t, b) ? units_of(weight_of(length(sources_of(t, b)), corners[b], mean)) : none;
  put(units, b, c0, c1, c2, c3);
  put(marks[b] & 2 ? units : none, b, d0, d1, d2, d3);
}

// The chance with which each leaf with sources is drawn, in units: Chances::of. `share` and `share_of_close` are the
// expected numbers of draws for each unit of weight. With `takes_near`, leaves with mark 1 are not drawn.
extern "C" __global__ void chances(const Tree* tree, u32 count, const double* corners, double mean, const u32* marks,
                                   double share, double share_of_close, u32 of_a_leaf, u32 takes_near, u32* c0,
                                   u32* c1, u32* c2, u32* c3) {
  const Tree t = *tree;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count) return;
  Wide units = {0, 0};
  if (is_source(t, b) && !(takes_near && (marks[b] & 1))) {
    const u32 sources = length(sources_of(t, b));
    const double all = marks[b] & 2 ? share + share_of_close : share;
    const double expected = all * weight_of(sources, corners[b], mean);
    const double picks = fmin((double)sources, fmax((double)of_a_leaf, ceil(expected)));
    units = units_of(fmin(expected / picks, 1.0));
  }
  put(units, b, c0, c1, c2, c3);
}

// The boxes at some places of a row of n weights. A place is a distance from the start of the row, in units; `places` has its
// low and its high 64 bits. The row has the boxes `row`, or all boxes if that is null.
extern "C" __global__ void drawn(const u64* e0, const u64* e1, const u64* e2, const u64* e3, u32 n, const u32* row,
                                 const u64* places, u32 count, u32* boxes) {
  const u32 k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k >= count) return;
  const Ends ends = {e0, e1, e2, e3};
  const Wide place = {places[2 * k], places[2 * k + 1]};
  // The first leaf that ends behind the place.
  u32 low = 0, high = n - 1;
  while (low < high) {
    const u32 middle = low + (high - low) / 2;
    if (sum_below(ends, middle + 1) <= place)
      low = middle + 1;
    else
      high = middle;
  }
  boxes[k] = row ? row[low] : low;
}

// Whether each box is a leaf with sources and mark 1, or any leaf with sources.
extern "C" __global__ void source_leaves(const Tree* tree, u32 count, const u32* marks, u32 any, u32* flags) {
  const Tree t = *tree;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b < count) flags[b] = is_source(t, b) && (any || (marks[b] & 1)) ? 1 : 0;
}

// What a probe asks of some boxes. Six words for each: its number, the start and end of its sources, the start and end of
// its targets, and its marks. Six numbers for each: its centre, its side, and its entries of `corners` and `factors`. An end
// is one past the last point. `marks`, `corners` and `factors` may be null.
extern "C" __global__ void facts(const Tree* tree, const u32* boxes, u32 count, const u32* marks, const double* corners,
                                 const double* factors, u32* words, double* numbers) {
  const Tree t = *tree;
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const u32 b = boxes[i];
  const uint2 sources = sources_of(t, b), targets = targets_of(t, b);
  const Frame frame = frame_of(t, b);
  u32* own = words + 6ull * i;
  own[0] = b;
  own[1] = sources.x;
  own[2] = sources.y;
  own[3] = targets.x;
  own[4] = targets.y;
  own[5] = marks ? marks[b] : 0;
  double* mine = numbers + 6ull * i;
  for (int a = 0; a < 3; ++a) mine[a] = frame.center[a];
  mine[3] = frame.side;
  mine[4] = corners ? corners[b] : 0;
  mine[5] = factors ? factors[b] : 1;
}

// Normal strengths, set by set, of `count` sources with `components` numbers each: those of `Sources::normal` in the probe
// of the crate fmm. One thread per number.
extern "C" __global__ void normal_strengths(const u64* seeds, u32 sets, const double* probability, u32 count,
                                            u32 components, double* strengths) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x, length = (u64)count * components;
  if (i >= sets * length) return;
  const u64 number = i % length;
  Rng rng(seeds[i / length], 2 * number);
  strengths[i] = 1.0 / sqrt(probability[number / components]) * rng.binomial();
}
