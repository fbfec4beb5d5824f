// M2L by dense matrices, one per offset between two boxes of a level: the table of slots, and the products.
//
// Defined in front of this file: REAL.

#include "shared/boxes.cuh"
#include "shared/offset.cuh"
#include "shared/slots.cuh"
#include "shared/tile.cuh"

// table[slot · count + i]: the source box in a slot of items[i], plus 1. The table must be filled with NOBODY before.
// An edge with any other offset sets `refused` to its receiver. One warp per item.
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

// Sort keys of items: the set of operators of the level, then the octant.
extern "C" __global__ void m2l_keys(const Boxes* boxes, const u8* octants, const u32* sets, const u32* items, u32 count,
                                    u64* keys) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) keys[i] = 8ull * sets[boxes->level[items[i]]] + octants[items[i]];
}

// For the items i = starts[g] … starts[g + 1] − 1 of each group g of one set: out[boxes[i]] += the sum over slots of
// matrix(numbers[g · SLOTS + slot]) · in[table[slot · items + i]]. A group is an octant, or another end of M2L.
// Matrices are `rows` × `columns`, column by column, both even. A block has items of one group and keeps its sums in
// registers over all slots. If gridDim.z > 1, it sums over a part of the slots and leaves the sums in partial[(part ·
// items + item) · rows …] for m2l_join. In f32, the products of each slot are summed separately and then added, because
// the tensor cores truncate sums instead of rounding them.
extern "C" __global__ void __launch_bounds__(THREADS, sizeof(REAL) == 4 ? 4 : 3)
    m2l(const REAL* matrices, u32 rows, u32 columns, const REAL* in, const u32* table, u32 items, const u32* boxes,
        const u64* starts, const u32* numbers, REAL* out, REAL* partial) {
  __shared__ alignas(16) Matrix a[BUFFERS];
  __shared__ alignas(16) Vectors b[BUFFERS];
  __shared__ u32 used[SLOTS + 1];
  constexpr bool apart = sizeof(REAL) == 4;
  const u32 first_row = blockIdx.y * EDGE;
  const Work w = work_of_block(starts, EDGE, table, items, used);
  const u32 group = w.group, first = w.first, end = w.end;
  const u32 depths = (columns + DEPTH - 1) / DEPTH, steps = (w.stop - w.begin) * depths;

  // The state of the copies: the next slot (`place`) and column (k), and the source row and matrix that this thread
  // copies.
  const u32 item = threadIdx.x / 2;
  const bool row_there = first_row + threadIdx.x % 32 * 2 < rows;
  u32 place = w.begin, k = 0, source = NOBODY;
  const REAL *from = in, *matrix = matrices;
  auto copy = [&](u32 buffer) {
    if (place < w.stop) {
      if (k == 0) {
        const u32 slot = used[place];
        source = first + item < end ? table[(u64)slot * items + first + item] : NOBODY;
        from = in + (u64)(source == NOBODY ? 0 : source - 1) * columns;
        matrix = matrices + (u64)numbers[group * SLOTS + slot] * rows * columns + first_row;
      }
copy_step(a[buffer], b[buffer], matrix, rows, columns, k, row_there, source != NOBODY ? from : nullptr);
      k += DEPTH;
      if (k >= columns) k = 0, ++place;
    }
    commit_copies();
  };

  REAL sum[2][4][4] = {}, total[2][4][4] = {};
  for (u32 i = 0; i + 1 < BUFFERS; ++i) copy(i);
  for (u32 step = 0, depth = 0; step < steps; ++step) {
    wait_for_copies<BUFFERS - 2>();
    __syncthreads();
    copy((step + BUFFERS - 1) % BUFFERS);
    const u32 buffer = step % BUFFERS;
    add_step(sum, a[buffer], b[buffer]);
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
    const u32 v = first + vector_of(i), r = first_row + row_of(i);
    if (v >= end || r >= rows) continue;
    const REAL mine = apart ? total[i / 16][i / 4 % 4][i % 4] : sum[i / 16][i / 4 % 4][i % 4];
    if (gridDim.z == 1)
      out[(u64)boxes[v] * rows + r] += mine;
    else
      partial[((u64)blockIdx.z * items + v) * rows + r] = mine;
  }
}

// out[boxes[i]] += the sum over parts, for the items starts[0] … starts[groups] of one set. One thread per number.
extern "C" __global__ void m2l_join(u32 rows, u32 items, const u32* boxes, const u64* starts, u32 groups, u32 parts,
                                    const REAL* partial, REAL* out) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x, item = starts[0] + i / rows;
  if (item >= starts[groups]) return;
  REAL sum = 0;
  for (u32 part = 0; part < parts; ++part) sum += partial[((u64)part * items + item) * rows + i % rows];
  out[(u64)boxes[item] * rows + i % rows] += sum;
}
