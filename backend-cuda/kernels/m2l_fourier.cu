// M2L through Fourier space, frequency by frequency: at one frequency, M2L between two families (the eight children
// of a box, and those of a box beside it) is a product of an 8 × 8 matrix of operators with the eight spectra of the
// sources (Malhotra & Biros 2015, §3.2); here on the tensor cores, eight target families at a time. Twin of
// backend-cpu/src/equivalent/{m2l,families}.rs.
//
// In front of this file: REAL.

#include "shared/boxes.cuh"
#include "shared/complex.cuh"
#include "shared/offset.cuh"
#include "shared/product.cuh"

#define FAMILY 8
// Boxes around a box.
#define AROUND 26
#define THREADS 256
// Families of a warp, in eights.
#define EIGHTS 4

// Which boxes have children.
extern "C" __global__ void family_flags(const Boxes* boxes, u32 count, u32* flags) {
  const Boxes t = *boxes;
  const u32 b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b < count) flags[b] = !is_leaf(t, b);
}

// kids[family · 8 + octant]: box + 1, or 0 where the parent has no such child. `kids` comes as zeros.
extern "C" __global__ void family_kids(const Boxes* boxes, const u8* octants, const u32* parents, u32 families,
                                       u32* kids) {
  const Boxes t = *boxes;
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x, f = i / FAMILY, k = i % FAMILY;
  if (f >= families || k >= t.child_count[parents[f]]) return;
  const u32 c = t.child_start[parents[f]] + k;
  kids[f * FAMILY + octants[c]] = c + 1;
}

// The direction from a box to one around it.
__device__ __forceinline__ void direction(u32 d, int* to) {
  const u32 code = d + (d >= AROUND / 2);
  to[0] = (int)(code / 9) - 1, to[1] = (int)(code / 3 % 3) - 1, to[2] = (int)(code % 3) - 1;
}

// The operator between child `source` of the box in direction d and child `target`; OFFSETS if they are adjacent.
__device__ __forceinline__ u32 operator_of(u32 d, u32 target, u32 source) {
  int offset[3];
  direction(d, offset);
  for (int a = 0; a < 3; ++a) offset[a] = (int)(target >> a & 1) - (int)(source >> a & 1) - 2 * offset[a];
  return offset_index(offset);
}

// around[d · families + f]: family + 1 of the box in direction d of the parent of family f, where the V list joins
// any of their children; it comes as zeros. numbers[b]: the family of box b. An edge between boxes that do not lie
// like this raises `refused`. A warp a box.
extern "C" __global__ void family_around(const Boxes* boxes, u32 count, const u64* starts, const u32* sources,
                                         const u64* numbers, u32 families, u32* around, u32* refused) {
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
      good = d >= -1 && d <= 1;
      offset[a] = (int)min(max(o, -9ll), 9ll);
      code = 3 * code + (u32)(d + 1);
    }
    if (good && code != AROUND / 2 && offset_index(offset) < OFFSETS)
      around[(u64)(code - (code > AROUND / 2)) * families + numbers[p]] = (u32)numbers[from] + 1;
    else
      atomicMin(refused, b);
  }
}

// How many edges the product adds up: pairs of children of families that are `around` each other, not adjacent, with
// sources and targets. A thread a family and direction.
extern "C" __global__ void __launch_bounds__(256) family_edges(const Boxes* boxes, const u32* kids, const u32* around,
                                                               u32 families, u64* edges) {
  const Boxes t = *boxes;
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  const u32 f = i % families, d = i / families;
  u64 mine = 0, total;
  const u32 s = d < AROUND ? around[i] : 0;
  if (s != 0)
    for (u32 k = 0; k < FAMILY * FAMILY; ++k) {
      const u32 target = kids[f * FAMILY + k / FAMILY], source = kids[(s - 1) * FAMILY + k % FAMILY];
      if (target == 0 || source == 0) continue;
      const bool both = targets_in(t, target - 1) > 0 && sources_in(t, source - 1) > 0;
      mine += both && operator_of(d, k / FAMILY, k % FAMILY) < OFFSETS;
    }
  block_exclusive(mine, total);
  if (threadIdx.x == 0) atomicAdd(edges, total);
}

// Sums of the spectra around the families first … first + count, at frequency blockIdx.y of value blockIdx.z.
// operators[((k · values + value) · strengths + strength) · OFFSETS + offset];
// spectra[strength · frequencies + k][families + 1][octant], of which the first family is zero;
// sums[value · frequencies + k][families][octant]. In f32 each direction is summed apart: the tensor cores do not
// round sums but cut them.
extern "C" __global__ void __launch_bounds__(THREADS)
    m2l_product(const Complex* operators, u32 strengths, const Complex* spectra, u32 families, u32 first, u32 count,
                const u32* around, Complex* sums) {
  // Entries in the order in which the lanes of a warp read them: target g, sources t and t + 4.
  __shared__ Complex matrices[AROUND][2][32];
  constexpr bool apart = sizeof(REAL) == 4;
  const u32 k = blockIdx.y, value = blockIdx.z, frequencies = gridDim.y, values = gridDim.z;
  const u32 g = lane_id() / 4, t = lane_id() % 4, end = first + count;
  const u32 base = first + (blockIdx.x * (THREADS / 32) + threadIdx.x / 32) * (8 * EIGHTS);
  REAL sum[1][EIGHTS][4] = {}, part[1][EIGHTS][4] = {};
  for (u32 strength = 0; strength < strengths; ++strength) {
    const Complex* entries = operators + ((u64)(k * values + value) * strengths + strength) * OFFSETS;
    __syncthreads();
    for (u32 i = threadIdx.x; i < AROUND * 64; i += THREADS) {
      const u32 o = operator_of(i / 64, i % 32 / 4, i % 4 + i % 64 / 32 * 4);
      matrices[i / 64][i % 64 / 32][i % 32] = o < OFFSETS ? entries[o] : Complex{0, 0};
    }
    __syncthreads();
    const Complex* from = spectra + ((u64)strength * frequencies + k) * (families + 1) * FAMILY + t;
#pragma unroll 2
    for (u32 d = 0; d < AROUND; ++d) {
      u32 source[EIGHTS], any = 0;
#pragma unroll
      for (int n = 0; n < EIGHTS; ++n) {
        const u32 f = base + 8 * n + g;
        source[n] = f < end ? around[(u64)d * families + f] : 0;
        any |= source[n];
      }
      if (!__any_sync(~0u, any != 0)) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        REAL b[EIGHTS][2];
#pragma unroll
        for (int n = 0; n < EIGHTS; ++n) {
          const Complex x = from[(u64)source[n] * FAMILY + 4 * half];
          b[n][0] = x.re, b[n][1] = x.im;
        }
        // Rows 0 … 7 are real parts, 8 … 15 imaginary ones; so are the columns 0 … 3 and 4 … 7.
        const Complex m = matrices[d][half][lane_id()];
        const REAL a[1][4] = {{m.re, m.im, -m.im, m.re}};
        add_products(apart ? part : sum, a, b);
      }
      if (apart)
#pragma unroll
        for (int i = 0; i < 4 * EIGHTS; ++i) sum[0][i / 4][i % 4] += part[0][i / 4][i % 4], part[0][i / 4][i % 4] = 0;
    }
  }
#pragma unroll
  for (int i = 0; i < 2 * EIGHTS; ++i) {
    const u32 f = base + 8 * (i / 2) + 2 * t + i % 2;
    if (f < end)
      sums[(((u64)value * frequencies + k) * families + f) * FAMILY + g] = {sum[0][i / 2][i % 2],
                                                                             sum[0][i / 2][2 + i % 2]};
  }
}
