// L2P and M2P: from rows of harmonics to values at the targets of a leaf. M2P is L2P at the inverted point.
//
// Defined in front of this file: REAL, VALUES, ORDER, SINGULAR (1: M2P), BLOCKS (per multiprocessor), SPLIT, MOST and
// TILE_BYTES (group.cuh).

#include "shared/level.cuh"

// The coefficients of one harmonic, for all values.
struct alignas((VALUES % 4 == 0 ? 4 : VALUES % 2 == 0 ? 2 : 1) * sizeof(REAL) < 16
                   ? (VALUES % 4 == 0 ? 4 : VALUES % 2 == 0 ? 2 : 1) * sizeof(REAL)
                   : 16) Source {
  REAL v[VALUES];
};
static_assert(sizeof(Source) == VALUES * sizeof(REAL), "rows are packed");

#include "shared/group.cuh"
#include "shared/series.cuh"

#define LEVEL_ROW (LEVEL_HEAD + VALUES)
// Harmonics of one box whose coefficients are in shared memory at once. The number is not a multiple of eight, so
// that boxes read at the same time lie in distinct banks.
#define ROOM (TILE / SPLIT - 1)
// Whether the loops over all harmonics are unrolled: all fit into shared memory, and the order is low.
#define KNOWN (ORDER * ORDER <= ROOM && ORDER <= (VALUES == 10 ? 6 : 10))
// Largest number of terms in a coefficient.
#define TERMS (VALUES == 1 ? 1 : VALUES == 4 ? 2 : 3)

// Adds to the sums of task blockIdx.x the fields of the boxes in the row of the leaf. A block is one warp. SPLIT boxes are
// evaluated at once, each by the threads of one slice. Coefficient i of a box is Σ_j factors[j, i] · row[columns[j, i]],
// in the order in which harmonics are summed, all values of a harmonic together. Coefficients are made for as many m as
// fit into shared memory. rows: `stride` numbers per box.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    from_harmonics(const Boxes* boxes, const Task* tasks, const u64* starts, const double* levels, const u32* row,
                   const REAL* betas, const u32* columns, const REAL* factors, u32 stride, const REAL* rows,
                   const double* xyz, u64 points, u32 held, double* partial, double* values) {
  __shared__ Source tile[SPLIT][ROOM];
  const Boxes t = *boxes;
  const Work work = work_of(t, tasks[blockIdx.x], starts, held, partial, values);
  const uint2 range = work.targets;
  const u32 lane = threadIdx.x % LANES, slice = threadIdx.x / LANES;
  const u64 end = work.end;
  with_group(range, [&](auto each, u32 first) {
    constexpr int EACH = decltype(each)::value;
    double sum[EACH][VALUES] = {}, x[EACH][3];
#pragma unroll
    for (int i = 0; i < EACH; ++i)
      for (int a = 0; a < 3; ++a) x[i][a] = xyz[a * points + min(first + i * LANES + lane, range.y - 1)];
    for (u64 e = work.begin; e < end; e += SPLIT) {
      // Slices without a box repeat the last box and do not add it.
      const u32 s = row[min(e + slice, end - 1)];
      const bool mine = e + slice < end;
      const double* level = levels + LEVEL_ROW * t.level[s];
      const Frame frame = frame_of(t, s);
      const double scale = 1 / frame.side;
      Point at[EACH];
#pragma unroll
      for (int i = 0; i < EACH; ++i)
        begin(at[i], {x[i][0] - frame.center[0], x[i][1] - frame.center[1], x[i][2] - frame.center[2]}, scale);
      // Fills the tiles with the coefficients of `count` harmonics, from harmonic `before` on.
      auto make = [&](u32 before, u32 count) {
        __syncwarp();
#pragma unroll
        for (int k = 0; k < SPLIT; ++k) {
          const REAL* from = rows + (u64)__shfl_sync(~0u, s, k * LANES) * stride;
          REAL* to = tile[k][0].v;
#pragma unroll 8
          for (u32 i = threadIdx.x; i < count * VALUES; i += THREADS) {
            REAL coefficient = 0;
#pragma unroll
            for (int j = 0; j < TERMS; ++j) {
              const u32 place = (j * ORDER * ORDER + before) * VALUES + i;
              coefficient += factors[place] * from[columns[place]];
            }
            to[i] = coefficient;
          }
        }
        __syncwarp();
      };
      if constexpr (KNOWN) {
        make(0, ORDER * ORDER);
        add_columns<0>(at, tile[slice]);
      } else {
        for (int m = 0, before = 0; m < ORDER;) {
          int stop = m, count = 0;
          while (stop < ORDER && count + width(stop) <= ROOM) count += width(stop++);
          make(before, count);
          before += count;
          for (const Source* from = tile[slice]; m < stop; from += width(m++)) add_column<-1>(at, from, m, betas);
        }
      }
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        finish(at[i]);
#pragma unroll
        for (int k = 0; k < VALUES; ++k) sum[i][k] += mine ? at[i].value[k] * level[LEVEL_HEAD + k] : 0.0;
      }
    }
    join(sum);
    double kept[KEPT(EACH)][VALUES];
    for_kept(sum, slice, [&](int n, int k, double value) { kept[n][k] = value; });
    add_kept<EACH>(kept, first, range.y, nullptr, work.sums);
  });
}
