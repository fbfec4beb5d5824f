// Transforms between the numbers on the lattices of the children of a box and their spectra, by plain sums axis by
// axis. A thread has one line along an axis. Twin of backend-cpu/src/equivalent/dft.rs; conventions as in
// fmm-kernels/src/equivalent/spectra.rs.
//
// Defined in front of this file: REAL, P (the order), FILLED (1 if the lattice fills the cube, 0 if it is a surface),
// BOXES (children per block: 8 or 4), THREADS (per block).

#include "shared/lines.cuh"

#define POINTS (FILLED ? P * P * P - P % 2 : 6 * (P - 1) * (P - 1) + 2)
#define FAMILY 8

// Spectra of densities. A block transforms BOXES children of one family, at one frequency kz = first + blockIdx.y
// (gridDim.y frequencies are in memory at a time), for strength blockIdx.z.
// * The family is blockIdx.x / (FAMILY / BOXES) - 1. Slot 0 is an extra family without children, whose spectra are
//   zero.
// * kids[family · 8 + octant]: box + 1, or 0. numbers[(x · P + y) · P + z]: number of a point, or more than any.
// * Plane of the spectra: ((strength · gridDim.y + blockIdx.y) · SIDE + kx) · SIDE + ky.
extern "C" __global__ void __launch_bounds__(THREADS)
    dft_forward(const REAL* densities, u32 row, const u32* kids, const u32* numbers, u32 first, u32 shift,
                Complex* spectra) {
  __shared__ Complex roots[SIDE], a[P * P][BOXES], b[P * SIDE][BOXES];
  __shared__ u32 boxes[BOXES];
  const u32 parts = FAMILY / BOXES, slot = blockIdx.x / parts, octant = blockIdx.x % parts * BOXES;
  const u32 kz = first + blockIdx.y, strength = blockIdx.z;
  fill_roots(roots);
  if (threadIdx.x < BOXES) boxes[threadIdx.x] = slot == 0 ? 0 : kids[(u64)(slot - 1) * FAMILY + octant + threadIdx.x];
  __syncthreads();
  const u32 box = threadIdx.x % BOXES;
  const REAL* q = densities + (u64)(boxes[box] == 0 ? 0 : boxes[box] - 1) * row + strength * POINTS;
  for (int i = threadIdx.x / BOXES; i < P * P; i += THREADS / BOXES) {
    Complex sum = {0, 0};
    if (boxes[box] != 0) {
      // A column inside the cube has only its two ends on a surface. The centre is on no lattice.
      const int x = i / P, y = i % P;
      const int far = FILLED || x == 0 || x == P - 1 || y == 0 || y == P - 1 ? 1 : P - 1;
      const u32 step = kz * far % SIDE;
      u32 at = 0;
      for (int z = 0; z < P; z += far) {
        const u32 number = numbers[i * P + z];
        const REAL value = !FILLED || number < POINTS ? q[number] : REAL(0);
        sum.re += value * roots[at].re;
        sum.im += value * roots[at].im;
        at += step;
        if (at >= SIDE) at -= SIDE;
      }
    }
    a[i][box] = sum;
  }
  __syncthreads();
  const int line = threadIdx.x / BOXES;
  Complex in[P];
  if (line < P) {
#pragma unroll
    for (int y = 0; y < P; ++y) in[y] = a[line * P + y][box];
    forward(in, roots, [&](int ky, Complex sum) { b[line * SIDE + ky][box] = sum; });
  }
  __syncthreads();
  if (line < SIDE) {
#pragma unroll
    for (int x = 0; x < P; ++x) in[x] = b[x * SIDE + line][box];
    const u32 planes = gridDim.z * gridDim.y * SIDE * SIDE;
    const u64 plane = ((u64)strength * gridDim.y + blockIdx.y) * SIDE * SIDE + line;
    Complex* to = spectra + ((plane << shift) + family_row(slot, planes, shift)) * FAMILY + octant + box;
    forward(in, roots, [&](int kx, Complex sum) { to[(u64)(kx * SIDE * FAMILY) << shift] = sum; });
  }
}

// Check values from spectra, added to rows of `out`, for the `held` frequencies kz from `first` on. A block has BOXES
// children of family blockIdx.x / (FAMILY / BOXES), and component blockIdx.z. lattice: x, y, z of each point in three
// bytes.
extern "C" __global__ void __launch_bounds__(THREADS)
    dft_inverse(const Complex* spectra, const u32* kids, const u32* lattice, u32 first, u32 held, u32 shift, REAL* out,
                u32 row) {
  __shared__ Complex roots[SIDE], a[P * P][BOXES], b[P * SIDE][BOXES];
  __shared__ u32 boxes[BOXES];
  const u32 parts = FAMILY / BOXES, family = blockIdx.x / parts, octant = blockIdx.x % parts * BOXES;
  const u32 value = blockIdx.z;
  fill_roots(roots);
  if (threadIdx.x < BOXES) boxes[threadIdx.x] = kids[(u64)family * FAMILY + octant + threadIdx.x];
  const u32 box = threadIdx.x % BOXES;
  const int line = threadIdx.x / BOXES;
  const u32 planes = SIDE * SIDE * held;
  const u64 at_first = ((u64)(value * planes) << shift) + family_row(family, gridDim.z * planes, shift);
  const Complex* from = spectra + at_first * FAMILY + octant + box;
  constexpr int EACH = (POINTS * BOXES + THREADS - 1) / THREADS;
  REAL field[EACH];
#pragma unroll
  for (int i = 0; i < EACH; ++i) field[i] = 0;
  __syncthreads();
  for (u32 at_kz = 0; at_kz < held; ++at_kz) {
    const u32 kz = first + at_kz;
    Complex sum[P];
    if (line < SIDE) {
      const Complex* at = from + ((u64)((at_kz * SIDE * SIDE + line) * FAMILY) << shift);
      inverse(sum, roots, [&](int kx) { return at[(u64)(kx * SIDE * FAMILY) << shift]; });
#pragma unroll
      for (int x = 0; x < P; ++x) b[x * SIDE + line][box] = sum[x];
    }
    __syncthreads();
    if (line < P) {
      inverse(sum, roots, [&](int ky) { return b[line * SIDE + ky][box]; });
#pragma unroll
      for (int y = 0; y < P; ++y) a[line * P + y][box] = sum[y];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int point = threadIdx.x / BOXES + i * (THREADS / BOXES);
      if (point >= POINTS) continue;
      const u32 c = lattice[point], x = c & 255, y = c >> 8 & 255, z = c >> 16;
      const Complex u = a[x * P + y][box], w = roots[kz * z % SIDE];
      // Frequencies in the upper half are conjugates of those in the lower half, hence the factor 2.
      field[i] += (kz == 0 ? REAL(1) : REAL(2)) * (u.re * w.re + u.im * w.im);
    }
  }
  if (boxes[box] == 0) return;
  REAL* to = out + (u64)(boxes[box] - 1) * row + value * POINTS;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int point = threadIdx.x / BOXES + i * (THREADS / BOXES);
    if (point < POINTS) to[point] += field[i];
  }
}
