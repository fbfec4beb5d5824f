// M2L by rotate – coaxial – rotate back (Gumerov & Duraiswami 2008, §2.2.2, eq. 33), with all matrices in the code, for
// low orders. It does what rcr_across in rcr.cu does. The tables are made in src/spherical/unrolled.rs.
//
// Let A be the rotation by 90° about x that takes the y axis to the z axis. A rotation about y is then a rotation about
// z, seen by A: Q_y(β) = Aᵀ Q_z(β) A. The matrices X_n of A, one for each degree n, are the same for all translations,
// and n² + n + 1 of their entries are not zero. The matrices along z are the same, too, because other distances only
// scale each degree. All these entries are therefore constants of the program, and no instruction loads them. What
// differs between translations are two angles, and two scales for each degree.
//
// A *course* is one translation (an operator of M2L). A block translates EDGES rows along one course at a time, one edge
// per lane. The WARPS warps of a *team* have the same 32 edges. They share out the work: in rotations by degree, along z
// by m. Rows lie in shared memory and are changed in place. The rotation back adds to sums in registers. Instructions
// are the bound: code of this length does not fit into the small caches, and warps that work on the same place of it
// at the same time share what is fetched. So the warps of a block are kept together by barriers, and both rotations
// share their code.
//
// Defined in front of this file: REAL, ORDER, WARPS (in a team), TEAMS (in a block), BLOCKS (per multiprocessor), SUMS (the
// most numbers of a row that a warp sums), and these tables:
//   EXCHANGE             X_n, row by row, for all degrees n
//   ALONG                the matrices along z, row by row, for all m
//   WARP_OF_DEGREE[n]    the warp that rotates degree n; PLACE_OF_DEGREE[n]: where the degree begins in the warp's sums
//   WARP_OF_COLUMN[2m]   the warp that translates the cosines of m along z; [2m + 1]: the sines.

#include "shared/boxes.cuh"
#include "shared/intrinsics.cuh"
#include "shared/slots.cuh"

#define THREADS (32 * WARPS * TEAMS)
#define EDGES (32 * TEAMS)
#define PLACES (ORDER * ORDER)
// Numbers of a row in shared memory. The number is odd, so that lanes read from different banks.
#define ROW (PLACES | 1)
// Numbers of a row in device memory.
#define STRIDE (PLACES + ORDER % 2)

struct Turn {
  REAL c, s;
};

// The numbers of a course.
struct Course {
  // cos(mα) and sin(mα), for each m; then the same of −α.
  Turn alpha[2][ORDER];
  // The same of β and −β.
  Turn beta[2][ORDER];
  // Scales of each degree, before and after.
  REAL scale[2][ORDER];
};
#define NUMBERS (10 * ORDER)
static_assert(sizeof(Course) == NUMBERS * sizeof(REAL), "the host sends this many numbers");

// The tables of one order. For each course: the orders read and written, and its numbers.
struct Tables {
  const uint2* orders;
  const Course* courses;
};
static_assert(sizeof(Tables) == 2 * 8, "the host sends two addresses");

struct Shared {
  REAL rows[EDGES][ROW];
  Course course;
};
extern __shared__ __align__(16) unsigned char memory[];

typedef REAL Sums[SUMS];

// The place of this thread's warp in its team. The shuffle tells the compiler that all lanes have the same.
__device__ __forceinline__ u32 member() { return WARPS == 1 ? 0 : __shfl_sync(~0u, threadIdx.x / 32 % WARPS, 0); }
// The edge of this thread.
__device__ __forceinline__ u32 my_edge() { return threadIdx.x / (32 * WARPS) * 32 + lane_id(); }

// y = X_N x, or with BACK X_Nᵀ x.
template <int N, bool BACK>
__device__ __forceinline__ void exchange(const REAL (&x)[2 * N + 1], REAL (&y)[2 * N + 1]) {
  // Degrees below N have N (4 N² − 1) / 3 entries.
  constexpr int size = 2 * N + 1, start = N * (4 * N * N - 1) / 3;
#pragma unroll
  for (int i = 0; i < size; ++i) {
    y[i] = 0;
#pragma unroll
    for (int j = 0; j < size; ++j) {
      const REAL entry = EXCHANGE[start + (BACK ? j * size + i : i * size + j)];
      if (entry != 0) y[i] += entry * x[j];
    }
  }
}

// Rotates the pairs (cosine, sine) of degree N by the angles of `turns`.
template <int N>
__device__ __forceinline__ void turn(const Turn* turns, REAL (&x)[2 * N + 1]) {
#pragma unroll
  for (int m = 1; m <= N; ++m) {
    const Turn t = turns[m];
    const REAL a = x[m], b = x[N + m];
    x[m] = t.c * a + t.s * b;
    x[N + m] = t.c * b - t.s * a;
  }
}

// The rotations of the degrees N … of warp W. First (back = 0) degrees below `order` are scaled and rotated there; other
// degrees become zeros. Then (back = 1) degrees below `order` are scaled, rotated back, and added to the sums.
template <int W, int N>
__device__ __forceinline__ void rotate(const Course& course, int back, u32 order, REAL* row, Sums& sum) {
  if constexpr (N < ORDER) {
    if constexpr (WARP_OF_DEGREE[N] == W) {
      REAL* at = row + N * N;
      if (N < order) {
        REAL x[2 * N + 1], y[2 * N + 1];
        const REAL scale = course.scale[back][N];
#pragma unroll
        for (int k = 0; k < 2 * N + 1; ++k) x[k] = scale * at[k];
        if (!back) turn<N>(course.alpha[0], x);
        exchange<N, false>(x, y);
        turn<N>(course.beta[back], y);
        exchange<N, true>(y, x);
        if (back) turn<N>(course.alpha[1], x);
#pragma unroll
        for (int k = 0; k < 2 * N + 1; ++k) {
          if (back)
            sum[PLACE_OF_DEGREE[N] + k] += x[k];
          else
            at[k] = x[k];
        }
      } else if (!back) {
#pragma unroll
        for (int k = 0; k < 2 * N + 1; ++k) at[k] = 0;
      }
    }
    rotate<W, N + 1>(course, back, order, row, sum);
  }
}

// The translations along z of the columns K … of warp W, if their m is below `order`.
template <int W, int K>
__device__ __forceinline__ void shift(u32 order, REAL* row) {
  if constexpr (K < 2 * ORDER) {
    constexpr int M = K / 2, size = ORDER - M, sine = K % 2;
    // The matrices of smaller m come first.
    constexpr int start = (ORDER * (ORDER + 1) * (2 * ORDER + 1) - size * (size + 1) * (2 * size + 1)) / 6;
    if constexpr (K != 1 && WARP_OF_COLUMN[K] == W) {
      if (M < order) {
        REAL x[size], y[size];
        // The place of (n, m) in a row is n² + m for the cosine, n² + n + m for the sine.
        auto place = [](int i) { return (M + i) * (M + i) + sine * (M + i) + M; };
#pragma unroll
        for (int i = 0; i < size; ++i) x[i] = row[place(i)];
#pragma unroll
        for (int i = 0; i < size; ++i) {
          y[i] = 0;
#pragma unroll
          for (int j = 0; j < size; ++j) y[i] += ALONG[start + i * size + j] * x[j];
        }
#pragma unroll
        for (int i = 0; i < size; ++i) row[place(i)] = y[i];
      }
    }
    shift<W, K + 1>(order, row);
  }
}

// The rotations, or the translations along z, of warp `warp` of a team, which is at least W.
template <int W>
__device__ __forceinline__ void rotations(u32 warp, const Course& course, int back, u32 order, REAL* row, Sums& sum) {
  if constexpr (W < WARPS) {
    if (warp == W)
      rotate<W, 0>(course, back, order, row, sum);
    else
      rotations<W + 1>(warp, course, back, order, row, sum);
  }
}
template <int W>
__device__ __forceinline__ void shifts(u32 warp, u32 order, REAL* row) {
  if constexpr (W < WARPS) {
    if (warp == W)
      shift<W, 0>(order, row);
    else
      shifts<W + 1>(warp, order, row);
  }
}

// Writes the sums of a warp into a row, from degree N on.
template <int N>
__device__ __forceinline__ void keep(u32 warp, const Sums& sum, REAL* row) {
  if constexpr (N < ORDER) {
    if (WARP_OF_DEGREE[N] == warp)
#pragma unroll
      for (int k = 0; k < 2 * N + 1; ++k) row[N * N + k] = sum[PLACE_OF_DEGREE[N] + k];
    keep<N + 1>(warp, sum, row);
  }
}

// Starts the copies of a course and of the rows of `in` whose number plus one is `source` (zeros if that is NOBODY), one
// row per edge.
__device__ __forceinline__ void copy(const Course* course, const REAL* in, u32 source) {
  Shared& s = *(Shared*)memory;
  const u32 lane = lane_id(), warp = member();
  REAL* to = s.rows[my_edge() - lane + warp] + lane;
#pragma unroll
  for (u32 i = 0; i < 32; i += WARPS) {
    const u32 number = __shfl_sync(~0u, source, i + warp);
    const bool there = number != NOBODY;
    const REAL* from = in + lane + (u64)(number - there) * STRIDE;
#pragma unroll
    for (u32 k = 0; k < PLACES; k += 32)
      if (k + 32 <= PLACES || k + lane < PLACES) copy_async<sizeof(REAL)>(to + i * ROW + k, from + k, there);
  }
#pragma unroll
  for (u32 k = threadIdx.x; k < NUMBERS; k += THREADS)
    copy_async<sizeof(REAL)>((REAL*)&s.course + k, (const REAL*)course + k, true);
  commit_copies();
}

// M2L. For the items i = starts[g] … starts[g + 1] − 1 of each group g: out[boxes[i]] += the sum over slots of the rows
// in[table[slot · items + i]], translated along course numbers[g · SLOTS + slot]. If gridDim.z > 1, a block sums over a
// part of the slots and writes to partial[(part · items + item) · STRIDE …] instead.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    rcr_across(const Tables* tables, const REAL* in, const u32* table, u32 items, const u32* boxes, const u64* starts,
               const u32* numbers, REAL* out, REAL* partial) {
  __shared__ u32 used[SLOTS + 1];
  Shared& s = *(Shared*)memory;
  const Tables t = *tables;
  const Work w = work_of_block(starts, EDGES, table, items, used);
  const u32 group = w.group, first = w.first, end = w.end, stop = w.stop;
  const u32 mine = first + my_edge(), warp = member();
  auto source_at = [&](u32 i) { return i < stop && mine < end ? table[(u64)used[i] * items + mine] : NOBODY; };
  REAL* row = s.rows[my_edge()];
  Sums sum = {};
  u32 next = source_at(w.begin);
  for (u32 i = w.begin; i < stop; ++i) {
    const u32 number = numbers[group * SLOTS + used[i]];
    const uint2 orders = t.orders[number];
    copy(t.courses + number, in, next);
    next = source_at(i + 1);
    wait_for_copies<0>();
    __syncthreads();
#pragma unroll 1
    for (int back = 0; back < 2; ++back) {
      rotations<0>(warp, s.course, back, back ? orders.y : orders.x, row, sum);
      __syncthreads();
      if (back) break;
      shifts<0>(warp, min(orders.x, orders.y), row);
      __syncthreads();
    }
  }
  // Through shared memory, so that neighbouring threads write neighbouring numbers.
  keep<0>(warp, sum, row);
  __syncthreads();
  for (u32 e = threadIdx.x / 32; e < EDGES && first + e < end; e += THREADS / 32) {
    const bool whole = gridDim.z == 1;
    REAL* to = whole ? out + (u64)boxes[first + e] * STRIDE : partial + ((u64)blockIdx.z * items + first + e) * STRIDE;
    for (u32 k = lane_id(); k < STRIDE; k += 32) {
      // An odd number of numbers is followed by a zero.
      const REAL x = k < PLACES ? s.rows[e][k] : REAL(0);
      to[k] = whole ? to[k] + x : x;
    }
  }
}
