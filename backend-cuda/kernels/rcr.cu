// Translations by rotate – coaxial – rotate back (Gumerov & Duraiswami 2008, §2.2.2, eq. 33): M2L, M2M, L2L. Twin of `Rcr::add` in
// fmm-kernels/src/spherical/rcr.rs; the tables are made in src/spherical/rotations.rs.
//
// A block translates EDGES rows along one course at a time. They lie side by side in shared memory, so that a thread has the rows of its own
// EACH boxes and all threads of a warp read the same entry of a matrix: about z, about y, along z, back about y, and back about z into sums
// in registers. Matrices come in tiles of four rows, entry (i, j) at 4j + i, with zeros where they end.
//
// In front of this file: REAL, ORDER, EDGES, THREADS, BLOCKS (of a multiprocessor), UP, ACROSS, DOWN.

#include "shared/boxes.cuh"
#include "shared/copy.cuh"
#include "shared/slots.cuh"

// (n, m), 0 ≤ m ≤ n < ORDER.
#define PAIRS (ORDER * (ORDER + 1) / 2)
#define LANES (EDGES < 32 ? EDGES : 32)
#define EACH (EDGES / LANES)
#define SLICES (THREADS / LANES)
// From one number of a row to the next, and numbers of a row in device memory.
#define WIDE (EDGES + 1)
#define STRIDE (ORDER * ORDER + ORDER % 2)
// Numbers of either array in shared memory: rows side by side, or one behind the other as they come.
#define LARGER (ORDER * ORDER * WIDE > EDGES * STRIDE ? ORDER * ORDER * WIDE : EDGES * STRIDE)
#define ROOM ((LARGER + 3) / 4 * 4)
// A thread turns PER pairs (n, m) of BOXES boxes about z: WIDTH threads have all pairs, and there are GROUPS of them.
#define PER ((PAIRS + THREADS - 1) / THREADS)
#define WIDTH ((PAIRS + PER - 1) / PER)
#define GROUPS (THREADS / WIDTH)
#define BOXES ((EDGES + GROUPS - 1) / GROUPS)

// Along which offset.
struct Course {
  // First number of the tiles of the rotation there, and back.
  u32 there, back;
  // Orders read and written.
  u32 read, write;
};
static_assert(sizeof(Course) == 16, "the host sends four numbers");

// Four rows of a matrix: (degree or m) | (1: sines) << 8 | (first row) << 16, and the first number of the tile.
typedef uint2 Job;

struct alignas(16) Four {
  REAL v[4];
};
struct alignas(2 * sizeof(REAL)) Turn {
  REAL c, s;
};

// What all translations of an order share.
struct Tables {
  // By falling number of columns.
  const Job *turns, *shifts;
  u32 turn_count, shift_count;
  // (n² + m) | n << 16 of each pair, by degrees.
  const u32* places;
  const Course* courses;
  // Of each course those before and after, a pair each.
  const Turn* phases;
  const REAL* rotations;
  // Tiles of the coaxial matrices of the three steps.
  const REAL* coaxial[3];
};
static_assert(sizeof(Tables) == 10 * 8, "the host sends ten words");

// Rows of EDGES boxes.
typedef REAL Rows[ORDER * ORDER][WIDE];
extern __shared__ __align__(16) unsigned char memory[];

// y = tile · x over `count` columns: numbers of x are `step` apart, and then `more` farther each time. Writes `rows` of four, in places
// that are `to_step` apart and likewise.
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

// The turn about y of the degrees below `read`, of the results those with m < `write`; or back, of what has m < `read` all of the
// degrees below `write`.
template <bool BACK>
__device__ __forceinline__ void turn(const Tables& t, const Course& course, const Rows& from, Rows& to) {
  const u32 lane = threadIdx.x % LANES;
  Job next = t.turns[min(threadIdx.x / LANES, t.turn_count - 1)];
  for (u32 i = threadIdx.x / LANES; i < t.turn_count; i += SLICES) {
    const Job job = next;
    next = t.turns[min(i + SLICES, t.turn_count - 1)];
    const u32 n = job.x & 255, first = job.x >> 8 & 255, row = job.x >> 16, size = n + 1 - first;
    if (BACK ? n >= course.write : n >= course.read || row + first >= course.write) continue;
    // Of a row of one degree there are no sines: zeros.
    const u32 place = n * n + first * (n + 1), count = BACK ? min(size, course.read - min(first, course.read)) : size;
    multiply(t.rotations + (BACK ? course.back : course.there) + job.y, count, &from[place][lane], WIDE,
             &to[place + row][lane], WIDE, 0, size - row);
  }
}

// The translation along z, each m by itself.
template <int STEP>
__device__ __forceinline__ void shift(const Tables& t, const Course& course, const Rows& from, Rows& to) {
  const u32 lane = threadIdx.x % LANES, both = min(course.read, course.write);
  Job next = t.shifts[min(threadIdx.x / LANES, t.shift_count - 1)];
  for (u32 i = threadIdx.x / LANES; i < t.shift_count; i += SLICES) {
    const Job job = next;
    next = t.shifts[min(i + SLICES, t.shift_count - 1)];
    const u32 m = job.x & 255, sine = job.x >> 8 & 255, row = job.x >> 16;
    if (m >= both || m + row >= course.write) continue;
    // Beside the triangle there are zeros.
    const u32 begin = STEP == DOWN ? min(row, course.read - m) : 0;
    const u32 end = STEP == UP ? min(row + 4, course.read - m) : course.read - m;
    // Degree n has its number of this m at n² + m, or n² + n + m.
    const u32 k = m + begin, n = m + row;
    multiply(t.coaxial[STEP] + job.y + 4 * begin, end - begin, &from[k * k + sine * k + m][lane], (2 * k + 1 + sine) * WIDE,
             &to[n * n + sine * n + m][lane], (2 * n + 1 + sine) * WIDE, 2 * WIDE, course.write - n);
  }
}

// visit(r, j, box, place of the cosine, n, turn) for what a thread turns about z; `turns`: one a pair.
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

// sum += the rows sources[box] − 1 of `in` (0: none) along a course. All threads have seen the sources and are done with both arrays.
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
  asm volatile("cp.async.wait_all;" ::: "memory");
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

// out[boxes[i]] += the sum over slots of the rows in[table[slot · items + i]] along the offset of the slot, for items starts[o] …
// starts[o + 1] of each octant o; where gridDim.z > 1 over the slots of a part, to partial[(part · items + item) · STRIDE …].
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    rcr_across(const Tables* tables, const REAL* in, const u32* table, u32 items, const u32* boxes, const u64* starts,
               REAL* out, REAL* partial) {
  __shared__ u32 used[SLOTS + 1], sources[EDGES];
  const Tables t = *tables;
  u32 tile = blockIdx.x;
  const u32 octant = group_of(starts, EDGES, tile);
  const u32 first = (u32)starts[octant] + tile * EDGES, end = min(first + EDGES, (u32)starts[octant + 1]);
  list_slots(table, items, first, end, used);
  const u32 begin = used[SLOTS] * blockIdx.z / gridDim.z, stop = used[SLOTS] * (blockIdx.z + 1) / gridDim.z;
  static_assert(EDGES <= THREADS, "a thread an edge");
  auto source_at = [&](u32 i) {
    const u32 item = first + threadIdx.x;
    return i < stop && threadIdx.x < EDGES && item < end ? table[(u64)used[i] * items + item] : NOBODY;
  };
  Sums sum = {};
  u32 next = source_at(begin);
  for (u32 i = begin; i < stop; ++i) {
    if (threadIdx.x < EDGES) sources[threadIdx.x] = next;
    __syncthreads();
    next = source_at(i + 1);
    translate<ACROSS>(t, offset_of(used[i], octant), in, sources, sum);
    __syncthreads();
  }
  for_mine(t, t.phases, [&](int r, int j, u32 box, u32 place, u32 n, const Turn&) {
    const u32 item = first + box;
    if (item >= end) return;
    const bool whole = gridDim.z == 1, sines = place > n * n;
    REAL* to = whole ? out + (u64)boxes[item] * STRIDE : partial + ((u64)blockIdx.z * items + item) * STRIDE;
    to[place] = (whole ? to[place] : REAL(0)) + sum[r][j][0];
    if (sines) to[place + n] = (whole ? to[place + n] : REAL(0)) + sum[r][j][1];
    // What makes a row even.
    if (!whole && place == 0 && ORDER % 2) to[ORDER * ORDER] = 0;
  });
}

// out[to[e]] = in[from[e]] between a box and its children for the edges starts[o] … starts[o + 1] of each octant o, whose courses follow one
// another from `number` on; or added.
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
