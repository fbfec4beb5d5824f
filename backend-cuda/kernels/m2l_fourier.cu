// M2L through Fourier space, frequency by frequency. A family is the eight children of a box. At one frequency, M2L
// from a family to a neighbouring family is an 8 × 8 matrix of operators times the eight spectra of the sources
// (Malhotra & Biros 2015, §3.2). The products run on the tensor cores, eight target families at a time. Twin of
// backend-cpu/src/equivalent/{m2l,families}.rs.
//
// In the plane all boxes lie in one layer, and a family has four children: those of the lower half in z. Half of the
// rows of a product are then idle.
//
// Defined in front of this file: REAL, DIM (3, or 2 for kernels of the plane).

#include "shared/boxes.cuh"
#include "shared/complex.cuh"
#include "shared/offset.cuh"
#include "shared/product.cuh"

#define FAMILY (1 << DIM)
// Families around a family.
#define AROUND (DIM == 3 ? 26 : 8)
#define THREADS 256
// Groups of eight target families per warp.
#define EIGHTS 4
#define UNROLL 2

// kids[family · 8 + octant]: the child plus 1, or 0 if there is no such child. `kids` must be zeros before.
extern "C" __global__ void family_kids(const Boxes* boxes, const u8* octants, const u32* parents, u32 families,
                                       u32* kids) {
  const Boxes t = *boxes;
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x, f = i / FAMILY, k = i % FAMILY;
  if (f >= families || k >= t.child_count[parents[f]]) return;
  const u32 c = t.child_start[parents[f]] + k;
  if (octants[c] < FAMILY) kids[f * FAMILY + octants[c]] = c + 1;
}

// The direction with number d, from a box to one of the boxes around it.
__device__ __forceinline__ void direction(u32 d, int* to) {
  u32 code = d + (d >= AROUND / 2);
  for (int a = 2; a >= 0; --a) {
    to[a] = a < DIM ? (int)(code % 3) - 1 : 0;
    if (a < DIM) code /= 3;
  }
}

// Number of the operator from child `source` of the box in direction d to child `target`. OFFSETS if the two are
// adjacent.
__device__ __forceinline__ u32 operator_of(u32 d, u32 target, u32 source) {
  int offset[3];
  direction(d, offset);
  for (int a = 0; a < 3; ++a) offset[a] = (int)(target >> a & 1) - (int)(source >> a & 1) - 2 * offset[a];
  return offset_index(offset);
}

// around[d · receivers + r]: the sending family in direction d of receiving family r, plus 1, if the V list joins any of
// their children. It must be zeros before. to_number[b], from_number[b]: the receiving and the sending family whose parent
// is box b. An edge between boxes in other positions sets `refused` to its receiver. One warp per box.
extern "C" __global__ void family_around(const Boxes* boxes, u32 count, const u64* starts, const u32* sources,
                                         const u64* from_number, const u64* to_number, u32 receivers, u32* around,
                                         u32* refused) {
  const Boxes t = *boxes;
  const u32 b = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (b >= count) return;
  for (u64 e = starts[b] + lane_id(); e < starts[b + 1]; e += 32) {
    const u32 s = sources[e], p = t.parent[b], from = t.parent[s];
    int offset[3];
    u32 code = 0;
    bool good = b > 0 && s > 0 && t.level[b] == t.level[s];
    for (int a = 0; good && a < 3; ++a) {
      const long long d = (long long)(t.anchor[3ull * from + a] - t.anchor[3ull * p + a]);
      const long long o = (long long)(t.anchor[3ull * b + a] - t.anchor[3ull * s + a]);
      good = a < DIM ? d >= -1 && d <= 1 : d == 0;
      offset[a] = (int)min(max(o, -9ll), 9ll);
      if (a < DIM) code = 3 * code + (u32)(d + 1);
    }
    if (good && code != AROUND / 2 && offset_index(offset) < OFFSETS)
      around[(u64)(code - (code > AROUND / 2)) * receivers + to_number[p]] = (u32)from_number[from] + 1;
    else
      atomicMin(refused, b);
  }
}

// Number of edges that the product covers: pairs of children of neighbouring families (`around`) that are not
// adjacent, with sources and targets. The host compares it with the length of the V list. `sources`: the number of
// sources of each box, also on other ranks; null: those that are here. One thread per family and direction.
extern "C" __global__ void __launch_bounds__(256) family_edges(const Boxes* boxes, const u32* from_kids,
                                                               const u32* to_kids, const u32* around, u32 receivers,
                                                               const u64* sources, u64* edges) {
  const Boxes t = *boxes;
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  const u32 r = i % receivers, d = i / receivers;
  u64 mine = 0, total;
  const u32 s = d < AROUND ? around[i] : 0;
  if (s != 0)
    for (u32 k = 0; k < FAMILY * FAMILY; ++k) {
      const u32 target = to_kids[r * FAMILY + k / FAMILY], source = from_kids[(s - 1) * FAMILY + k % FAMILY];
      if (target == 0 || source == 0) continue;
      const bool both = targets_in(t, target - 1) > 0 && (sources ? sources[source - 1] : sources_in(t, source - 1)) > 0;
      mine += both && operator_of(d, k / FAMILY, k % FAMILY) < OFFSETS;
    }
  block_exclusive(mine, total);
  if (threadIdx.x == 0) atomicAdd(edges, total);
}

// numbers[(d · FAMILY + target) · FAMILY + source]: the operator from child `source` of the box in direction d to child `target`.
extern "C" __global__ void operator_numbers(u32* numbers) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < AROUND * FAMILY * FAMILY) numbers[i] = operator_of(i / (FAMILY * FAMILY), i / FAMILY % FAMILY, i % FAMILY);
}

// A complex entry of an operator in the layout of the tensor cores. Rows 0 … 7 of a product are real parts, rows 8 … 15
// imaginary parts. Columns 0 … 3 are real parts, columns 4 … 7 imaginary parts.
template <class T>
struct Entry;
template <>
struct Entry<double> {
  double re, im;
  __device__ void set(double x, double y) { re = x, im = y; }
  // Adds the products with all b (real and imaginary parts).
  __device__ __forceinline__ void add(double (&c)[1][EIGHTS][4], const double (&b)[EIGHTS][2]) const {
    const double a[1][4] = {{re, im, -im, re}};
    add_products(c, a, b);
  }
};
template <>
struct alignas(16) Entry<float> {
  float a[4];
  __device__ void set(float x, float y) { a[0] = a[3] = x, a[1] = y, a[2] = -y; }
  __device__ __forceinline__ void add(float (&c)[1][EIGHTS][4], const float (&b)[EIGHTS][2]) const {
    u32 high_a[4], low_a[4], high_b[EIGHTS][2], low_b[EIGHTS][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) cut(a[i], high_a[i], low_a[i]);
#pragma unroll
    for (int i = 0; i < 2 * EIGHTS; ++i) cut(b[i / 2][i % 2], high_b[i / 2][i % 2], low_b[i / 2][i % 2]);
#pragma unroll
    for (int n = 0; n < EIGHTS; ++n) multiply_add_16x8x8(c[0][n], low_a, high_b[n]);
#pragma unroll
    for (int n = 0; n < EIGHTS; ++n) multiply_add_16x8x8(c[0][n], high_a, low_b[n]);
#pragma unroll
    for (int n = 0; n < EIGHTS; ++n) multiply_add_16x8x8(c[0][n], high_a, high_b[n]);
  }
};

// For the receiving families first … first + count − 1: the spectra of check values, summed over all families around, at
// frequency k = blockIdx.y, for value blockIdx.z.
// * operators[((k · values + value) · strengths + strength) · OFFSETS + offset]
// * spectra: of the sending families, plane strength · frequencies + k; family 0 is zero.
// * sums: of the receiving families, plane value · frequencies + k.
// In f32, the products of each direction are summed separately and then added, because the tensor cores truncate sums
// instead of rounding them.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    m2l_product(const Complex* operators, const u32* numbers, u32 strengths, const Complex* spectra, u32 receivers, u32 first,
                u32 count, const u32* around, u32 shift, Complex* sums) {
  // Operators in the order in which the lanes of a warp read them: target g, source t, and in space source t + 4.
  constexpr int HALVES = FAMILY / 4;
  __shared__ Entry<REAL> matrices[AROUND][HALVES][32];
  constexpr bool apart = sizeof(REAL) == 4;
  const u32 k = blockIdx.y, value = blockIdx.z, frequencies = gridDim.y, values = gridDim.z;
  const u32 g = lane_id() / 4, t = lane_id() % 4;
  const u32 base = (blockIdx.x * (THREADS / 32) + threadIdx.x / 32) * (8 * EIGHTS);
  // Number of families of this lane; they are eight apart.
  const u32 mine = base + g < count ? (count - base - g + 7) / 8 : 0;
  const u32 planes = strengths * frequencies;
  REAL sum[1][EIGHTS][4] = {}, part[1][EIGHTS][4] = {};
  for (u32 strength = 0; strength < strengths; ++strength) {
    const Complex* entries = operators + ((u64)(k * values + value) * strengths + strength) * OFFSETS;
    __syncthreads();
    for (u32 i = threadIdx.x; i < AROUND * HALVES * 32; i += THREADS) {
      const u32 d = i / (HALVES * 32), half = i / 32 % HALVES, target = i % 32 / 4, source = i % 4 + 4 * half;
      const u32 o = target < FAMILY ? numbers[(d * FAMILY + target) * FAMILY + source] : OFFSETS;
      const Complex m = o < OFFSETS ? entries[o] : Complex{0, 0};
      matrices[d][half][i % 32].set(m.re, m.im);
    }
    __syncthreads();
    const Complex* from = spectra + (((u64)strength * frequencies + k) << shift) * FAMILY + t;
    const u32* row = around + first + base + g;
#pragma unroll UNROLL
    for (u32 d = 0; d < AROUND; ++d, row += receivers) {
      u32 source[EIGHTS], any = 0;
#pragma unroll
      for (int n = 0; n < EIGHTS; ++n) {
        source[n] = n < mine ? row[8 * n] : 0;
        any |= source[n];
      }
      if (!__any_sync(~0u, any != 0)) continue;
      const Complex* at[EIGHTS];
#pragma unroll
      for (int n = 0; n < EIGHTS; ++n) at[n] = from + (u64)family_row(source[n], planes, shift) * FAMILY;
#pragma unroll
      for (int half = 0; half < HALVES; ++half) {
        REAL b[EIGHTS][2];
#pragma unroll
        for (int n = 0; n < EIGHTS; ++n) {
          const Complex x = at[n][4 * half];
          b[n][0] = x.re, b[n][1] = x.im;
        }
        matrices[d][half][lane_id()].add(apart ? part : sum, b);
      }
      if (apart)
#pragma unroll
        for (int i = 0; i < 4 * EIGHTS; ++i) sum[0][i / 4][i % 4] += part[0][i / 4][i % 4], part[0][i / 4][i % 4] = 0;
    }
  }
  const u64 plane = ((u64)value * frequencies + k) << shift;
#pragma unroll
  for (int i = 0; i < 2 * EIGHTS; ++i) {
    const u32 f = base + 8 * (i / 2) + 2 * t + i % 2;
    if (f < count && g < FAMILY)
      sums[(plane + family_row(first + f, values * frequencies, shift)) * FAMILY + g] = {sum[0][i / 2][i % 2],
                                                                                         sum[0][i / 2][2 + i % 2]};
  }
}
