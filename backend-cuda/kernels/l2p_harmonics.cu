// L2P and M2P: rows of harmonics to values at the targets of a leaf. Twin of `Values` in backend-cpu/src/spherical/points.rs.
//
// In front of this file: REAL, VALUES, BLOCKS (of a multiprocessor), SPLIT (1) and MOST (group.cuh).

#include "shared/level.cuh"
#include "shared/harmonics.cuh"
#include "shared/real.cuh"

// The coefficients of a harmonic, for all values.
struct alignas((VALUES % 4 == 0 ? 4 : VALUES % 2 == 0 ? 2 : 1) * sizeof(REAL) < 16
                   ? (VALUES % 4 == 0 ? 4 : VALUES % 2 == 0 ? 2 : 1) * sizeof(REAL)
                   : 16) Source {
  REAL v[VALUES];
};
static_assert(sizeof(Source) == VALUES * sizeof(REAL), "rows are packed");

#include "shared/group.cuh"

#define LEVEL_ROW (LEVEL_HEAD + VALUES)

// The targets of leaf items[blockIdx.x], in groups, which see the rows of boxes with its number, `stride` numbers each. A block
// is a warp. The coefficients of all values, harmonics below `order` column by column, are a sparse matrix (starts, columns,
// entries; a row a harmonic and value) times the row of a box, made for as many columns as fit. Values are added to those of the
// targets.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    from_harmonics(const Boxes* boxes, const double* corner, const double* levels, const u32* items, const u64* starts,
                   const u32* row, const Step* steps, u32 order, u32 singular, const u32* matrix, const u32* columns,
                   const REAL* entries, u32 stride, const REAL* rows, const double* xyz, u64 points, double* values) {
  __shared__ Source tile[TILE];
  const Boxes t = *boxes;
  const u32 b = items[blockIdx.x];
  const uint2 range = t.target_range[b];
  const u32 lane = threadIdx.x;
  for_groups(range, [&](auto each, u32 first) {
    constexpr int EACH = decltype(each)::value;
    double sum[KEPT(EACH)][VALUES] = {};
    for (u64 e = starts[b]; e < starts[b + 1]; ++e) {
      const u32 s = row[e];
      const REAL* from = rows + (u64)s * stride;
      const double* level = levels + LEVEL_ROW * t.level[s];
      double center[3];
      center_of(t, s, corner, level[0], center);
      const double scale = 1 / level[0];
      Harmonics at[EACH];
      REAL part[EACH][VALUES] = {};
#pragma unroll
      for (int i = 0; i < EACH; ++i)
        place(at[i], xyz, points, min(first + i * LANES + lane, range.y - 1), center, scale, singular);
      const u32* next = matrix;
      for (u32 m = 0; m < order;) {
        // The columns that fit.
        auto width = [&](u32 m) { return (order - m) * (m > 0 ? 2 : 1); };
        u32 end = m, count = 0;
        while (end < order && count + width(end) <= TILE) count += width(end++);
        __syncwarp();
        for (u32 i = lane; i < count * VALUES; i += THREADS) {
          REAL coefficient = 0;
          for (u32 j = next[i]; j < next[i + 1]; ++j) coefficient += entries[j] * from[columns[j]];
          tile[i / VALUES].v[i % VALUES] = coefficient;
        }
        __syncwarp();
        next += count * VALUES;
        for (const Source* column = tile; m < end; ++m) {
          if (m > 0) {
            const Step step = steps[triangle(m, m)];
#pragma unroll
            for (int i = 0; i < EACH; ++i) at[i].next(step);
          }
          for_column(at, steps, m, order, [&](u32 n, const REAL(&cosines)[EACH], const REAL(&sines)[EACH]) {
            const Source c = column[n - m];
#pragma unroll
            for (int i = 0; i < EACH; ++i)
#pragma unroll
              for (int k = 0; k < VALUES; ++k) part[i][k] += c.v[k] * cosines[i];
            if (m == 0) return;
            const Source s = column[order - m + n - m];
#pragma unroll
            for (int i = 0; i < EACH; ++i)
#pragma unroll
              for (int k = 0; k < VALUES; ++k) part[i][k] += s.v[k] * sines[i];
          });
          column += width(m);
        }
      }
#pragma unroll
      for (int i = 0; i < EACH; ++i)
#pragma unroll
        for (int k = 0; k < VALUES; ++k) sum[i][k] += part[i][k] * level[LEVEL_HEAD + k];
    }
    add_kept<EACH>(sum, first, range.y, nullptr, values);
  });
}
