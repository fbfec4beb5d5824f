// M2L by dense matrices, one for each offset between two boxes of a level: the matrices, the table of who is at
// which offset, and the products.
//
// In front of this file: REAL.

#include "shared/boxes.cuh"

#define OFFSETS 316
// Offsets of one octant: target minus source is in -3 … 2 on an axis where the target is the lower half of
// its parent, in -2 … 3 where it is the upper half.
#define SIDE 6
#define SLOTS (SIDE * SIDE * SIDE)
// In the table, which holds the number of a box plus 1.
#define NOBODY 0

// Number of an offset among {-3 … 3}³ without the adjacent ones, x slowest; OFFSETS if it is none of them.
__device__ u32 offset_index(const int* d) {
  bool adjacent = true;
  for (int a = 0; a < 3; ++a) {
    if (d[a] < -3 || d[a] > 3) return OFFSETS;
    adjacent = adjacent && d[a] >= -1 && d[a] <= 1;
  }
  if (adjacent) return OFFSETS;
  const int x = d[0] + 3, y = d[1] + 3, z = d[2] + 3;
  const bool x_in = x >= 2 && x <= 4, y_in = y >= 2 && y <= 4;
  const int rows = 3 * min(max(x - 2, 0), 3) + (x_in ? min(max(y - 2, 0), 3) : 0);
  return 49 * x + 7 * y + z - 3 * rows - (x_in && y_in && z > 4 ? 3 : 0);
}

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

#define EDGE 64
#define DEPTH 16
#define THREADS 256
#define PER_THREAD (DEPTH * EDGE / THREADS)

// out[items[i]] += the sum over slots of the matrix of the offset times in[table[slot · items + i]], for the items
// first … first + count of one octant. A block computes EDGE rows of EDGE items in registers, and adds
// them once. Matrices are `rows` × `columns`, column by column.
extern "C" __global__ void __launch_bounds__(THREADS)
    m2l(const REAL* matrices, u32 rows, u32 columns, u32 octant, const REAL* in, const u32* table, u32 items,
        const u32* boxes, u32 first, u32 count, REAL* out) {
  __shared__ REAL a[2][DEPTH][EDGE], b[2][DEPTH][EDGE + 4];
  const u32 first_row = blockIdx.y * EDGE, first_item = blockIdx.x * EDGE;
  const u32 row = threadIdx.x % 16 * 4, vector = threadIdx.x / 16 * 4;
  // What this thread loads: entries of one item, and of the matrix.
  const u32 mine = threadIdx.x / 4, part = threadIdx.x % 4 * PER_THREAD;
  const bool valid = first_item + mine < count;
  REAL sum[4][4] = {};

  for (u32 slot = 0; slot < SLOTS; ++slot) {
    int d[3] = {(int)(slot / (SIDE * SIDE)), (int)(slot / SIDE % SIDE), (int)(slot % SIDE)};
    for (int x = 0; x < 3; ++x) d[x] += (int)(octant >> x & 1) - 3;
    const u32 offset = offset_index(d);
    if (offset == OFFSETS) continue;
    const u32 source = valid ? table[(u64)slot * items + first + first_item + mine] : NOBODY;
    if (!__syncthreads_or(source != NOBODY)) continue;
    const REAL* from = in + (u64)(source == NOBODY ? 0 : source - 1) * columns;
    const REAL* matrix = matrices + (u64)offset * rows * columns;

    REAL next_a[PER_THREAD], next_b[PER_THREAD];
    auto fetch = [&](u32 k) {
#pragma unroll
      for (int i = 0; i < PER_THREAD; ++i) {
        const u32 at = threadIdx.x + i * THREADS, r = first_row + at % EDGE, c = k + at / EDGE;
        next_a[i] = r < rows && c < columns ? matrix[(u64)c * rows + r] : REAL(0);
        next_b[i] = source != NOBODY && k + part + i < columns ? from[k + part + i] : REAL(0);
      }
    };
    auto store = [&](u32 buffer) {
#pragma unroll
      for (int i = 0; i < PER_THREAD; ++i) {
        const u32 at = threadIdx.x + i * THREADS;
        a[buffer][at / EDGE][at % EDGE] = next_a[i];
        b[buffer][part + i][mine] = next_b[i];
      }
    };
    fetch(0);
    store(0);
    __syncthreads();
    u32 buffer = 0;
    for (u32 k = 0; k < columns; k += DEPTH, buffer ^= 1) {
      const bool more = k + DEPTH < columns;
      if (more) fetch(k + DEPTH);
#pragma unroll
      for (int i = 0; i < DEPTH; ++i) {
        REAL x[4], y[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = a[buffer][i][row + j], y[j] = b[buffer][i][vector + j];
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int l = 0; l < 4; ++l) sum[j][l] += x[j] * y[l];
      }
      if (more) store(buffer ^ 1);
      __syncthreads();
    }
  }

#pragma unroll
  for (int l = 0; l < 4; ++l) {
    const u32 v = first_item + vector + l;
    if (v >= count) continue;
    REAL* to = out + (u64)boxes[first + v] * rows;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (first_row + row + j < rows) to[first_row + row + j] += sum[j][l];
  }
}
