// Edges of one kind sorted by operator, and lists of boxes.
//
// Defined in front: FAMILIES and TABLE_WARPS, the families and warps of a block of `end_table`.

#include "shared/boxes.cuh"
#include "shared/slots.cuh"
#include "shared/task.cuh"

#define M2M 0
#define L2L 1

// For each edge of M2M or L2L: the receiving box, and the number of its operator, 8 · (level of the child) + octant
// of the child. An edge that does not join a box and its child sets `refused` to its receiver. One warp per box.
extern "C" __global__ void edge_keys(const Boxes* boxes, const u8* octants, u32 count, u32 kind, const u64* starts,
                                     const u32* sources, u64* keys, u32* targets, u32* refused) {
  const Boxes t = *boxes;
  const u32 b = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (b >= count) return;
  for (u64 e = starts[b] + lane_id(); e < starts[b + 1]; e += 32) {
    const u32 s = sources[e];
    targets[e] = b;
    const u32 child = kind == M2M ? s : b;
    if (t.parent[child] != (kind == M2M ? b : s)) atomicMin(refused, b);
    keys[e] = 8ull * t.level[child] + octants[child];
  }
}

// to[i] = from[order[i]].
extern "C" __global__ void take(const u32* from, const u32* order, u64 n, u32* to) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] = from[order[i]];
}

// The first edge of each operator: starts[k] is the position of the first key ≥ k, for k = 0 … operators. Keys are
// sorted.
extern "C" __global__ void key_starts(const u64* keys, u64 n, u32 operators, u64* starts) {
  const u32 k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k > operators) return;
  starts[k] = first_at_least(keys, n, k);
}

// Flags of the boxes that receive an edge of one of up to three kinds; then the list of flagged boxes. starts: prefix
// sums of the flags.
extern "C" __global__ void with_edges(u32 count, const u64* a, const u64* b, const u64* c, u32* flags) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) flags[i] = a[i] < a[i + 1] || b[i] < b[i + 1] || c[i] < c[i + 1];
}

// Flags of the boxes that are sources of edges (`flags` must be zeros before); then for each edge the number of flagged
// boxes before its source. starts: prefix sums of the flags.
extern "C" __global__ void source_flags(const u32* sources, u64 n, u32* flags) {
  const u64 e = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (e < n) flags[sources[e]] = 1;
}
extern "C" __global__ void source_numbers(const u32* sources, u64 n, const u64* starts, u32* numbers) {
  const u64 e = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (e < n) numbers[e] = (u32)starts[sources[e]];
}

// Keys that sort leaves by piece, and within a piece by falling number of targets, in units of `grain`. A leaf belongs
// to piece k if its first target is one of k · each … (k + 1) · each - 1.
extern "C" __global__ void size_keys(const Boxes* boxes, const u32* items, u32 count, u32 grain, u32 most, u32 each,
                                     u64* keys) {
  const Boxes t = *boxes;
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const u64 piece = t.target_range[items[i]].x / each;
  keys[i] = piece * (most + 1) + most - min((targets_in(t, items[i]) + grain - 1) / grain, most);
}

// For each leaf the number of its tasks (task.cuh) and of its rows of partial sums, 0 behind the last of `count` leaves. A
// row holds the partial sums of one target over one part; the first part has no rows. starts: the first edge of each box.
extern "C" __global__ void task_counts(const Boxes* boxes, const u32* items, u32 count, const u64* starts, u32 grain,
                                       u32 most, u32 part, u32 room, u32* tasks, u32* rows) {
  const Boxes t = *boxes;
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= room) return;
  u64 all = 0, others = 0;
  if (i < count) {
    const u32 b = items[i], targets = targets_in(t, b);
    const u64 parts = parts_of(starts[b + 1] - starts[b], part);
    all = groups_of(targets, grain, most).count * parts, others = targets * (parts - 1);
  }
  // Numbers that are too large stay so, and the host refuses their sum.
  tasks[i] = (u32)min(all, 0xffffffffull), rows[i] = (u32)min(others, 0xffffffffull);
}

// The tasks of `count` leaves. tasks_before, rows_before: the numbers of tasks and rows before each leaf. Those before
// the first leaf are subtracted.
extern "C" __global__ void task_fill(const Boxes* boxes, const u32* items, u32 count, const u64* starts, u32 grain,
                                     u32 most, u32 part, const u64* tasks_before, const u64* rows_before, Task* tasks) {
  const Boxes t = *boxes;
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const u32 b = items[i], parts = parts_of(starts[b + 1] - starts[b], part);
  const Groups groups = groups_of(targets_in(t, b), grain, most);
  Task* to = tasks + (tasks_before[i] - tasks_before[0]);
  u32 row = (u32)(rows_before[i] - rows_before[0]);
  for (u32 g = 0; g < groups.count; ++g) {
    const u32 n = length(targets_of_group(t.target_range[b], groups, g));
    for (u32 k = 0; k < parts; ++k) {
      *to++ = {b, g, (u16)k, (u16)parts, k ? row : NONE};
      row += k ? n : 0;
    }
  }
}

// Adds the partial sums of each group, of `width` numbers a target, to its values, in the order of parts, and clears them
// for the next sums. There is one warp per task. That of part 1 adds all parts of its group, the others do nothing.
extern "C" __global__ void join_parts(const Boxes* boxes, const Task* tasks, u32 count, u32 grain, u32 most, u32 width,
                                      double* partial, u32 held, double* values) {
  const Boxes t = *boxes;
  if (warp_index() >= count) return;
  const Task task = tasks[warp_index()];
  if (task.part != 1) return;
  const uint2 range = targets_of(t, task.leaf);
  const uint2 group = targets_of_group(range, groups_of(length(range), grain, most), task.group);
  const u32 n = length(group) * width;
  double *from = partial + (u64)width * task.row, *to = values + (u64)width * (group.x - held);
  for (u32 i = lane_id(); i < n; i += 32) {
    double sum = to[i];
    for (u32 k = 0; k + 1 < task.parts; ++k) sum += from[(u64)n * k + i], from[(u64)n * k + i] = 0;
    to[i] = sum;
  }
}

// The largest number of targets in a leaf; must be zero before.
extern "C" __global__ void largest_leaf(const Boxes* boxes, u32 count, u32* largest) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b < count && is_leaf(t, b)) atomicMax(largest, targets_in(t, b));
}

// The first target of each piece at which a leaf with targets begins; must be the largest number before.
extern "C" __global__ void piece_starts(const Boxes* boxes, u32 count, u32 each, u32* firsts) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= count || !is_leaf(t, b) || targets_in(t, b) == 0) return;
  const u32 first = t.target_range[b].x;
  atomicMin(firsts + first / each, first);
}

// Flags of the boxes that have children.
extern "C" __global__ void inner_flags(const Boxes* boxes, u32 count, u32* flags) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b < count) flags[b] = !is_leaf(t, b);
}

// Flags of the boxes whose children send along edges, and of those whose children receive (zeros before). One warp per
// box.
extern "C" __global__ void family_flags(const Boxes* boxes, u32 count, const u64* starts, const u32* sources, u32* sends,
                                        u32* receives) {
  const Boxes t = *boxes;
  const u32 b = warp_index();
  if (b >= count || starts[b] == starts[b + 1]) return;
  if (lane_id() == 0) receives[t.parent[b]] = 1;
  for (u64 e = starts[b] + lane_id(); e < starts[b + 1]; e += 32) sends[t.parent[sources[e]]] = 1;
}

// The ends of M2L in a family, the children of one box: the 26 domains of fmm-tree/src/domains.rs, of which the first
// eight are the children, and the family as a whole. Tables are made in src/domains.rs.
#define CHILDREN 8
#define WHOLE 26
#define ENDS 27

// What the ends are made from, for each of them.
struct Ends {
  // numbers[end · SLOTS + slot]: the operator, or NONE.
  const u32* numbers;
  // first[slot · 256 + children]: the first of the domains that cover these children.
  const u8* first;
  // The children of each end, as bits.
  const u8* members;
};
static_assert(sizeof(Ends) == 3 * 8, "the host sends three addresses");

// The sources around one family. By slot: the source box plus 1, and the ends that want it: one bit per child, the next
// bit for the whole family.
struct Around {
  u32 source[SLOTS], wanted[SLOTS];
  // Edges into the children up to and including each, and the octants of the children.
  u32 behind[CHILDREN], octant[CHILDREN];
  // With this gap the size is 2 words more than a multiple of 32. A warp of `end_table` reads two slots of 16 families, and these
  // 32 words lie in different banks of shared memory.
  u32 gap[2];
};
static_assert(sizeof(Around) / 4 % 32 == 2, "banks");

// The slot of box s relative to box p, one level above. SLOTS for any other box.
__device__ __forceinline__ u32 slot_of(const Boxes& t, u32 p, u32 s) {
  bool inside = t.level[s] == t.level[p] + 1;
  u32 slot = 0;
  for (int a = 0; a < 3; ++a) {
    const long long at = (long long)(2 * t.anchor[3ull * p + a] - t.anchor[3ull * s + a]) + 3;
    inside &= at >= 0 && at < SIDE;
    slot = SIDE * slot + (u32)at;
  }
  return inside ? slot : SLOTS;
}

// Edges that a lane reads at a time.
#define TOGETHER 4

// Collects the M2L edges into the family of box p, with one warp. An edge without an operator sets `refused` to its
// receiver.
__device__ void collect(const Boxes& t, const u8* octants, const Ends& ends, u32 p, const u64* starts, const u32* sources,
                        Around& around, u32* refused) {
  for (u32 i = lane_id(); i < SLOTS; i += 32) around.source[i] = NOBODY, around.wanted[i] = 0;
  // The rows of the children lie behind each other.
  const u32 child = t.child_start[p], last = t.child_count[p] - 1;
  const u64 start = starts[child];
  if (lane_id() < CHILDREN) {
    const u32 c = child + min(lane_id(), last);
    around.behind[lane_id()] = (u32)(starts[c + 1] - start);
    around.octant[lane_id()] = octants[c];
  }
  __syncwarp();
  auto put = [&](u32 b, u32 end, u32 s, u32 level, u32 slot) {
    // A box receives from its own level as a child, and from the level below as a family.
    const bool other = end == WHOLE ? level == t.level[b] && b > 0 : level == t.level[b] + 1 && !is_leaf(t, b);
    if (other) return;
    if (slot == SLOTS || ends.numbers[end * SLOTS + slot] == NONE) {
      atomicMin(refused, b);
      return;
    }
    around.source[slot] = s + 1;
    atomicOr(&around.wanted[slot], 1u << (end == WHOLE ? CHILDREN : end));
  };
  // Reads of several edges are under way at a time.
  const u32 edges = around.behind[CHILDREN - 1];
  for (u32 first = lane_id(); first < edges; first += 32 * TOGETHER) {
    u32 source[TOGETHER], level[TOGETHER], slot[TOGETHER];
#pragma unroll
    for (u32 i = 0; i < TOGETHER; ++i) source[i] = sources[start + min(first + 32 * i, edges - 1)];
#pragma unroll
    for (u32 i = 0; i < TOGETHER; ++i) level[i] = t.level[source[i]], slot[i] = slot_of(t, p, source[i]);
#pragma unroll
    for (u32 i = 0; i < TOGETHER; ++i) {
      const u32 e = first + 32 * i;
      u32 k = 0;
      for (u32 c = 0; c < CHILDREN - 1; ++c) k += e >= around.behind[c];
      if (e < edges) put(child + k, around.octant[k], source[i], level[i], slot[i]);
    }
  }
  for (u64 e = starts[p] + lane_id(); e < starts[p + 1]; e += 32) {
    const u32 s = sources[e];
    put(p, WHOLE, s, t.level[s], slot_of(t, p, s));
  }
  __syncwarp();
}

// Calls visit(end) for each translation from a slot into a family.
template <class Visit>
__device__ __forceinline__ void for_each_end(const Around& around, const Ends& ends, u32 slot, Visit visit) {
  u32 wanted = around.wanted[slot];
  if (wanted >> CHILDREN) visit(WHOLE);
  for (wanted &= (1u << CHILDREN) - 1; wanted != 0;) {
    const u32 end = ends.first[256 * slot + wanted];
    wanted &= ~(u32)ends.members[end];
    visit(end);
  }
}

#define WARPS 4

// The place that contains a slot, of the 27 places around the parent of a family, its own included.
__device__ __forceinline__ u32 place_of(u32 slot) {
  const u32 x = slot / (SIDE * SIDE), y = slot / SIDE % SIDE, z = slot % SIDE;
  return 9 * (x / 2) + 3 * (y / 2) + z / 2;
}

// The number of words that `kept` has for each family: the sources of all slots, then the masks `wanted` of slot i (low half) and
// of slot i + SLOTS / 2 (high half) in one word.
#define KEPT (SLOTS + SLOTS / 2)

// Collects the M2L edges into each family, for `end_table`. used[f]: bit e is set if end e of family f receives an edge.
// keys[f], by which families are sorted: bit k is set if a child of the box in place k sends to the family. One warp per
// family, WARPS per block.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    family_edges(const Boxes* boxes, const u8* octants, const Ends* table, const u32* parents, u32 families,
                 const u64* starts, const u32* sources, u32* kept, u32* used, u64* keys, u32* refused) {
  __shared__ Around around[WARPS];
  const Boxes t = *boxes;
  const Ends ends = *table;
  const u32 f = blockIdx.x * WARPS + threadIdx.x / 32;
  if (f >= families) return;
  Around& mine = around[threadIdx.x / 32];
  collect(t, octants, ends, parents[f], starts, sources, mine, refused);
  u32* to = kept + (u64)KEPT * f;
  u32 own = 0, places = 0;
  for (u32 slot = lane_id(); slot < SLOTS; slot += 32) {
    for_each_end(mine, ends, slot, [&](u32 end) { own |= 1u << end; });
    if (mine.wanted[slot]) places |= 1u << place_of(slot);
    to[slot] = mine.source[slot];
  }
  for (u32 i = lane_id(); i < SLOTS / 2; i += 32) to[SLOTS + i] = mine.wanted[i] | mine.wanted[i + SLOTS / 2] << 16;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    own |= __shfl_xor_sync(~0u, own, d);
    places |= __shfl_xor_sync(~0u, places, d);
  }
  if (lane_id() == 0) used[f] = own, keys[f] = places;
}

// flags[end · families + f]: whether that end of the family in place f receives an M2L edge. order[f]: the number of this family
// in `used`, which `family_edges` has written; null if all families have their own places.
extern "C" __global__ void end_flags(const u32* used, const u32* order, u32 families, u32* flags) {
  const u32 f = blockIdx.x * blockDim.x + threadIdx.x;
  if (f >= families) return;
  const u32 own = used[order ? order[f] : f];
  for (u32 end = 0; end < ENDS; ++end) flags[(u64)end * families + f] = own >> end & 1;
}

// The child of box p in an octant.
__device__ __forceinline__ u32 child_in(const Boxes& t, const u8* octants, u32 p, u32 octant) {
  u32 c = t.child_start[p];
  while (octants[c] != octant) ++c;
  return c;
}

static_assert(32 * TABLE_WARPS % FAMILIES == 0, "a thread keeps its family from slot to slot");

// The items: places[end · families + f] is the item of an end. rows[item]: the row of the locals that it receives,
// which is that of a box, or from row `count` on that of a domain. owners[item]: its family. table[slot · items +
// item]: the source in a slot, plus 1; the table must be filled with NOBODY before. `parents`, `flags` and `places` are in
// the order of places, `kept` in that of `family_edges`. FAMILIES and TABLE_WARPS per block.
extern "C" __global__ void __launch_bounds__(32 * TABLE_WARPS)
    end_table(const Boxes* boxes, const u8* octants, const Ends* ends_table, const u32* parents, u32 families,
              const u32* order, const u32* kept, const u32* flags, const u64* places, u32 items, u32 count, u32* rows,
              u32* owners, u32* table) {
  __shared__ Around around[FAMILIES];
  const Boxes t = *boxes;
  const Ends ends = *ends_table;
  const u32 begin = blockIdx.x * FAMILIES, here = min(families - begin, FAMILIES), own = lane_id();
  for (u32 k = threadIdx.x / 32; k < here; k += TABLE_WARPS) {
    const u32 f = begin + k, p = parents[f];
    const u32* from = kept + (u64)KEPT * (order ? order[f] : f);
    for (u32 slot = own; slot < SLOTS; slot += 32) around[k].source[slot] = from[slot];
    for (u32 i = own; i < SLOTS / 2; i += 32) {
      const u32 wanted = from[SLOTS + i];
      around[k].wanted[i] = wanted & 0xffff;
      around[k].wanted[i + SLOTS / 2] = wanted >> 16;
    }
    if (own >= ENDS || !flags[(u64)own * families + f]) continue;
    const u32 item = (u32)places[(u64)own * families + f], first = (u32)places[(u64)CHILDREN * families];
    rows[item] = own < CHILDREN ? child_in(t, octants, p, own) : own == WHOLE ? p : count + item - first;
    owners[item] = f;
  }
  __syncthreads();
  // Items of neighbouring families lie beside each other, so neighbouring lanes write them.
  const u32 k = threadIdx.x % FAMILIES;
  if (k >= here) return;
  for (u32 slot = threadIdx.x / FAMILIES; slot < SLOTS; slot += 32 * TABLE_WARPS / FAMILIES)
    for_each_end(around[k], ends, slot, [&](u32 end) {
      table[(u64)slot * items + places[(u64)end * families + begin + k]] = around[k].source[slot];
    });
}

// The edges from the locals of domains to those of their members, starts[group] … of each group of a kind of domain and
// an octant. domains[group]: the domain. One thread per edge.
extern "C" __global__ void end_members(const Boxes* boxes, const u8* octants, const u32* parents, u32 families,
                                       const u64* places, const u32* rows, const u32* owners, const u64* starts,
                                       const u32* domains, u32 groups, u32* from, u32* to) {
  const u64 e = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (e >= starts[groups]) return;
  u32 group = 0;
  while (e >= starts[group + 1]) ++group;
  const u64 item = places[(u64)domains[group] * families] + (e - starts[group]);
  from[e] = rows[item];
  to[e] = child_in(*boxes, octants, parents[owners[item]], group % CHILDREN);
}
