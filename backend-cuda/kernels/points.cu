// From points in the caller's order to their bounding box, their keys, and arrays in tree order.

#include "shared/boxes.cuh"
#include "shared/warp.cuh"

// A bounding box, and the index of the first coordinate that is not finite (2^64 - 1: none).
struct Bounds {
  double low[3], high[3];
  u64 bad;
};
static_assert(sizeof(Bounds) == 56, "the host reads seven numbers");

__device__ Bounds nothing() {
  Bounds b;
  for (int a = 0; a < 3; ++a) {
    b.low[a] = __longlong_as_double(0x7ff0000000000000ll);
    b.high[a] = -b.low[a];
  }
  b.bad = ~0ull;
  return b;
}

__device__ Bounds join(Bounds a, const Bounds& b) {
  for (int i = 0; i < 3; ++i) {
    a.low[i] = fmin(a.low[i], b.low[i]);
    a.high[i] = fmax(a.high[i], b.high[i]);
  }
  a.bad = min(a.bad, b.bad);
  return a;
}

// Joins the bounds of all threads of a block of 256. Thread 0 gets the result.
__device__ Bounds join_block(Bounds mine) {
  __shared__ Bounds all[256];
  all[threadIdx.x] = mine;
  for (u32 half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) all[threadIdx.x] = join(all[threadIdx.x], all[threadIdx.x + half]);
  }
  return all[0];
}

// The bounds of the points of each block. Points have `dim` coordinates, 2 or 3.
extern "C" __global__ void __launch_bounds__(256) bounds(const double* points, u64 n, u32 dim, Bounds* parts) {
  Bounds mine = nothing();
  const u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    // With a fixed number of rounds, the bounds stay in registers.
#pragma unroll
    for (u32 a = 0; a < 3; ++a) {
      if (a >= dim) break;
      const double x = points[dim * i + a];
      mine.low[a] = fmin(mine.low[a], x);
      mine.high[a] = fmax(mine.high[a], x);
      if (!(x - x == 0)) mine.bad = min(mine.bad, dim * i + a);
    }
  }
  const Bounds all = join_block(mine);
  if (threadIdx.x == 0) parts[blockIdx.x] = all;
}

// Joins the bounds of all blocks into parts[0]. One block.
extern "C" __global__ void __launch_bounds__(256) join_bounds(Bounds* parts, u32 count) {
  Bounds mine = nothing();
  for (u32 i = threadIdx.x; i < count; i += blockDim.x) mine = join(mine, parts[i]);
  const Bounds all = join_block(mine);
  if (threadIdx.x == 0) parts[0] = all;
}

// Points of the plane (N×2) as points of space at z = 0.
extern "C" __global__ void lift(const double* points, u64 n, double* lifted) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  for (int a = 0; a < 3; ++a) lifted[3 * i + a] = a < 2 ? points[2 * i + a] : 0.0;
}

// Keys of the points. frame: the corner of the root (three numbers), and the cells per unit length.
extern "C" __global__ void point_keys(const double* points, u64 n, const double* frame, u64* keys) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) keys[i] = key_of(points + 3 * i, frame, frame[3]);
}

// Writes the points (N×3) in the given order as three arrays, xyz[axis · n + position].
extern "C" __global__ void gather(const double* points, const u32* order, u64 n, double* xyz) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const double* p = points + 3ull * order[i];
  for (int a = 0; a < 3; ++a) xyz[a * n + i] = p[a];
}

// Writes the points with the given indices.
extern "C" __global__ void take_rows(const double* points, const u32* indices, u32 count, double* taken) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  for (int a = 0; a < 3; ++a) taken[3ull * i + a] = points[3ull * indices[i] + a];
}

// A number that ascends as x does, and -0 before 0.
__device__ u64 ascending(double x) {
  const u64 bits = (u64)__double_as_longlong(x);
  return bits ^ (bits >> 63 ? ~0ull : 1ull << 63);
}

// The bits of x from ascending(x).
__device__ u64 bits_of_ascending(u64 key) { return key ^ (key >> 63 ? 1ull << 63 : ~0ull); }

// fmm_tree::sample_index: a permutation of the numbers below n that looks random.
__device__ u64 sample_index(u64 i, u64 n) {
  u32 half = 1;
  while (half < 32 && (1ull << 2 * half) < n) ++half;
  const u64 mask = (1ull << half) - 1;
  do {
    for (u64 round = 1; round <= 4; ++round) {
      const u64 left = i >> half, right = i & mask;
      u64 x = right << 8 | round;
      x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
      x = (x ^ x >> 27) * 0x94d049bb133111ebull;
      i = right << half | (left ^ ((x ^ x >> 31) & mask));
    }
  } while (i >= n);
  return i;
}

// The first m points of fmm_tree::RootSample of n points, of which those from `first` to `end` - 1 are here; zeros for others.
// `points` begins with point `first`.
extern "C" __global__ void sample_points(const double* points, u64 first, u64 end, u64 n, u32 m, double* sample) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= m) return;
  const u64 at = sample_index(i, n);
  const bool here = first <= at && at < end;
  for (int a = 0; a < 3; ++a) sample[3 * i + a] = here ? points[3 * (at - first) + a] : 0.0;
}

// pairs[level - 1] += ordered pairs of different keys in one box of the level, for m keys that ascend in the bits of these
// levels. A row of blocks per level.
extern "C" __global__ void __launch_bounds__(256) pairs_of_levels(const u64* keys, u32 m, u64* pairs) {
  const u32 shift = 3 * (KEY_LEVELS - 1 - blockIdx.y), i = blockIdx.x * blockDim.x + threadIdx.x;
  const u64 box = i < m ? keys[i] >> shift : 0;
  // The first key of a box. The last one lies in low … high - 1.
  u64 mine = 0;
  if (i < m && !(i > 0 && keys[i - 1] >> shift == box)) {
    u32 low = i, high = m;
    while (high - low > 1) {
      const u32 middle = low + (high - low) / 2;
      if (keys[middle] >> shift == box) low = middle;
      else high = middle;
    }
    const u64 count = high - i;
    mine = count * (count - 1);
  }
  const u64 of_warp = warp_inclusive(mine);
  if (lane_id() == 31 && of_warp > 0) atomicAdd(pairs + blockIdx.y, of_warp);
}

// middle[2 · axis + end]: the bits of the coordinate along an axis that has the rank low (end 0) or high (end 1) among m
// points, in ascending order. A block per axis (x) and end (y) finds the coordinate digit by digit from above.
extern "C" __global__ void __launch_bounds__(1024)
    middle_of_axes(const double* points, u32 m, u32 low, u32 high, u64* middle) {
  __shared__ u32 counts[256], rank;
  __shared__ u64 known;
  if (threadIdx.x == 0) {
    rank = blockIdx.y ? high : low;
    known = 0;
  }
  for (int shift = 56; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) counts[threadIdx.x] = 0;
    __syncthreads();
    const u64 above = shift == 56 ? 0 : known >> (shift + 8);
    for (u32 i = threadIdx.x; i < m; i += blockDim.x) {
      const u64 key = ascending(points[3 * i + blockIdx.x]);
      if (shift == 56 || key >> (shift + 8) == above) atomicAdd(&counts[key >> shift & 255], 1u);
    }
    __syncthreads();
    // Eight digits per lane of the first warp.
    if (threadIdx.x < 32) {
      u32 mine = 0;
      for (u32 d = 0; d < 8; ++d) mine += counts[8 * threadIdx.x + d];
      u32 before = warp_inclusive(mine) - mine;
      const u32 wanted = rank;
      __syncwarp();
      if (before <= wanted && wanted < before + mine) {
        u32 digit = 8 * threadIdx.x;
        while (wanted >= before + counts[digit]) before += counts[digit++];
        rank = wanted - before;
        known |= (u64)digit << shift;
      }
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) middle[2 * blockIdx.x + blockIdx.y] = bits_of_ascending(known);
}
