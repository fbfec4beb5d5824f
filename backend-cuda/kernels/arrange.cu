// Edges of one kind sorted by the operator they take, lists of boxes, and the ends of a run: strengths into
// tree order, values into the caller's.

#include "shared/boxes.cuh"

#define OFFSETS 316
#define M2L 0
#define M2M 1
#define L2L 2

// Number of an offset among {-3 … 3}³ without the adjacent ones, x slowest; OFFSETS if it is none of them.
__device__ u32 offset_index(const int* d) {
  bool adjacent = true;
  for (int a = 0; a < 3; ++a) {
    if (d[a] < -3 || d[a] > 3) return OFFSETS;
    adjacent = adjacent && d[a] >= -1 && d[a] <= 1;
  }
  if (adjacent) return OFFSETS;
  const int x = d[0] + 3, y = d[1] + 3, z = d[2] + 3;
  const bool x_in = x >= 2 && x <= 4, y_in = y >= 2 && y <= 4;
  const int rows = 3 * min(max(x - 2, 0), 3) + (x_in ? min(max(y - 2, 0), 3) : 0);
  return 49 * x + 7 * y + z - 3 * rows - (x_in && y_in && z > 4 ? 3 : 0);
}

// For each edge the box that receives it, and the number of its operator: for M2L operators[level] · OFFSETS +
// offset; else 8 · (level of the child) + octant of the child. An edge that has none raises `refused`. A warp a box.
extern "C" __global__ void edge_keys(const Boxes* boxes, const u8* octants, u32 count, u32 kind, const u64* starts,
                                     const u32* sources, const u32* operators, u64* keys, u32* targets, u32* refused) {
  const Boxes t = *boxes;
  const u32 b = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (b >= count) return;
  for (u64 e = starts[b] + lane_id(); e < starts[b + 1]; e += 32) {
    const u32 s = sources[e];
    targets[e] = b;
    if (kind == M2L) {
      int d[3];
      for (int a = 0; a < 3; ++a) {
        const long long difference = (long long)(t.anchor[3ull * b + a] - t.anchor[3ull * s + a]);
        d[a] = (int)min(max(difference, -9ll), 9ll);
      }
      const u32 offset = t.level[b] == t.level[s] ? offset_index(d) : OFFSETS;
      if (offset == OFFSETS) atomicMin(refused, b);
      keys[e] = (u64)operators[t.level[b]] * OFFSETS + offset;
    } else {
      const u32 child = kind == M2M ? s : b;
      if (t.parent[child] != (kind == M2M ? b : s)) atomicMin(refused, b);
      keys[e] = 8ull * t.level[child] + octants[child];
    }
  }
}

// to[i] = from[order[i]].
extern "C" __global__ void take(const u32* from, const u32* order, u64 n, u32* to) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] = from[order[i]];
}

// First edge of each operator: starts[k] for k = 0 … operators, of sorted keys.
extern "C" __global__ void key_starts(const u64* keys, u64 n, u32 operators, u64* starts) {
  const u32 k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k > operators) return;
  u64 lo = 0, hi = n;
  while (lo < hi) {
    const u64 middle = lo + (hi - lo) / 2;
    if (keys[middle] < k)
      lo = middle + 1;
    else
      hi = middle;
  }
  starts[k] = lo;
}

// Boxes with an edge of one of up to three kinds: flags, then the boxes at the sums of the flags.
extern "C" __global__ void with_edges(u32 count, const u64* a, const u64* b, const u64* c, u32* flags) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) flags[i] = a[i] < a[i + 1] || b[i] < b[i + 1] || c[i] < c[i + 1];
}
extern "C" __global__ void list_boxes(u32 count, const u32* flags, const u64* starts, u32* boxes) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count && flags[i]) boxes[starts[i]] = i;
}

// Rows of `width` numbers into tree order.
extern "C" __global__ void scatter(const double* given, const u32* order, u64 n, u32 width, double* strengths) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n * width) strengths[i] = given[(u64)order[i / width] * width + i % width];
}
// And back, times `scale`.
extern "C" __global__ void gather(const double* values, const u32* order, u64 n, u32 width, double scale,
                                     double* out) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n * width) out[(u64)order[i / width] * width + i % width] = values[i] * scale;
}
