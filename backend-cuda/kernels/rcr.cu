// Translations by rotate – coaxial – rotate back (Gumerov & Duraiswami 2008, §2.2.2, eq. 33): M2L, M2M, L2L. Twin of
// `Rcr::add` in fmm-kernels/src/spherical/rcr.rs. The tables are made in src/spherical/rotations.rs.
//
// A *course* is one translation (an operator of M2L, or an octant of M2M or L2L). A block translates EDGES rows along
// one course at a time, in five steps: rotate about z, rotate about y, translate along z, rotate back about y, rotate
// back about z. The last step adds to sums in registers.
//
// The rows lie side by side in shared memory: number k of all EDGES rows is consecutive. A thread works on EACH rows,
// and all threads of a warp read the same entry of a matrix. Matrices come in tiles of four rows, padded with zeros;
// entry (i, j) of a tile is at 4j + i.
//
// Defined in front of this file: REAL, ORDER, EDGES, THREADS, BLOCKS (per multiprocessor), UP, ACROSS, DOWN.

#include "shared/boxes.cuh"
#include "shared/copy.cuh"
#include "shared/slots.cuh"

// Number of pairs (n, m), 0 ≤ m ≤ n < ORDER.
#define PAIRS (ORDER * (ORDER + 1) / 2)
#define LANES (EDGES < 32 ? EDGES : 32)
#define EACH (EDGES / LANES)
#define SLICES (THREADS / LANES)
// Distance of consecutive numbers of a row in shared memory. The extra place avoids bank conflicts.
#define WIDE (EDGES + 1)
// Numbers of a row in device memory.
#define STRIDE (ORDER * ORDER + ORDER % 2)
// Numbers in each of the two arrays in shared memory. Rows lie side by side, or, just after the copy, one behind the
// other.
#define LARGER (ORDER * ORDER * WIDE > EDGES * STRIDE ? ORDER * ORDER * WIDE : EDGES * STRIDE)
#define ROOM ((LARGER + 3) / 4 * 4)
// Rotations about z: a thread has PER pairs (n, m) of BOXES boxes. WIDTH threads together have all pairs; there are
// GROUPS such groups of threads.
#define PER ((PAIRS + THREADS - 1) / THREADS)
#define WIDTH ((PAIRS + PER - 1) / PER)
#define GROUPS (THREADS / WIDTH)
#define BOXES ((EDGES + GROUPS - 1) / GROUPS)

// One translation.
struct Course {
  // Place of the tiles of the rotation there, and of the rotation back.
  u32 there, back;
  // Orders read and written.
  u32 read, write;
};
static_assert(sizeof(Course) == 16, "the host sends four numbers");

// One tile (four rows of a matrix). x: (degree or m) | (1 for sines) << 8 | (first row) << 16. y: place of the tile.
typedef uint2 Job;

struct alignas(16) Four {
  REAL v[4];
};
struct alignas(2 * sizeof(REAL)) Turn {
  REAL c, s;
};

// The tables of one order, shared by all translations.
struct Tables {
  // Jobs of the rotations about y, and of the translations along z, by falling number of columns.
  const Job *turns, *shifts;
  u32 turn_count, shift_count;
  // For each pair (n, m), by degree: (n² + m) | n << 16.
  const u32* places;
  const Course* courses;
  // For each course: the rotation about z before, then after; one entry per pair (n, m).
  const Turn* phases;
  const REAL* rotations;
  // Tiles of the coaxial matrices of the three steps.
  const REAL* coaxial[3];
};
static_assert(sizeof(Tables) == 10 * 8, "the host sends ten words");

// The rows of EDGES boxes, side by side.
typedef REAL Rows[ORDER * ORDER][WIDE];
extern __shared__ __align__(16) unsigned char memory[];

// y = tile · x over `count` columns. The distance between consecutive numbers of x starts at `step` and grows by
// `more` each time; for y it starts at `to_step` and also grows by `more`. Writes the first `rows` of the four rows.
__device__ __forceinline__ void multiply(const REAL* tile, u32 count, const REAL* x, u32 step, REAL* y, u32 to_step, u32 more,
                                         u32 rows) {
  REAL sum[4][EACH] = {};
#pragma unroll 4
  for (u32 j = 0; j < count; ++j, step += more) {
    const Four d = *(const Four*)(tile + 4 * j);
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
      const REAL from = x[k * LANES];
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i][k] += d.v[i] * from;
    }
    x += step;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i, to_step += more) {
    if (i < rows)
#pragma unroll
      for (int k = 0; k < EACH; ++k) y[k * LANES] = sum[i][k];
    y += to_step;
  }
}

// The rotation about y. There (BACK false): reads the degrees below course.read, writes results with m <
// course.write. Back: reads numbers with m < course.read, writes all degrees below course.write.
template <bool BACK>
__device__ __forceinline__ void turn(const Tables& t, const Course& course, const Rows& from, Rows& to) {
  const u32 lane = threadIdx.x % LANES;
  Job next = t.turns[min(threadIdx.x / LANES, t.turn_count - 1)];
  for (u32 i = threadIdx.x / LANES; i < t.turn_count; i += SLICES) {
    const Job job = next;
    next = t.turns[min(i + SLICES, t.turn_count - 1)];
    const u32 n = job.x & 255, first = job.x >> 8 & 255, row = job.x >> 16, size = n + 1 - first;
    if (BACK ? n >= course.write : n >= course.read || row + first >= course.write) continue;
    // With read = 1 there are no sines; the count is then 0 and the results are zeros.
    const u32 place = n * n + first * (n + 1), count = BACK ? min(size, course.read - min(first, course.read)) : size;
    multiply(t.rotations + (BACK ? course.back : course.there) + job.y, count, &from[place][lane], WIDE,
             &to[place + row][lane], WIDE, 0, size - row);
  }
}

// The translation along z, for each m separately.
template <int STEP>
__device__ __forceinline__ void shift(const Tables& t, const Course& course, const Rows& from, Rows& to) {
  const u32 lane = threadIdx.x % LANES, both = min(course.read, course.write);
  Job next = t.shifts[min(threadIdx.x / LANES, t.shift_count - 1)];
  for (u32 i = threadIdx.x / LANES; i < t.shift_count; i += SLICES) {
    const Job job = next;
    next = t.shifts[min(i + SLICES, t.shift_count - 1)];
    const u32 m = job.x & 255, sine = job.x >> 8 & 255, row = job.x >> 16;
    if (m >= both || m + row >= course.write) continue;
    // M2M and L2L matrices are triangular: skip the zeros.
    const u32 begin = STEP == DOWN ? min(row, course.read - m) : 0;
    const u32 end = STEP == UP ? min(row + 4, course.read - m) : course.read - m;
    // The place of (n, m) in a row is n² + m for the cosine, n² + n + m for the sine.
    const u32 k = m + begin, n = m + row;
    multiply(t.coaxial[STEP] + job.y + 4 * begin, end - begin, &from[k * k + sine * k + m][lane], (2 * k + 1 + sine) * WIDE,
             &to[n * n + sine * n + m][lane], (2 * n + 1 + sine) * WIDE, 2 * WIDE, course.write - n);
  }
}

// Calls visit(r, j, box, place of the cosine, n, turn) for the pairs and boxes that this thread rotates about z.
// `turns` has one entry per pair.
template <class Visit>
__device__ __forceinline__ void for_mine(const Tables& t, const Turn* turns, Visit visit) {
  const u32 group = threadIdx.x / WIDTH;
#pragma unroll
  for (int r = 0; r < PER; ++r) {
    const u32 pair = r * WIDTH + threadIdx.x % WIDTH;
    if (pair >= PAIRS || group >= GROUPS) continue;
    const u32 place = t.places[pair] & 0xffff, n = t.places[pair] >> 16;
    const Turn by = turns[pair];
#pragma unroll
    for (int j = 0; j < BOXES; ++j) {
      const u32 box = group + j * GROUPS;
      if (box < EDGES) visit(r, j, box, place, n, by);
    }
  }
}
typedef REAL Sums[PER][BOXES][2];

// sum += translations, along course `number`, of the rows sources[box] − 1 of `in` (0: no source). Before the call,
// `sources` must be visible to all threads, and no thread may use shared memory any more.
template <int STEP>
__device__ __forceinline__ void translate(const Tables& t, u32 number, const REAL* in, const u32 (&sources)[EDGES], Sums& sum) {
  Rows &a = *(Rows*)memory, &b = *(Rows*)(memory + ROOM * sizeof(REAL));
  REAL* raw = (REAL*)(memory + ROOM * sizeof(REAL));
  const Course course = t.courses[number];
  const Turn* phases = t.phases + 2ull * number * PAIRS;
#pragma unroll 4
  for (u32 i = threadIdx.x; i < EDGES * (STRIDE / 2); i += THREADS) {
    const u32 box = i / (STRIDE / 2), k = i % (STRIDE / 2) * 2, source = sources[box];
    copy_two(raw + box * STRIDE + k, in + (u64)(source ? source - 1 : 0) * STRIDE + k, source);
  }
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();
  for_mine(t, phases, [&](int, int, u32 box, u32 place, u32 n, const Turn& by) {
    const bool sines = place > n * n;
    const REAL x = raw[box * STRIDE + place], y = sines ? raw[box * STRIDE + place + n] : REAL(0);
    a[place][box] = by.c * x + by.s * y;
    if (sines) a[place + n][box] = by.c * y - by.s * x;
  });
  __syncthreads();
  turn<false>(t, course, a, b);
  __syncthreads();
  shift<STEP>(t, course, b, a);
  __syncthreads();
  turn<true>(t, course, a, b);
  __syncthreads();
  for_mine(t, phases + PAIRS, [&](int r, int j, u32 box, u32 place, u32 n, const Turn& by) {
    if (n >= course.write) return;
    const bool sines = place > n * n;
    const REAL x = b[place][box], y = sines ? b[place + n][box] : REAL(0);
    sum[r][j][0] += by.c * x - by.s * y;
    sum[r][j][1] += by.c * y + by.s * x;
  });
}

// M2L. For the items i = starts[g] … starts[g + 1] − 1 of each group g: out[boxes[i]] += the sum over slots of the rows
// in[table[slot · items + i]], translated along course numbers[g · SLOTS + slot]. If gridDim.z > 1, a block sums over a
// part of the slots and writes to partial[(part · items + item) · STRIDE …] instead.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    rcr_across(const Tables* tables, const REAL* in, const u32* table, u32 items, const u32* boxes, const u64* starts,
               const u32* numbers, REAL* out, REAL* partial) {
  __shared__ u32 used[SLOTS + 1], sources[EDGES];
  const Tables t = *tables;
  const Work w = work_of_block(starts, EDGES, table, items, used);
  const u32 group = w.group, first = w.first, end = w.end, stop = w.stop;
  static_assert(EDGES <= THREADS, "a thread an edge");
  auto source_at = [&](u32 i) {
    const u32 item = first + threadIdx.x;
    return i < stop && threadIdx.x < EDGES && item < end ? table[(u64)used[i] * items + item] : NOBODY;
  };
  Sums sum = {};
  u32 next = source_at(w.begin);
  for (u32 i = w.begin; i < stop; ++i) {
    if (threadIdx.x < EDGES) sources[threadIdx.x] = next;
    __syncthreads();
    next = source_at(i + 1);
    translate<ACROSS>(t, numbers[group * SLOTS + used[i]], in, sources, sum);
    __syncthreads();
  }
  for_mine(t, t.phases, [&](int r, int j, u32 box, u32 place, u32 n, const Turn&) {
    const u32 item = first + box;
    if (item >= end) return;
    const bool whole = gridDim.z == 1, sines = place > n * n;
    REAL* to = whole ? out + (u64)boxes[item] * STRIDE : partial + ((u64)blockIdx.z * items + item) * STRIDE;
    to[place] = (whole ? to[place] : REAL(0)) + sum[r][j][0];
    if (sines) to[place + n] = (whole ? to[place + n] : REAL(0)) + sum[r][j][1];
    // The padding that makes a row even.
    if (!whole && place == 0 && ORDER % 2) to[ORDER * ORDER] = 0;
  });
}

// M2M and L2L. For the edges e = starts[o] … starts[o + 1] − 1 of each octant o: out[to[e]] = translated in[from[e]],
// or with `add` out[to[e]] += … The course of octant o is number + o.
template <int STEP>
__device__ __forceinline__ void family(const Tables& t, u32 number, const REAL* in, const u32* from, REAL* out, const u32* to,
                                       const u64* starts, bool add) {
  __shared__ u32 sources[EDGES];
  u32 tile = blockIdx.x;
  const u32 octant = group_of(starts, EDGES, tile);
  const u32 first = (u32)starts[octant] + tile * EDGES, end = min(first + EDGES, (u32)starts[octant + 1]);
  if (threadIdx.x < EDGES) sources[threadIdx.x] = first + threadIdx.x < end ? from[first + threadIdx.x] + 1 : NOBODY;
  __syncthreads();
  Sums sum = {};
  translate<STEP>(t, number + octant, in, sources, sum);
  for_mine(t, t.phases, [&](int r, int j, u32 box, u32 place, u32 n, const Turn&) {
    if (first + box >= end) return;
    REAL* row = out + (u64)to[first + box] * STRIDE + place;
    row[0] = (add ? row[0] : REAL(0)) + sum[r][j][0];
    if (place > n * n) row[n] = (add ? row[n] : REAL(0)) + sum[r][j][1];
  });
}
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    rcr_up(const Tables* tables, u32 number, const REAL* in, const u32* from, REAL* out, const u32* to, const u64* starts) {
  family<UP>(*tables, number, in, from, out, to, starts, false);
}
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    rcr_down(const Tables* tables, u32 number, const REAL* in, const u32* from, REAL* out, const u32* to, const u64* starts) {
  family<DOWN>(*tables, number, in, from, out, to, starts, true);
}
