// M2L by dense matrices, one for each offset between two boxes of a level: the matrices, the table of who is at
// which offset, and the products.
//
// In front of this file: REAL.

#include "shared/boxes.cuh"
#include "shared/offset.cuh"
#include "shared/product.cuh"

// Offsets of one octant: target minus source is in -3 … 2 on an axis where the target is the lower half of
// its parent, in -2 … 3 where it is the upper half.
#define SIDE 6
#define SLOTS (SIDE * SIDE * SIDE)
// In the table, which holds the number of a box plus 1.
#define NOBODY 0

// table[slot · count + i]: the source box at an offset from items[i]. The table comes filled with NOBODY. An edge
// between boxes at any other offset raises `refused`. A warp an item.
extern "C" __global__ void m2l_table(const Boxes* boxes, const u8* octants, const u32* items, u32 count,
                                     const u64* starts, const u32* sources, u32* table, u32* refused) {
  const Boxes t = *boxes;
  const u32 i = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (i >= count) return;
  const u32 b = items[i];
  for (u64 e = starts[b] + lane_id(); e < starts[b + 1]; e += 32) {
    const u32 s = sources[e];
    int d[3];
    u32 slot = 0;
    bool good = t.level[b] == t.level[s];
    for (int a = 0; a < 3; ++a) {
      const long long difference = (long long)(t.anchor[3ull * b + a] - t.anchor[3ull * s + a]);
      d[a] = (int)min(max(difference, -9ll), 9ll);
      const int at = d[a] + 3 - (octants[b] >> a & 1);
      good = good && at >= 0 && at < SIDE;
      slot = SIDE * slot + at;
    }
    if (good && offset_index(d) < OFFSETS)
      table[(u64)slot * count + i] = s + 1;
    else
      atomicMin(refused, b);
  }
}

// What an item is sorted by: the set of operators of its level, and its octant.
extern "C" __global__ void m2l_keys(const Boxes* boxes, const u8* octants, const u32* sets, const u32* items, u32 count,
                                    u64* keys) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) keys[i] = 8ull * sets[boxes->level[items[i]]] + octants[items[i]];
}

// A block: EDGE rows of EDGE items by four warps, each a quarter: 2 × 4 products of 16 × 8.
#define EDGE 64
#define THREADS 128
#define DEPTH 8
#define BUFFERS 4
// Lengths of rows in shared memory for which the reads of a warp fall into distinct banks.
#define A_ROW (EDGE + (sizeof(REAL) == 4 ? 8 : 4))
#define B_ROW (DEPTH + 4)

// Two numbers into shared memory, zeros unless `there`, without waiting for them.
__device__ __forceinline__ void copy_two(REAL* to, const REAL* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
               "n"(2 * sizeof(REAL)), "r"(there ? (u32)(2 * sizeof(REAL)) : 0u)
               : "memory");
}

// out[boxes[i]] += the sum over slots of the matrix of the offset times in[table[slot · items + i]], for the items
// of one set: those of octant o are starts[o] … starts[o + 1]. A block finds its octant and keeps its sums in
// registers over all slots. Matrices are `rows` × `columns`, column by column, both even. In f32 each slot is
// summed apart: the tensor cores do not round sums but cut them.
extern "C" __global__ void __launch_bounds__(THREADS, sizeof(REAL) == 4 ? 4 : 3)
    m2l(const REAL* matrices, u32 rows, u32 columns, const REAL* in, const u32* table, u32 items, const u32* boxes,
        const u64* starts, REAL* out) {
  __shared__ alignas(16) REAL a[BUFFERS][DEPTH][A_ROW], b[BUFFERS][EDGE][B_ROW];
  __shared__ u32 used[SLOTS + 1];
  constexpr bool apart = sizeof(REAL) == 4;
  const u32 warp = threadIdx.x / 32, first_row = blockIdx.y * EDGE;
  u32 octant = 0, tile = blockIdx.x;
  for (;; ++octant) {
    const u32 tiles = (u32)((starts[octant + 1] - starts[octant] + EDGE - 1) / EDGE);
    if (tile < tiles) break;
    tile -= tiles;
  }
  const u32 first = (u32)starts[octant] + tile * EDGE, end = min(first + EDGE, (u32)starts[octant + 1]);

  // Slots with a source for any of the items.
#pragma unroll 6
  for (u32 slot = warp; slot < SLOTS; slot += THREADS / 32) {
    const u32* at = table + (u64)slot * items + first;
    u32 somebody = 0;
    for (u32 i = lane_id(); i < EDGE; i += 32)
      if (first + i < end) somebody |= at[i];
    somebody = __any_sync(~0u, somebody != NOBODY);
    if (lane_id() == 0) used[slot] = somebody;
  }
  __syncthreads();
  if (warp == 0) {
    u32 count = 0;
    for (u32 base = 0; base < SLOTS; base += 32) {
      const u32 slot = base + lane_id();
      const bool mine = slot < SLOTS && used[slot];
      const u32 all = __ballot_sync(~0u, mine);
      if (mine) used[count + __popc(all & lanes_below())] = slot;
      count += __popc(all);
      __syncwarp();
    }
    if (lane_id() == 0) used[SLOTS] = count;
  }
  __syncthreads();
  const u32 count = used[SLOTS], depths = (columns + DEPTH - 1) / DEPTH, steps = count * depths;

  // What is copied next, and what this thread copies: of one item, and of the matrix.
  const u32 item = threadIdx.x / 2, part = threadIdx.x % 2 * 2, row = threadIdx.x % 32 * 2;
  const bool row_there = first_row + row < rows;
  u32 place = 0, k = 0, source = NOBODY;
  const REAL *from = in, *matrix = matrices;
  auto copy = [&](u32 buffer) {
    if (place < count) {
      if (k == 0) {
        const u32 slot = used[place];
        int d[3] = {(int)(slot / (SIDE * SIDE)), (int)(slot / SIDE % SIDE), (int)(slot % SIDE)};
        for (int x = 0; x < 3; ++x) d[x] += (int)(octant >> x & 1) - 3;
        source = first + item < end ? table[(u64)slot * items + first + item] : NOBODY;
        from = in + (u64)(source == NOBODY ? 0 : source - 1) * columns;
        matrix = matrices + (u64)offset_index(d) * rows * columns + first_row;
      }
#pragma unroll
      for (int i = 0; i < DEPTH / 4; ++i) {
        const u32 c = warp + 4 * i, e = part + 4 * i;
        const bool a_there = row_there && k + c < columns, b_there = source != NOBODY && k + e < columns;
        copy_two(&a[buffer][c][row], a_there ? matrix + (u64)(k + c) * rows + row : matrices, a_there);
        copy_two(&b[buffer][item][e], b_there ? from + k + e : in, b_there);
      }
      k += DEPTH;
      if (k >= columns) k = 0, ++place;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };

  REAL sum[2][4][4] = {}, total[2][4][4] = {};
  const u32 g = lane_id() / 4, t = lane_id() % 4, my_row = warp % 2 * 32 + g, my_item = warp / 2 * 32;
  for (u32 i = 0; i + 1 < BUFFERS; ++i) copy(i);
  for (u32 step = 0, depth = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(BUFFERS - 2) : "memory");
    __syncthreads();
    copy((step + BUFFERS - 1) % BUFFERS);
    const u32 buffer = step % BUFFERS;
    REAL x[2][4], y[4][2];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int e = i % 4;
      x[i / 4][e] = a[buffer][t + e / 2 * 4][my_row + i / 4 * 16 + e % 2 * 8];
      y[i / 2][i % 2] = b[buffer][my_item + i / 2 * 8 + g][t + i % 2 * 4];
    }
    add_products(sum, x, y);
    if (++depth == depths) {
      depth = 0;
      if (apart)
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          total[i / 16][i / 4 % 4][i % 4] += sum[i / 16][i / 4 % 4][i % 4];
          sum[i / 16][i / 4 % 4][i % 4] = 0;
        }
    }
  }

#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const u32 v = first + my_item + i / 4 % 4 * 8 + 2 * t + i % 2, r = first_row + my_row + i / 16 * 16 + i % 4 / 2 * 8;
    if (v < end && r < rows)
      out[(u64)boxes[v] * rows + r] += apart ? total[i / 16][i / 4 % 4][i % 4] : sum[i / 16][i / 4 % 4][i % 4];
  }
}
