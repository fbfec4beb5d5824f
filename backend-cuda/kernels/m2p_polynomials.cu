// M2P of low orders, with multipoles as polynomials. Twin of fmm-kernels/src/spherical/horner.rs, which defines them.
//
// The field of a multipole at x is F(u)/r, with the inverted point u = x/r² and a polynomial F in the coordinates x, y,
// z of u and in s = |u|². z appears at most once in a monomial, so F = A + z B, and A and B are summed by Horner's
// rule: the innermost loop is over powers of x, then y, then s. Derivatives are summed beside. A coefficient costs one
// multiply-add for the value, and two for value and gradient.
//
// Defined in front of this file: REAL, VALUES (1 or 4), ORDER, SINGULAR (1), BLOCKS (per multiprocessor), SPLIT, MOST
// and TILE_BYTES (group.cuh).

#include "shared/level.cuh"
#include "shared/copy.cuh"

#define LEVEL_ROW (LEVEL_HEAD + VALUES)
#define THREADS_OF_A_BOX 64

// Number of pairs (i, j) with i + j < n, and of triples (i, j, k) with i + j + 2k < n.
__host__ __device__ constexpr int pairs(int n) { return n * (n + 1) / 2; }
__host__ __device__ constexpr int triples(int n) { return n > 0 ? pairs(n) + triples(n - 2) : 0; }
#define COEFFICIENTS (triples(ORDER) + triples(ORDER - 1))
// Coefficients that are read from shared memory at once.
#define CHUNK (16 / (int)sizeof(REAL))
struct alignas(16) Chunk {
  REAL v[CHUNK];
};
#define CHUNKS ((COEFFICIENTS + CHUNK - 1) / CHUNK)

// A box with its polynomial. Coefficients lie in the order in which they are summed.
struct alignas(16) Source {
  double center[3];
  // 1 / (side of the box).
  double scale;
  // Factors of the values.
  double factors[(VALUES + 1) / 2 * 2];
  Chunk coefficients[CHUNKS];
};

#include "shared/group.cuh"
#include "shared/point.cuh"

// Makes the polynomials of boxes items[blockIdx.x] from their rows of harmonics, `stride` numbers each. Coefficient i
// is the sum over entries starts[i] … starts[i + 1] − 1 of the map.
extern "C" __global__ void __launch_bounds__(THREADS_OF_A_BOX)
    to_polynomials(const Boxes* boxes, const double* levels, const u32* items, const u32* starts,
                   const u32* columns, const REAL* entries, u32 stride, const REAL* rows, Source* to) {
  const Boxes t = *boxes;
  const u32 b = items[blockIdx.x];
  const REAL* row = rows + (u64)b * stride;
  Source& mine = to[blockIdx.x];
  REAL* coefficients = mine.coefficients[0].v;
  for (u32 i = threadIdx.x; i < CHUNK * CHUNKS; i += THREADS_OF_A_BOX) {
    REAL sum = 0;
    if (i < COEFFICIENTS)
      for (u32 e = starts[i]; e < starts[i + 1]; ++e) sum += entries[e] * row[columns[e]];
    coefficients[i] = sum;
  }
  if (threadIdx.x > 0) return;
  const double* level = levels + LEVEL_ROW * t.level[b];
  const Frame frame = frame_of(t, b);
  for (int a = 0; a < 3; ++a) mine.center[a] = frame.center[a];
  mine.scale = 1 / frame.side;
  for (int k = 0; k < VALUES; ++k) mine.factors[k] = level[LEVEL_HEAD + k];
}

// Coefficient AT. Coefficients are taken in their order; `chunk` is the chunk of the last one. All places are known at
// compile time, so that everything stays in registers.
template <int AT>
__device__ __forceinline__ REAL coefficient(const Chunk* from, Chunk& chunk) {
  if constexpr (AT % CHUNK == 0) chunk = from[AT / CHUNK];
  return chunk.v[AT % CHUNK];
}

// Sums over powers of x, then of y, then of s, with derivatives, for each point.
template <int EACH>
struct Row {
  REAL value[EACH], by_x[EACH];
};
template <int EACH>
struct Plane {
  REAL value[EACH], by_x[EACH], by_y[EACH];
};
template <int EACH>
struct Polynomial {
  REAL value[EACH], by_x[EACH], by_y[EACH], by_s[EACH];
};
constexpr bool derive = VALUES > 1;

// Adds the coefficients from AT on to a row of LENGTH, of which POWER are summed.
template <int AT, int LENGTH, int POWER, int EACH>
__device__ __forceinline__ void add_to_row(const Chunk* from, Chunk& chunk, const Point (&at)[EACH], Row<EACH>& row) {
  if constexpr (POWER < LENGTH) {
    const REAL next = coefficient<AT>(from, chunk);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const REAL x = at[i].y[0];
      if (derive) row.by_x[i] = POWER == 0 ? REAL(0) : POWER == 1 ? row.value[i] : row.by_x[i] * x + row.value[i];
      row.value[i] = POWER == 0 ? next : row.value[i] * x + next;
    }
    add_to_row<AT + 1, LENGTH, POWER + 1>(from, chunk, at, row);
  }
}

// Adds the rows of LENGTH, LENGTH + 1, … ROWS coefficients to a plane.
template <int AT, int ROWS, int LENGTH, int EACH>
__device__ __forceinline__ void add_rows(const Chunk* from, Chunk& chunk, const Point (&at)[EACH], Plane<EACH>& plane) {
  if constexpr (LENGTH <= ROWS) {
    Row<EACH> row;
    add_to_row<AT, LENGTH, 0>(from, chunk, at, row);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const REAL y = at[i].y[1];
      if (derive) {
        plane.by_y[i] = LENGTH == 1 ? REAL(0) : LENGTH == 2 ? plane.value[i] : plane.by_y[i] * y + plane.value[i];
        plane.by_x[i] = LENGTH <= 2 ? row.by_x[i] : plane.by_x[i] * y + row.by_x[i];
      }
      plane.value[i] = LENGTH == 1 ? row.value[i] : plane.value[i] * y + row.value[i];
    }
    add_rows<AT + LENGTH, ROWS, LENGTH + 1>(from, chunk, at, plane);
  }
}

// Adds the planes of s^K, s^(K − 1), … 1 to a polynomial of N degrees.
template <int AT, int N, int K, int EACH>
__device__ __forceinline__ void add_planes(const Chunk* from, Chunk& chunk, const Point (&at)[EACH], Polynomial<EACH>& sum) {
  if constexpr (K >= 0) {
    constexpr int top = (N + 1) / 2 - 1;
    Plane<EACH> plane;
    add_rows<AT, N - 2 * K, 1>(from, chunk, at, plane);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const REAL s = at[i].r2;
      if (derive) {
        sum.by_s[i] = K == top ? REAL(0) : K == top - 1 ? sum.value[i] : sum.by_s[i] * s + sum.value[i];
        sum.by_x[i] = K == top ? plane.by_x[i] : sum.by_x[i] * s + plane.by_x[i];
        sum.by_y[i] = K == top ? plane.by_y[i] : sum.by_y[i] * s + plane.by_y[i];
      }
      sum.value[i] = K == top ? plane.value[i] : sum.value[i] * s + plane.value[i];
    }
    add_planes<AT + pairs(N - 2 * K), N, K - 1>(from, chunk, at, sum);
  }
}

// The values at each point. With G the derivatives of F by u at fixed s, and F_s the derivative by s:
// ∂_a(F/r) = (s G_a − u_a(F + 2 u·G + 2 s F_s))/r.
template <int EACH>
__device__ __forceinline__ void evaluate(Point (&at)[EACH], const Chunk* coefficients) {
  Chunk chunk;
  Polynomial<EACH> even, odd = {};
  add_planes<0, ORDER, (ORDER + 1) / 2 - 1>(coefficients, chunk, at, even);
  add_planes<triples(ORDER), ORDER - 1, ORDER / 2 - 1>(coefficients, chunk, at, odd);
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const REAL(&u)[3] = at[i].y;
    const REAL s = at[i].r2, value = u[2] * odd.value[i] + even.value[i];
    at[i].value[0] = value * at[i].rho;
    if constexpr (VALUES > 1) {
      const REAL g[3] = {u[2] * odd.by_x[i] + even.by_x[i], u[2] * odd.by_y[i] + even.by_y[i], odd.value[i]};
      const REAL by_s = (u[2] * odd.by_s[i] + even.by_s[i]) * s;
      const REAL radial = 2 * (u[0] * g[0] + (u[1] * g[1] + (u[2] * g[2] + by_s))) + value;
#pragma unroll
      for (int a = 0; a < 3; ++a) at[i].value[1 + a] = (s * g[a] - u[a] * radial) * at[i].rho;
    }
  }
}

// Adds to the sums of task blockIdx.x the fields of the boxes in the row of the leaf. A block is one warp. SPLIT boxes are
// evaluated at once, each by the threads of one slice, while the next ones are copied to shared memory. numbers[e]: the
// place of the box of edge e in `sources`.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    from_polynomials(const Boxes* boxes, const Task* tasks, const u64* starts, const u32* numbers,
                     const Source* sources, const double* xyz, u64 points, u32 held, double* partial, double* values) {
  __shared__ Source tile[2][SPLIT];
  const Boxes t = *boxes;
  const Work work = work_of(t, tasks[blockIdx.x], starts, held, partial, values);
  const uint2 range = work.targets;
  const u32 lane = threadIdx.x % LANES, slice = threadIdx.x / LANES;
  const u64 begin_edges = work.begin, end = work.end;
  with_group(range, [&](auto each, u32 first) {
    constexpr int EACH = decltype(each)::value;
    double sum[EACH][VALUES] = {}, x[EACH][3];
#pragma unroll
    for (int i = 0; i < EACH; ++i)
#pragma unroll
      for (int a = 0; a < 3; ++a) x[i][a] = xyz[a * points + min(first + i * LANES + lane, range.y - 1)];
    // Slices without a box repeat the last box and do not add it.
    u32 next[SPLIT];
    auto name = [&](u64 e) {
#pragma unroll
      for (int k = 0; k < SPLIT; ++k) next[k] = numbers[min(e + k, end - 1)];
    };
    auto copy = [&](u32 buffer) {
#pragma unroll
      for (int k = 0; k < SPLIT; ++k)
        for (u32 i = threadIdx.x; i < sizeof(Source) / 16; i += THREADS)
          copy_async<16>((char*)&tile[buffer][k] + 16 * i, (const char*)&sources[next[k]] + 16 * i, true);
      commit_copies();
    };
    name(begin_edges);
    __syncwarp();
    copy(0);
    name(begin_edges + SPLIT);
    u32 buffer = 0;
    for (u64 e = begin_edges; e < end; e += SPLIT, buffer ^= 1) {
      // Behind the last box, it is copied again.
      copy(buffer ^ 1);
      name(e + 2 * SPLIT);
      wait_for_copies<1>();
      __syncwarp();
      const Source& source = tile[buffer][slice];
      Point at[EACH];
#pragma unroll
      for (int i = 0; i < EACH; ++i)
        begin(at[i], {x[i][0] - source.center[0], x[i][1] - source.center[1], x[i][2] - source.center[2]}, source.scale);
      evaluate(at, source.coefficients);
      const bool mine = e + slice < end;
#pragma unroll
      for (int i = 0; i < EACH; ++i)
#pragma unroll
        for (int k = 0; k < VALUES; ++k) sum[i][k] += mine ? at[i].value[k] * source.factors[k] : 0.0;
      __syncwarp();
    }
    wait_for_copies<0>();
    join(sum);
    double kept[KEPT(EACH)][VALUES];
    for_kept(sum, slice, [&](int n, int k, double value) { kept[n][k] = value; });
    add_kept<EACH>(kept, first, range.y, nullptr, work.sums);
  });
}
