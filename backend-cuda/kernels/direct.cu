// Direct summation of any kernel: every target against every source.
//
// Defined in front of this file: REAL, STRENGTHS, VALUES, TARGETS (per thread), BLOCK (most threads), TILE (sources in
// shared memory), and two device functions with the arguments (params, rx, ry, rz, q, u). `guarded_pair` is the
// kernel. `bare_pair` is the kernel without the test for a zero distance, which then shows in a value that is not
// finite. (If a zero distance might not show, `bare_pair` is the same as `guarded_pair`.)
//
// A thread keeps the running sums of its targets in f64, and the sums of one tile in REAL. If the sum of a tile is not
// finite, or if the tile holds the target itself, the tile is summed again with `guarded_pair`.

#include "shared/real.cuh"
#include "shared/source.cuh"

// Packs n sources: (x - shift) / unit, and strengths times factors.
extern "C" __global__ void pack_sources(const double* points, const double* strengths, const double* factors,
                                        const double* frame, unsigned n, Source* out) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  Source s = {};
  for (int a = 0; a < 3; ++a) s.v[a] = (REAL)((points[3ull * i + a] - frame[a]) / frame[3]);
  for (int c = 0; c < STRENGTHS; ++c) s.v[3 + c] = (REAL)(strengths[(unsigned long long)i * STRENGTHS + c] * factors[c]);
  out[i] = s;
}

// Packs targets: (x - shift) / unit, one array per axis.
extern "C" __global__ void pack_targets(const double* points, const double* frame, unsigned m, REAL* out) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= m) return;
  for (int a = 0; a < 3; ++a) out[(unsigned long long)a * m + i] = (REAL)((points[3ull * i + a] - frame[a]) / frame[3]);
}

__device__ __forceinline__ void add_bare(const REAL* params, const REAL* x, const Source& s, REAL* sum) {
  REAL u[VALUES];
  bare_pair(params, x[0] - s.v[0], x[1] - s.v[1], x[2] - s.v[2], s.v + 3, u);
#pragma unroll
  for (int k = 0; k < VALUES; ++k) sum[k] += u[k];
}

// Sums the sources of split blockIdx.y (per_split tiles, from tile blockIdx.y · per_split on) at all targets, into row
// blockIdx.y of `out`. own[i]: the source that is target i, or 2^32 - 1 if there is none.
extern "C" __global__ void __launch_bounds__(BLOCK)
    direct_sum(const double* parameters, const Source* sources, unsigned n, const REAL* targets, const unsigned* own,
               unsigned m, unsigned per_split, double* out) {
  __shared__ Source tile[TILE];
  REAL params[PARAMETERS];
#pragma unroll
  for (int k = 0; k < PARAMETERS; ++k) params[k] = (REAL)parameters[k];

  const unsigned first = blockIdx.x * (blockDim.x * TARGETS) + threadIdx.x;
  REAL x[TARGETS][3];
  double sum[TARGETS][VALUES];
#pragma unroll
  for (int t = 0; t < TARGETS; ++t) {
    const unsigned i = min(first + t * blockDim.x, m - 1);
    for (int a = 0; a < 3; ++a) x[t][a] = targets[(unsigned long long)a * m + i];
    for (int k = 0; k < VALUES; ++k) sum[t][k] = 0;
  }

  const unsigned tiles = (n + TILE - 1) / TILE;
  const unsigned begin = blockIdx.y * per_split, end = min(begin + per_split, tiles);
  for (unsigned at = begin; at < end; ++at) {
    const unsigned start = at * TILE;
    const int count = min(TILE, n - start);
    __syncthreads();
    {
      const uint4* from = (const uint4*)(sources + start);
      uint4* to = (uint4*)tile;
      const int words = count * (int)(sizeof(Source) / 16);
      for (int w = threadIdx.x; w < words; w += blockDim.x) to[w] = from[w];
    }
    __syncthreads();

    REAL part[TARGETS][VALUES];
#pragma unroll
    for (int t = 0; t < TARGETS; ++t)
#pragma unroll
      for (int k = 0; k < VALUES; ++k) part[t][k] = 0;
    if (count == TILE) {
#pragma unroll UNROLL
      for (int j = 0; j < TILE; ++j) {
        const Source s = tile[j];
#pragma unroll
        for (int t = 0; t < TARGETS; ++t) add_bare(params, x[t], s, part[t]);
      }
    } else {
      for (int j = 0; j < count; ++j) {
        const Source s = tile[j];
#pragma unroll
        for (int t = 0; t < TARGETS; ++t) add_bare(params, x[t], s, part[t]);
      }
    }

#pragma unroll
    for (int t = 0; t < TARGETS; ++t) {
      const unsigned self = own[min(first + t * blockDim.x, m - 1)] - start;
      bool good = self >= TILE;
#pragma unroll
      for (int k = 0; k < VALUES; ++k) good = good && finite(part[t][k]);
      if (!good) {
        for (int k = 0; k < VALUES; ++k) part[t][k] = 0;
        for (int j = 0; j < count; ++j) {
          if (j == self) continue;
          REAL u[VALUES];
          const Source s = tile[j];
          guarded_pair(params, x[t][0] - s.v[0], x[t][1] - s.v[1], x[t][2] - s.v[2], s.v + 3, u);
          for (int k = 0; k < VALUES; ++k) part[t][k] += u[k];
        }
      }
#pragma unroll
      for (int k = 0; k < VALUES; ++k) sum[t][k] += (double)part[t][k];
    }
  }

#pragma unroll
  for (int t = 0; t < TARGETS; ++t) {
    const unsigned i = first + t * blockDim.x;
    if (i >= m) continue;
#pragma unroll
    for (int k = 0; k < VALUES; ++k) out[((unsigned long long)blockIdx.y * m + i) * VALUES + k] = sum[t][k];
  }
}

// out[i] = scale · the sum over the splits. `lanes` threads, a power of two up to 32, share a value: each adds every
// lanes-th split in order, and then they add up what they have.
extern "C" __global__ void combine(const double* parts, const double* scale, unsigned splits, unsigned m,
                                   unsigned lanes, double* out) {
  const unsigned long long count = (unsigned long long)m * VALUES;
  const unsigned long long i = ((unsigned long long)blockIdx.x * blockDim.x + threadIdx.x) / lanes;
  double sum = 0;
  if (i < count)
    for (unsigned s = threadIdx.x % lanes; s < splits; s += lanes) sum += parts[s * count + i];
  for (unsigned apart = lanes / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
  if (i < count && threadIdx.x % lanes == 0) out[i] = sum * scale[i % VALUES];
}
