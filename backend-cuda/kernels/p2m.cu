// P2M and P2L: from sources to check values on a surface around a box. Also adds net strengths to densities.
//
// Defined in front of this file: REAL, STRENGTHS, VALUES, THREADS, EACH (surface points per thread), and `bare_pair`
// (params, rx, ry, rz, q, u). Sources never lie on the surface, so no distance is zero.

#include "shared/level.cuh"
#include "shared/real.cuh"
#include "shared/source.cuh"

#define LEVEL_ROW (LEVEL_HEAD + STRENGTHS)
#define TILE 64

// Adds to row b of `out`, component by component, the check values of the sources of the boxes in row b. One block
// per box b of `items` (null: all boxes). surface: n points of a unit box, all x, then y, then z.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    to_surface(const Boxes* boxes, const double* levels, const u32* items, const u64* starts,
               const u32* row, const double* surface, u32 n, const double* xyz, u64 points, const double* strengths,
               REAL* out) {
  __shared__ Source tile[TILE];
  const Boxes t = *boxes;
  const u32 b = items ? items[blockIdx.x] : blockIdx.x;
  if (starts[b] == starts[b + 1]) return;
  const double* level = levels + LEVEL_ROW * t.level[b];
  const Frame frame = frame_of(t, b);
  const double scale = 1 / frame.side;
  REAL params[PARAMETERS];
#pragma unroll
  for (int k = 0; k < PARAMETERS; ++k) params[k] = (REAL)level[k];

  REAL x[EACH][3], sum[EACH][VALUES] = {};
#pragma unroll
  for (int i = 0; i < EACH; ++i)
    for (int a = 0; a < 3; ++a) x[i][a] = (REAL)surface[a * n + min(i * THREADS + threadIdx.x, n - 1)];
  for (u64 e = starts[b]; e < starts[b + 1]; ++e) {
    const uint2 range = t.source_range[row[e]];
    for (u32 begin = range.x; begin < range.y; begin += TILE) {
      const u32 count = min((u32)TILE, range.y - begin);
      __syncthreads();
      for (u32 j = threadIdx.x; j < count; j += THREADS) {
        Source y = {};
        for (int a = 0; a < 3; ++a) y.v[a] = (REAL)((xyz[a * points + begin + j] - frame.center[a]) * scale);
        for (int c = 0; c < STRENGTHS; ++c)
          y.v[3 + c] = (REAL)(strengths[(u64)(begin + j) * STRENGTHS + c] * level[LEVEL_HEAD + c]);
        tile[j] = y;
      }
      __syncthreads();
#pragma unroll 2
      for (u32 j = 0; j < count; ++j) {
        const Source y = tile[j];
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
          REAL u[VALUES];
          bare_pair(params, x[i][0] - y.v[0], x[i][1] - y.v[1], x[i][2] - y.v[2], y.v + 3, u);
#pragma unroll
          for (int k = 0; k < VALUES; ++k) sum[i][k] += u[k];
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const u32 at = i * THREADS + threadIdx.x;
    if (at >= n) continue;
    for (int k = 0; k < VALUES; ++k) out[(u64)b * VALUES * n + k * n + at] += sum[i][k];
  }
}

#define NET_THREADS 128

// Net strengths: nets[b · width + k] is the sum of one strength over the sources of box b. First of the leaves in
// `items`, from strength `component` of their sources; one block per box.
extern "C" __global__ void __launch_bounds__(NET_THREADS, 1)
    net_of_sources(const Boxes* boxes, const u32* items, const double* strengths, u32 component, double* nets,
                   u32 width, u32 k) {
  __shared__ double sums[NET_THREADS];
  const Boxes t = *boxes;
  const u32 b = items[blockIdx.x];
  const uint2 range = t.source_range[b];
  double sum = 0;
  for (u32 j = range.x + threadIdx.x; j < range.y; j += NET_THREADS) sum += strengths[(u64)j * STRENGTHS + component];
  sums[threadIdx.x] = sum;
  for (u32 half = NET_THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) nets[(u64)b * width + k] = sums[0];
}

// Then of the other boxes, from their children: the sources of the edges in row b. One thread per box.
extern "C" __global__ void net_of_children(const u32* items, u32 count, const u64* starts, const u32* row,
                                           double* nets, u32 width, u32 k) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const u32 b = items[i];
  double sum = 0;
  for (u64 e = starts[b]; e < starts[b + 1]; ++e) sum += nets[(u64)row[e] * width + k];
  nets[(u64)b * width + k] = sum;
}

// Adds the net strength of each box of `items` to its density: hatted, times the density `unit`. Rows of `densities`
// have `length` numbers. One block per box. Twin of backend-cpu/src/equivalent/net.rs.
extern "C" __global__ void __launch_bounds__(NET_THREADS, 1)
    add_net(const Boxes* boxes, const double* levels, const u32* items, const double* nets, u32 width, u32 k,
            u32 component, const REAL* unit, u32 length, REAL* densities) {
  const Boxes t = *boxes;
  const u32 b = items[blockIdx.x];
  const REAL net = (REAL)(nets[(u64)b * width + k] * levels[LEVEL_ROW * t.level[b] + LEVEL_HEAD + component]);
  for (u32 i = threadIdx.x; i < length; i += NET_THREADS) densities[(u64)b * length + i] += net * unit[i];
}
