// Edge lists of the pyramid by the θ-criterion (Goude & Engblom 2012, eq. 2.1), as adaptive2d/src/connect.rs: the same
// edges in the same order. A row of *strong* couplings per box goes from level to level. One warp per row. Row i of a
// level is starts[i] … ends[i] - 1. Rows of small levels have room for all boxes of the level; others are counted, then
// filled.

#include "shared/pyramid.cuh"

// Whether R + θr ≤ θ|d|, in squares. If squares underflow or overflow, boxes stay strongly coupled.
__device__ __forceinline__ bool separated(double theta, double large, double small, double dx, double dy) {
  const double square = dx * dx + dy * dy, reach = large + theta * small;
  return square > 1e-290 && square < 1.7976931348623157e308 && reach * reach <= theta * theta * square;
}
__device__ __forceinline__ bool is_weak(const Pyramid& p, double theta, u32 t, u32 s, bool exchanged) {
  const double a = p.radius[t], b = p.radius[s];
  const double small = a < b ? a : b, large = a < b ? b : a;
  const double dx = p.center[s].x - p.center[t].x, dy = p.center[s].y - p.center[t].y;
  return exchanged ? separated(theta, small, large, dx, dy) : separated(theta, large, small, dx, dy);
}

// Calls take(is there a candidate, candidate, couples weakly) for the children, with sources, of the boxes in row
// `row` of `above`; all lanes together, 32 candidates at a time.
template <class Take>
__device__ __forceinline__ void for_candidates(const Pyramid& p, double theta, u32 level, u32 t, u64 begin, u64 end,
                                               const u32* above, Take take) {
  for (u64 c = 4 * begin; c < 4 * end; c += 32) {
    const u64 mine = c + lane_id();
    u32 s = 0;
    bool there = mine < 4 * end;
    if (there) {
      s = 4 * above[mine / 4] + 1 + (u32)(mine % 4);
      there = is_filled(p.source_start, p, level, s);
    }
    take(there, s, there && is_weak(p, theta, t, s, false));
  }
}

// The row of the root: itself, if it has sources and targets.
extern "C" __global__ void plane_root(const Pyramid* pyramid, u64* starts, u64* ends, u32* strong) {
  const Pyramid p = *pyramid;
  const bool filled = is_filled(p.source_start, p, 0, 0) && is_filled(p.target_start, p, 0, 0);
  starts[0] = 0, ends[0] = filled;
  if (filled) strong[0] = 0;
}

// Fills the strong couplings of a level of few boxes, and counts the weak ones. `above` are the strong couplings of the
// level above. weak_count is indexed by box, rows by box of the level.
extern "C" __global__ void plane_couple(const Pyramid* pyramid, double theta, u32 level, const u64* starts,
                                        const u64* ends, const u32* above, u32* weak_count, u64* own_starts,
                                        u64* own_ends, u32* strong) {
  const Pyramid p = *pyramid;
  const u32 first = level_start(level), boxes = level_start(level + 1) - first, row = warp_index(), t = first + row;
  if (row >= boxes) return;
  u32 weak = 0;
  u64 at = (u64)row * boxes;
  if (lane_id() == 0) own_starts[row] = at;
  if (is_filled(p.target_start, p, level, t)) {
    for_candidates(p, theta, level, t, starts[row / 4], ends[row / 4], above, [&](bool there, u32 s, bool far) {
      weak += __popc(__ballot_sync(~0u, far));
      const u32 votes = __ballot_sync(~0u, there && !far);
      if (there && !far) strong[at + __popc(votes & lanes_below())] = s;
      at += __popc(votes);
    });
  }
  if (lane_id() == 0) weak_count[t] = weak, own_ends[row] = at;
}

// Counts weak and strong couplings of the boxes of a level.
extern "C" __global__ void plane_couple_count(const Pyramid* pyramid, double theta, u32 level, const u64* starts,
                                              const u64* ends, const u32* above, u32* weak_count,
                                              u32* strong_count) {
  const Pyramid p = *pyramid;
  const u32 first = level_start(level), t = first + warp_index();
  if (t >= level_start(level + 1)) return;
  u32 weak = 0, strong = 0;
  if (is_filled(p.target_start, p, level, t)) {
    const u32 parent = (t - first) / 4;
    for_candidates(p, theta, level, t, starts[parent], ends[parent], above, [&](bool there, u32, bool far) {
      weak += __popc(__ballot_sync(~0u, far));
      strong += __popc(__ballot_sync(~0u, there && !far));
    });
  }
  if (lane_id() == 0) weak_count[t] = weak, strong_count[t - first] = strong;
}

// Fills the strong couplings of a level.
extern "C" __global__ void plane_strong_fill(const Pyramid* pyramid, double theta, u32 level, const u64* starts,
                                             const u64* ends, const u32* above, const u64* strong_starts, u32* strong) {
  const Pyramid p = *pyramid;
  const u32 first = level_start(level), t = first + warp_index();
  if (t >= level_start(level + 1)) return;
  u64 at = strong_starts[t - first];
  if (at == strong_starts[t - first + 1]) return;
  const u32 parent = (t - first) / 4;
  for_candidates(p, theta, level, t, starts[parent], ends[parent], above, [&](bool there, u32 s, bool far) {
    const u32 votes = __ballot_sync(~0u, there && !far);
    if (there && !far) strong[at + __popc(votes & lanes_below())] = s;
    at += __popc(votes);
  });
}

// The strong couplings of a level.
struct Strong {
  const u64 *starts, *ends;
  const u32* boxes;
};

// Fills all M2L rows. `levels`: the strong couplings of each level but the last. Rows are those of all boxes.
extern "C" __global__ void plane_weak_fill(const Pyramid* pyramid, double theta, const Strong* levels,
                                           const u64* weak_starts, u32* weak) {
  const Pyramid p = *pyramid;
  const u32 t = warp_index();
  if (t == 0 || t >= p.boxes) return;
  u64 at = weak_starts[t];
  if (at == weak_starts[t + 1]) return;
  const u32 level = level_of(t), parent = (t - level_start(level)) / 4;
  const Strong above = levels[level - 1];
  for_candidates(p, theta, level, t, above.starts[parent], above.ends[parent], above.boxes, [&](bool, u32 s, bool far) {
    const u32 votes = __ballot_sync(~0u, far);
    if (far) weak[at + __popc(votes & lanes_below())] = s;
    at += __popc(votes);
  });
}

// The kind of an edge between leaves that are not weakly coupled. 0: P2P, 1: P2L, 2: M2P.
__device__ __forceinline__ u32 finest_kind(const Pyramid& p, double theta, u32 m2p_min_sources, u32 p2l_min_targets,
                                           u32 first, u32 t, u32 s) {
  // A finest strong coupling is not weak, except that of the root alone, which is at distance 0.
  if (!is_weak(p, theta, t, s, true)) return 0;
  if (p.radius[t] < p.radius[s]) {
    const uint2 own = points_of(p.target_start, t - first);
    return own.y - own.x >= p2l_min_targets ? 1 : 0;
  }
  const uint2 own = points_of(p.source_start, s - first);
  return own.y - own.x >= m2p_min_sources ? 2 : 0;
}

// Calls take(kind) for the strong couplings of the leaf of this warp, 32 at a time; kind 3 for no coupling.
template <class Take>
__device__ __forceinline__ void for_strong(const Pyramid& p, double theta, u32 m2p_min_sources, u32 p2l_min_targets,
                                           u32 first, u32 t, const u64* starts, const u64* ends, const u32* strong,
                                           Take take) {
  const u64 end = ends[t - first];
  for (u64 e = starts[t - first]; e < end; e += 32) {
    const u64 mine = e + lane_id();
    const u32 s = mine < end ? strong[mine] : 0;
    take(mine < end ? finest_kind(p, theta, m2p_min_sources, p2l_min_targets, first, t, s) : 3, s);
  }
}

// Counts the P2P, P2L and M2P edges of each leaf.
extern "C" __global__ void plane_finest_count(const Pyramid* pyramid, double theta, u32 m2p_min_sources,
                                              u32 p2l_min_targets, const u64* starts, const u64* ends,
                                              const u32* strong, u32* p2p,
                                              u32* p2l, u32* m2p) {
  const Pyramid p = *pyramid;
  const u32 first = level_start(p.depth), t = first + warp_index();
  if (t >= p.boxes) return;
  u32 count[3] = {};
  for_strong(p, theta, m2p_min_sources, p2l_min_targets, first, t, starts, ends, strong, [&](u32 kind, u32) {
#pragma unroll
    for (u32 k = 0; k < 3; ++k) count[k] += __popc(__ballot_sync(~0u, kind == k));
  });
  if (lane_id() == 0) p2p[t - first] = count[0], p2l[t - first] = count[1], m2p[t - first] = count[2];
}

// Fills the P2P, P2L and M2P rows; starts are indexed by leaf.
extern "C" __global__ void plane_finest_fill(const Pyramid* pyramid, double theta, u32 m2p_min_sources,
                                             u32 p2l_min_targets, const u64* starts, const u64* ends,
                                              const u32* strong,
                                             const u64* p2p_starts, u32* p2p, const u64* p2l_starts, u32* p2l,
                                             const u64* m2p_starts, u32* m2p) {
  const Pyramid p = *pyramid;
  const u32 first = level_start(p.depth), t = first + warp_index();
  if (t >= p.boxes) return;
  u64 at[3] = {p2p_starts[t - first], p2l_starts[t - first], m2p_starts[t - first]};
  u32* to[3] = {p2p, p2l, m2p};
  for_strong(p, theta, m2p_min_sources, p2l_min_targets, first, t, starts, ends, strong, [&](u32 kind, u32 s) {
#pragma unroll
    for (u32 k = 0; k < 3; ++k) {
      const u32 votes = __ballot_sync(~0u, kind == k);
      if (kind == k) to[k][at[k] + __popc(votes & lanes_below())] = s;
      at[k] += __popc(votes);
    }
  });
}
