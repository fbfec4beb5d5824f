// L2P and M2P: from equivalent densities on the surfaces of boxes to values at the targets of a leaf.
//
// Defined in front of this file: REAL, STRENGTHS (of a density), VALUES, BLOCKS (per multiprocessor), SPLIT, MOST and
// TILE_BYTES (group.cuh), and `bare_pair`. Targets never lie on these surfaces, so no distance is zero.

#include "shared/level.cuh"
#include "shared/real.cuh"
#include "shared/source.cuh"
#include "shared/group.cuh"

// Densities that a thread reads before it uses the first. In f32, reading one is faster.
#define AHEAD (sizeof(REAL) == 8 ? 2 : 1)
#define LEVEL_ROW (LEVEL_HEAD + VALUES)

// Adds to the sums of task blockIdx.x the fields of the boxes in the row of the leaf, and the affine field of the leaf
// itself. A block is one warp.
// * surface: n points of a unit box, all x, then y, then z.
// * parts: affine parts as in affine.cu, `part_row` numbers per box; null if there are none. Value i of a target is
//   number of[i] of the part. If that is the value of a component, the three slopes behind it are added too. of[i] <
//   0: no part.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    from_surface(const Boxes* boxes, const Task* tasks, const u64* starts, const double* levels, const u32* row,
                 const double* surface, u32 n, const REAL* densities, const double* xyz, u64 points, const REAL* parts,
                 u32 part_row, const int* of, u32 held, double* partial, double* values) {
  __shared__ Source tile[TILE];
  const Boxes t = *boxes;
  const Task task = tasks[blockIdx.x];
  const Work work = work_of(t, task, starts, held, partial, values);
  const u32 b = work.leaf;
  const uint2 range = work.targets;
  const u32 lane = threadIdx.x % LANES, slice = threadIdx.x / LANES;
  with_group(range, [&](auto each, u32 first) {
    constexpr int EACH = decltype(each)::value, UNROLL = EACH < 4 ? 4 : 2;
    double sum[KEPT(EACH)][VALUES] = {};
    for (u64 e = work.begin; e < work.end; ++e) {
      const u32 s = row[e];
      const double* level = levels + LEVEL_ROW * t.level[s];
      const Frame frame = frame_of(t, s);
      const double scale = 1 / frame.side;
      REAL params[PARAMETERS], x[EACH][3], part[EACH][VALUES] = {};
#pragma unroll
      for (int k = 0; k < PARAMETERS; ++k) params[k] = (REAL)level[k];
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        const u32 at = min(first + i * LANES + lane, range.y - 1);
        for (int a = 0; a < 3; ++a) x[i][a] = (REAL)((xyz[a * points + at] - frame.center[a]) * scale);
      }
      for (u32 begin = 0; begin < n; begin += TILE) {
        const u32 count = min((u32)TILE, n - begin);
        __syncwarp();
        auto read = [&](u32 j) {
          Source y = {};
          for (int a = 0; a < 3; ++a) y.v[a] = (REAL)surface[a * n + begin + j];
          for (int c = 0; c < STRENGTHS; ++c) y.v[3 + c] = densities[((u64)s * STRENGTHS + c) * n + begin + j];
          return y;
        };
        read_ahead<AHEAD>(count, read, [&](u32 j, const Source& y) {
          if (j < count) tile[j] = y;
        });
        __syncwarp();
#pragma unroll UNROLL
        for (u32 j = slice; j < count; j += SPLIT) {
          const Source y = tile[j];
#pragma unroll
          for (int i = 0; i < EACH; ++i) {
            REAL u[VALUES];
            bare_pair(params, x[i][0] - y.v[0], x[i][1] - y.v[1], x[i][2] - y.v[2], y.v + 3, u);
#pragma unroll
            for (int k = 0; k < VALUES; ++k) part[i][k] += u[k];
          }
        }
      }
      join(part);
      for_kept(part, slice, [&](int i, int k, double mine) { sum[i][k] += mine * level[LEVEL_HEAD + k]; });
    }
    if (parts && task.part == 0) {
      const REAL* part = parts + (u64)part_row * b;
      const double* level = levels + LEVEL_ROW * t.level[b];
      const Frame frame = frame_of(t, b);
      const double scale = 1 / frame.side;
#pragma unroll
      for (int i = 0; i < KEPT(EACH); ++i) {
        const u32 at = min(first + (i * SPLIT + slice) * LANES + lane, range.y - 1);
        double x[3];
        for (int a = 0; a < 3; ++a) x[a] = (xyz[a * points + at] - frame.center[a]) * scale;
#pragma unroll
        for (int k = 0; k < VALUES; ++k) {
          const int which = of[k];
          if (which < 0) continue;
          double u = part[which];
          if (which % 4 == 0)
            for (int a = 0; a < 3; ++a) u += part[which + 1 + a] * x[a];
          sum[i][k] += u * level[LEVEL_HEAD + k];
        }
      }
    }
    add_kept<EACH>(sum, first, range.y, nullptr, work.sums);
  });
}
